"""Handlers that sleep, and wait for signals."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django_jobs import SignalTimeout, job

from .long_jobs import this_run
from .marks import mark


@job
def sleep_three_times(path: str, seconds: float) -> int:
    """Marks each attempt, and what it passed; returns its own number."""
    run = this_run()
    mark(path)
    for number in range(3):
        run.sleep(f"nap {number}", timedelta(seconds=seconds))
        run.once(f"passed {number}", lambda: mark(f"{path}.passed"))
    return run.attempt


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


@job
async def ask_for_two(path: str) -> Any:
    """One signal after the other; of the second one only for a moment."""
    mark(path)
    first = await this_run().await_for("first")
    try:
        return [first, await this_run().await_for("second", timeout=0.1)]
    except SignalTimeout as error:
        return [first, f"no {error.name}"]


@job(isolated=True)
def ask_alone(path: str) -> Any:
    """In a process of its own."""
    mark(path)
    this_run().sleep("nap", 0.05)
    return this_run().wait_for("approval")
