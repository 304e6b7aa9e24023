"""Handlers that do what no handler should, for the tests of faults."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import threading
import time
import warnings
from pathlib import Path

from django.db import connection, transaction

from django_jobs import current_run, job

from .marks import mark
from .models import Effect


class Abandoned(BaseException):
    """Of a handler's own making, and no ``Exception``."""


def leave_effect(note: str) -> None:
    """One row that says which job left it."""
    run = current_run()
    Effect.objects.create(note=note, job_id=run.job_id if run else None)


def wait_for(path: str) -> None:
    """Until the test lets it go."""
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)


@job
def leave_one_effect(path: str) -> None:
    """A row that is committed before the job is settled."""
    mark(path)
    leave_effect("at least once")


@job(delivery="exactly_once")
def leave_one_effect_once(path: str) -> None:
    """A row that is committed with the job."""
    mark(path)
    leave_effect("once")


@job(isolated=True)
def leave_one_effect_alone(path: str) -> None:
    """In a process of its own."""
    mark(path)
    leave_effect("alone")


@job(max_attempts=1)
def leave_one_effect_and_fail(path: str) -> None:
    """A row that is committed before the job fails."""
    mark(path)
    leave_effect("before a failure")
    raise RuntimeError("as planned")


@job(isolated=True)
def hold_alone(path: str) -> None:
    """Waits in a process of its own."""
    mark(path)
    wait_for(path)


@job
def segfault(path: str) -> None:
    """Reads where there is nothing."""
    mark(path)
    ctypes.string_at(0)


@job(isolated=True, max_attempts=1)
def use_up_the_memory() -> None:
    """Asks for more than its process may have."""
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))
    bytearray(2**32)


@job(max_attempts=1)
def abandon() -> None:
    """Raises what no ``except Exception`` catches."""
    raise Abandoned("as asked")


@job(max_attempts=1)
async def abandon_async() -> None:
    """The same on the loop."""
    raise Abandoned("as asked")


@job(max_attempts=1, timeout=2)
def sleep_with_a_limit(path: str) -> None:
    """Sleeps for longer than it may."""
    mark(path)
    time.sleep(600)


@job
def leave_a_thread(path: str) -> None:
    """Returns at once; its thread writes when the test lets it, and then fails."""

    def write_late() -> None:
        wait_for(path)
        with contextlib.suppress(ZeroDivisionError):
            leave_effect("late")
            with transaction.atomic():
                leave_effect("rolled back")
                1 / 0  # noqa: B018 — that it raises is its use
        connection.close()
        mark(path)

    threading.Thread(target=write_late, daemon=True).start()


@job(isolated=True, timeout=2, max_attempts=1)
def leave_a_subprocess(path: str) -> None:
    """Starts a program that runs for long, and says its process id; then it is deaf."""
    program = subprocess.Popen(["sleep", "600"])
    Path(f"{path}.program").write_text(str(program.pid))
    mark(path)
    while True:
        with contextlib.suppress(BaseException):  # whatever is raised in it when its time is over
            time.sleep(600)


@job
def fork_and_return(path: str) -> None:
    """Both processes return from the handler, as no handler should have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of a fork among threads
        child = os.fork()
    if child:
        Path(f"{path}.child").write_text(str(child))
        mark(path)
    else:
        mark(path)


if os.environ.get("TEST_CODE_VERSION") == "2":

    @job
    def of_tomorrow(path: str) -> None:
        """What only the new code knows."""
        mark(path)
