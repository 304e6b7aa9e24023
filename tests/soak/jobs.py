"""Handlers of the soak: every way for a job to end, in about the shares of ordinary work."""

from __future__ import annotations

import time

from django_jobs import Backoff, current_run, job, schedule

SOON = Backoff.fixed(1.0, jitter=0.5)


@job
def quick() -> None:
    """Nearly all of them."""


@job(backoff=SOON)
def stumble() -> None:
    """Fails at first."""
    run = current_run()
    if run is not None and run.attempt == 1:
        raise RuntimeError("as planned " + "x" * 1_000)


@job(backoff=SOON, max_attempts=2)
def hopeless() -> None:
    """A dead letter."""
    raise RuntimeError("as planned")


@job(isolated=True)
def alone() -> None:
    """In a process of its own."""


@job(queue="limited")
def until_told() -> str:
    """Runs until it is cancelled."""
    run = current_run()
    for _ in range(1_000):
        if run is not None and run.should_stop():
            return "told"
        time.sleep(0.01)
    return "never told"


@job
def every_second() -> None:
    """What the schedule makes."""


schedule("soak: every second", every_second, every=1)
