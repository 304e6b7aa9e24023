"""Handlers that run for too long, hold too much, say nothing, crash, or are to be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection

from django_jobs import Backoff, current_run, job
from django_jobs.exceptions import Cancelled, TimeLimitExceeded

from .marks import mark
from .models import Effect

SOON = Backoff.fixed(0.05)


def touch(path: str, what: str) -> None:
    """Say on disk that the handler came so far."""
    Path(f"{path}.{what}").touch()


@job(timeout=0.5, max_attempts=1)
def run_for_ever(path: str) -> None:
    """Python code without an end; cleans up."""
    mark(path)
    try:
        while True:
            time.sleep(0.01)
    finally:
        touch(path, "cleaned")


@job(timeout=0.5, max_attempts=1, isolated=True)
def sleep_alone(path: str) -> None:
    """A blocking call without an end, in a process of its own; cleans up."""
    mark(path)
    try:
        time.sleep(600)
    except TimeLimitExceeded:
        touch(path, "cleaned")
        raise


@job(timeout=0.5, max_attempts=1, isolated=True)
def compute_alone(path: str) -> None:
    """As :func:`compute`, in a process of its own."""
    mark(path)
    sum(range(10**12))


@job(timeout=0.5, max_attempts=1)
def compute(path: str) -> None:
    """One call in C that keeps the interpreter for hours."""
    mark(path)
    sum(range(10**12))


@job(timeout=0.3, max_attempts=1)
def react(how: str) -> str:
    """Does not give up when its time is over."""
    try:
        while True:
            time.sleep(0.01)
    except TimeLimitExceeded:
        if how == "raise":
            raise ValueError("something else") from None
        return "went on all the same"


@job(timeout=0.3, max_attempts=1)
async def react_async() -> str:
    """Does not give up when it is cancelled for its time."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    return "went on all the same"


@job(timeout=0.3, max_attempts=1, delivery="exactly_once")
def write_too_slowly() -> str:
    """A row, and then no end; catches what tells it so."""
    Effect.objects.create(note="too slow")
    try:
        while True:
            time.sleep(0.01)
    except TimeLimitExceeded:
        return "went on all the same"


@job(timeout=0.05, max_attempts=1)
def nap_within(seconds: float) -> float:
    """Takes so long, in steps of Python code; returns how long it took."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        time.sleep(0.001)
    return time.monotonic() - begun


@job(silence_timeout=1.0, max_attempts=1)
def say_nothing(path: str) -> None:
    """No report, no end."""
    mark(path)
    while True:
        time.sleep(0.01)


@job(silence_timeout=1.0, max_attempts=1)
async def say_nothing_async(path: str) -> None:
    """No report, no end, on the loop."""
    mark(path)
    await asyncio.sleep(600)


@job(silence_timeout=1.0, max_attempts=1, isolated=True)
def say_nothing_alone(path: str) -> None:
    """No report, no end, in a process of its own."""
    mark(path)
    time.sleep(600)


@job(silence_timeout=1.0, max_attempts=1)
def compute_silently(path: str) -> None:
    """One call in C that keeps the interpreter for hours."""
    mark(path)
    sum(range(10**12))


# A machine that stands still makes anybody silent, so these are tried again.
@job(silence_timeout=1.0, max_attempts=20, backoff=SOON)
def keep_reporting(seconds: float) -> None:
    """Longer than its silence, with reports."""
    _report(seconds)


@job(silence_timeout=1.0, max_attempts=20, backoff=SOON, isolated=True)
def keep_reporting_alone(seconds: float) -> None:
    """The same in a process of its own."""
    _report(seconds)


@job(silence_timeout=1.0, max_attempts=20, backoff=SOON)
async def keep_reporting_async(seconds: float) -> None:
    """The same on the loop."""
    run = current_run()
    assert run is not None
    begun = time.monotonic()
    while (gone := time.monotonic() - begun) < seconds:
        run.progress(gone / seconds, "at it")
        await asyncio.sleep(0.01)


def _report(seconds: float) -> None:
    run = current_run()
    assert run is not None
    begun = time.monotonic()
    while (gone := time.monotonic() - begun) < seconds:
        run.progress(gone / seconds, "at it")
        time.sleep(0.01)


@job(max_rss=250)
def hold_memory(path: str, megabytes: int) -> int:
    """Takes so much memory, and waits while it is more than it may."""
    mark(path)
    held = [os.urandom(1) * 1_048_576 for _ in range(megabytes)]
    if megabytes > 250:
        time.sleep(600)
    return os.getpid() if held else 0


@job(isolated=True)
def crash(how: str) -> None:
    """Ends its process."""
    if how == "exit":
        os._exit(0)
    os.kill(os.getpid(), signal.Signals[how])


@job
async def await_cancel(path: str) -> None:
    """Waits on the loop; says that it was cancelled."""
    mark(path)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        touch(path, "cancelled")
        raise


@job(isolated=True)
async def await_cancel_alone(path: str) -> None:
    """The same in a process of its own."""
    mark(path)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        touch(path, "cancelled")
        raise


@job(isolated=True)
def sleep_deaf_alone(path: str) -> None:
    """Does not look whether it was cancelled; would leave a row."""
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    Effect.objects.create(note="after all")


@job
def fail_when_let_go(path: str) -> None:
    """Fails, which would be tried again."""
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    raise ValueError("as asked")


def wait_in_the_server() -> None:
    """A statement in autocommit that writes a row once a lock is free, and then commits."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO app_effect (note, created_at)"
            " SELECT 'late', now() FROM (SELECT pg_advisory_lock(4711)) AS waited"
        )


write_late = job(timeout=0.5, max_attempts=1, name="app.write_late")(wait_in_the_server)
write_late_alone = job(timeout=0.5, max_attempts=1, isolated=True, name="app.write_late_alone")(
    wait_in_the_server
)
write_in_silence = job(silence_timeout=0.5, max_attempts=1, name="app.write_in_silence")(
    wait_in_the_server
)
write_late_once = job(
    timeout=0.5, max_attempts=1, delivery="exactly_once", name="app.write_late_once"
)(wait_in_the_server)
write_at_leisure = job(max_attempts=1, name="app.write_at_leisure")(wait_in_the_server)


async def await_the_server() -> None:
    """The same from a loop."""
    await sync_to_async(wait_in_the_server)()


write_late_async = job(timeout=0.5, max_attempts=1, name="app.write_late_async")(await_the_server)
write_late_async_alone = job(
    timeout=0.5, max_attempts=1, isolated=True, name="app.write_late_async_alone"
)(await_the_server)
write_in_silence_async = job(
    silence_timeout=0.5, max_attempts=1, name="app.write_in_silence_async"
)(await_the_server)


@job(timeout=0.5, max_attempts=1)
async def write_late_in_a_free_thread() -> None:
    """The same in a thread that no end of a handler waits for."""
    await asyncio.to_thread(wait_in_the_server)


@job(max_attempts=1)
async def write_at_leisure_async() -> None:
    """As :func:`write_at_leisure`, from a loop."""
    await sync_to_async(wait_in_the_server)()


@job(max_attempts=1, isolated=True)
async def write_at_leisure_async_alone() -> None:
    """The same in a process of its own."""
    await sync_to_async(wait_in_the_server)()


write_at_leisure_alone = job(max_attempts=1, isolated=True, name="app.write_at_leisure_alone")(
    wait_in_the_server
)
write_at_leisure_once = job(
    max_attempts=1, delivery="exactly_once", name="app.write_at_leisure_once"
)(wait_in_the_server)


def _run_away(path: str) -> None:
    mark(path)
    try:
        while True:
            time.sleep(0.01)
    finally:
        touch(path, "cleaned")


run_away = job(name="app.run_away")(_run_away)
run_away_alone = job(isolated=True, name="app.run_away_alone")(_run_away)
run_away_asked = job(on_cancel="ask", name="app.run_away_asked")(_run_away)
run_away_in_time = job(timeout=600, name="app.run_away_in_time")(_run_away)
run_away_once = job(delivery="exactly_once", name="app.run_away_once")(_run_away)


@job
def give_in(path: str) -> str:
    """Catches what ends it, and returns."""
    try:
        _run_away(path)
    except Cancelled:
        Path(f"{path}.told").touch()
    return "went on all the same"


@job
def fail_when_stopped(path: str) -> None:
    """Raises something else, which would be tried again."""
    try:
        _run_away(path)
    finally:
        raise ValueError("something else")


@job(on_cancel="ask")
async def await_asked(path: str) -> str:
    """Waits on the loop; returns in spite of a cancel."""
    mark(path)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    touch(path, "cleaned")
    return "went on all the same"


@job
async def await_twice(path: str) -> None:
    """Needs to be cancelled twice."""
    mark(path)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    touch(path, "cancelled")
    try:
        await asyncio.sleep(600)
    finally:
        touch(path, "cleaned")


@job
def run_on(path: str) -> None:
    """Catches whatever should end it."""
    mark(path)
    while True:
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)


@job
async def run_on_async(path: str) -> None:
    """The same on the loop."""
    mark(path)
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(600)


@job
def compute_on(path: str) -> None:
    """One call in C that keeps the interpreter for hours."""
    mark(path)
    sum(range(10**12))


@job(isolated=True)
def compute_on_alone(path: str) -> None:
    """The same in a process of its own."""
    mark(path)
    sum(range(10**12))


@job
def set_a_signal_handler(number: int) -> str:
    """What only the main thread may do."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, before)
    os.environ["TENANT"] = str(number)
    time.sleep(0.05)
    return os.environ["TENANT"]


@job(timeout=0.5, max_attempts=1)
def wait_in_c(path: str, how: str) -> None:
    """A blocking call without an end; cleans up."""
    mark(path)
    ours, theirs = socket.socketpair()
    waits: dict[str, Callable[[], object]] = {
        "sleep": lambda: time.sleep(600),
        "socket": lambda: ours.recv(1),
        "lock": lambda: [lock.acquire() for lock in [threading.Lock()] * 2],
        "statement": lambda: connection.cursor().execute("SELECT pg_sleep(600)"),
    }
    with ours, theirs:
        try:
            waits[how]()
        finally:
            touch(path, "cleaned")
