"""Handlers that sleep, and wait for signals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django_jobs import job

from .long_jobs import this_run
from .marks import mark


@job
def sleep_while_killed(path: str) -> int:
    """Sleeps for a moment; the attempts after it wait to be killed or let go."""
    run = this_run()
    run.sleep("nap", 0.01)
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    run.sleep("another", 0.01)
    return run.attempt


@job
def ask_for_approval(path: str, timeout: float | None = None) -> Any:
    """Marks each attempt, waits to be let go, and then for the signal."""
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    return this_run().wait_for("approval", timeout)


@job(isolated=True)
def ask_alone(path: str) -> Any:
    """In a process of its own."""
    mark(path)
    this_run().sleep("nap", 0.05)
    return this_run().wait_for("approval")
