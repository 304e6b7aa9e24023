"""Handlers whose attempts are counted: at most once, and errors with a budget."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from django_jobs import Backoff, current_run, job

from .marks import mark


@job(delivery="at_most_once")
def pay(path: str, how: str = "") -> None:
    """Marks that it began, waits until it is let go, and ends as it is told to."""
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    if how == "raise":
        raise ConnectionError("no answer")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


@job(
    backoff=Backoff.fixed(0),
    max_attempts=6,
    error_budgets={OSError: 4, ConnectionError: 2},
)
def call_out(kinds: list[str]) -> None:
    """Raises one error after the other, by the names of their classes."""
    run = current_run()
    assert run is not None
    raise {"ConnectionError": ConnectionError, "OSError": OSError, "KeyError": KeyError}[
        kinds[run.attempt - 1]
    ]("as asked")
