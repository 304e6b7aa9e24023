"""Handlers that the tests enqueue."""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import os
import signal
import time
from pathlib import Path

from django.db import connection, transaction

from django_jobs import Backoff, Cancel, Concurrency, Discard, Retry, Skip, Snooze, current_run, job

from . import async_jobs as async_jobs
from . import cost_jobs as cost_jobs
from . import database_jobs as database_jobs
from . import durable_jobs as durable_jobs
from . import fan_out_jobs as fan_out_jobs
from . import fault_jobs as fault_jobs
from . import file_jobs as file_jobs
from . import flow_jobs as flow_jobs
from . import fork_jobs as fork_jobs
from . import gate_jobs as gate_jobs
from . import hook_jobs as hook_jobs
from . import kit_jobs as kit_jobs
from . import limit_jobs as limit_jobs
from . import log_jobs as log_jobs
from . import long_jobs as long_jobs
from . import once_jobs as once_jobs
from . import span_jobs as span_jobs
from . import stack_jobs as stack_jobs
from . import version_jobs as version_jobs
from . import workflow_jobs as workflow_jobs
from .marks import mark as mark
from .models import Effect


@job
def noop() -> None:
    """Nothing."""


@job
def add(first: int, second: int = 1) -> int:
    """A result."""
    return first + second


@job
def write_effect(note: str) -> None:
    """One row."""
    Effect.objects.create(note=note)


@job
def hold(path: str, note: str = "") -> str:
    """Say on disk that it started, wait until it is let go or asked to stop, leave one row."""
    mark(path)
    while not Path(f"{path}.go").exists():
        run = current_run()
        if run is not None and run.should_stop():
            return "stopped"
        time.sleep(0.01)
    Effect.objects.create(note=note, job_id=current_job())
    return "went on"


@job(concurrency=Concurrency("hold", on_conflict="cancel_running"))
def hold_last(path: str) -> str:
    """The newest of its key stops the one that runs."""
    return hold(path)


@job(delivery="exactly_once")
def hold_in_transaction(path: str) -> None:
    """A row in the transaction that settles the job; waits before it ends."""
    Effect.objects.create(note="once", job_id=current_job())
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)


@job
def sleep_deaf(path: str, seconds: float) -> None:
    """Sleeps whatever it is told."""
    mark(path)
    time.sleep(seconds)


@job
def hold_the_gil(path: str, seconds: float) -> None:
    """A C call that keeps the GIL for all of its time."""
    mark(path)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@job
def kill_itself(path: str = "") -> None:
    """A poison pill."""
    if path:
        mark(path)
        while not Path(f"{path}.go").exists():
            time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@job
def exit_quietly() -> None:
    """Ends its process with success, which is none."""
    os._exit(0)


@job(backoff=Backoff.fixed(0.05), max_attempts=3)
def fail(kind: str = "ValueError") -> None:
    """Raises what it is told to, of the builtins."""
    raise getattr(builtins, kind)("as asked")


@job(timeout=0.5, max_attempts=1)
def too_slow(path: str) -> None:
    """Takes longer than it may."""
    mark(path)
    time.sleep(60)


@job(timeout=0.3, max_attempts=1)
async def too_slow_async() -> None:
    """Takes longer than it may, on the loop."""
    await asyncio.sleep(60)


@job
async def add_async(first: int, second: int) -> int:
    """A result from the loop, with a row written on the way."""
    await Effect.objects.acreate(note="async")
    await asyncio.sleep(0)
    return first + second


@job
def spoil_connection(how: str) -> None:
    """Leaves its connection as no handler should."""
    with connection.cursor() as cursor:
        if how == "setting":
            cursor.execute("SET statement_timeout = '1ms'")
        elif how == "transaction":
            transaction.set_autocommit(False)
            Effect.objects.create(note="never committed")
        elif how == "atomic":
            transaction.atomic().__enter__()
            Effect.objects.create(note="never committed")


@job
def tell_connection() -> list[str]:
    """What a handler finds on its connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout'), pg_backend_pid()::text")
        timeout, _ = cursor.fetchone()
    return [timeout, str(connection.get_autocommit()), str(connection.in_atomic_block)]


@job(isolated=True)
def alone() -> int:
    """Runs in a process of its own."""
    return os.getpid()


@job(max_attempts=3)
def ask_for(fate: str, seconds: float = 0) -> str:
    """Chooses its own fate, the first time."""
    run = current_run()
    if run is not None and run.attempt > 1:
        return "second attempt"
    match fate:
        case "retry":
            raise Retry(after=seconds, reason="not yet")
        case "elsewhere":
            raise Retry(after=seconds, queue="bulk", priority=7)
        case "snooze":
            raise Snooze(seconds)
        case "discard":
            raise Discard("hopeless")
        case "skip":
            raise Skip("no rows")
        case _:
            raise Cancel("not needed any more")


def current_job() -> int | None:
    """The job that the caller runs."""
    run = current_run()
    return run.job_id if run else None


@job
def nap(seconds: float) -> None:
    """Takes so long."""
    time.sleep(seconds)


@job
def update_effect(pk: int) -> None:
    """One SELECT and one UPDATE, through the ORM."""
    effect = Effect.objects.get(pk=pk)
    effect.note = "again"
    effect.save(update_fields=["note"])


@job(schedulable=True)
def summarise(day: str, limit: int = 10) -> str:
    """What a schedule of the admin may name."""
    return f"{day}: {limit}"


@job
def tell_due_time() -> str | None:
    """The due time that it was fired for."""
    run = current_run()
    return run.scheduled_for.isoformat() if run and run.scheduled_for else None
