"""Handlers of the chaos test. Each execution leaves one line in a file, whatever becomes of it."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from django_jobs import Backoff, current_run, job

from .models import Mark
from .timing import HOLD

SOON = Backoff.fixed(0.2, jitter=0.5)


def leave_a_line() -> int:
    """Append job, attempt, tree, process and time in one write, so that lines never mix."""
    run = current_run()
    assert run is not None
    words = run.job_id, run.attempt, os.environ["CHAOS_TREE"], os.getpid(), f"{time.time():.6f}"
    file = os.open(os.environ["CHAOS_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)
    return run.attempt


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def outside(seconds: float) -> None:
    """An effect that nothing takes back."""
    leave_a_line()
    time.sleep(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50, isolated=True)
def alone(seconds: float) -> None:
    """The same in a child process of its own."""
    leave_a_line()
    time.sleep(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50, delivery="exactly_once")
def inside(seconds: float) -> None:
    """An effect that commits with the job or not at all."""
    leave_a_line()
    run = current_run()
    assert run is not None
    Mark(job_id=run.job_id).save()
    time.sleep(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def stumble(seconds: float) -> None:
    """Fails at first."""
    time.sleep(seconds)
    if leave_a_line() == 1:
        raise RuntimeError("as planned")


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def hold_the_gil(seconds: float) -> None:
    """Nothing else of its process runs, for longer than the lease."""
    leave_a_line()
    ctypes.PyDLL(None).usleep(int((HOLD + seconds) * 1_000_000))


@job(backoff=SOON, max_crashes=3)
def poison(seconds: float) -> None:
    """Kills whatever runs it, at the moment that its line tells."""
    time.sleep(seconds)
    leave_a_line()
    os.kill(os.getpid(), signal.SIGKILL)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def every_second() -> None:
    """What the schedule makes."""
    leave_a_line()
