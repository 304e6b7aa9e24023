"""Handlers of the chaos test. Each execution leaves one line in a file, whatever becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import threading
import time
import uuid
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection
from psycopg import sql

from django_jobs import Backoff, Concurrency, Discard, Stored, current_run, job
from django_jobs.models import Job

from . import deploy
from . import graphs as graphs  # declares the workflows
from .lines import leave_a_line, note
from .models import Mark
from .timing import HOLD

SOON = Backoff.fixed(0.2, jitter=0.5)


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
    look_at_the_session()
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


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def edited(rule: int, every: float) -> None:
    """What the schedule makes whose rule is changed."""
    leave_a_line()


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def cancelled(seconds: float) -> None:
    """Somebody cancels it soon."""
    leave_a_line()
    time.sleep(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def forced(seconds: float) -> None:
    """Somebody stops it by force soon. One of four may have ended by then; the others run on: in
    Python code, in the database, and whatever is raised in them."""
    leave_a_line()
    run = current_run()
    assert run is not None
    match run.job_id % 4:
        case 0:
            time.sleep(seconds)
        case 1:
            while True:
                time.sleep(0.01)
        case 2:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(3600)")
        case 3:
            while True:
                with contextlib.suppress(BaseException):
                    time.sleep(0.01)


SESSION = """
SELECT coalesce(current_setting('app.tenant', true), ''), current_setting('search_path'),
    CASE WHEN current_user = session_user THEN '' ELSE current_user END,
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""


def look() -> list[object]:
    """The session of this call, and what is set there."""
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        return [*cursor.fetchone(), connection.connection.info.backend_pid]


def look_at_the_session(left: str = "") -> None:
    """Note what the handler finds on its connection, and what it will leave there."""
    run = current_run()
    assert run is not None
    found = json.dumps(look()[:-1], separators=(",", ":")).replace(" ", "")
    note(".sessions", run.job_id, os.getpid(), threading.get_native_id(), left or "nothing", found)


def leave_something() -> None:
    """Look, and leave a setting, a role or a lock, each in a way that does not look like it."""
    run = current_run()
    assert run is not None
    left = ("setting", "search_path", "role", "set_config", "lock")[run.job_id % 5]
    look_at_the_session(left)
    with connection.cursor() as cursor:
        match left:
            case "setting":
                cursor.execute(sql.SQL("SET app.tenant TO {}").format(sql.Literal("seven")))
            case "search_path":
                path = sql.SQL("/* of the tenant */ SET search_path TO {}, public")
                cursor.execute(path.format(sql.Identifier("seven")))
            case "role":
                cursor.execute(sql.SQL("SET ROLE {}").format(sql.Identifier("chaos_tenant")))
            case "set_config":
                cursor.callproc("set_config", ["app.tenant", "seven", False])
            case "lock":
                cursor.callproc("pg_try_advisory_lock", [run.job_id])


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def tenant(seconds: float) -> None:
    """Leaves something on its connection, and the next one must not find it."""
    leave_a_line()
    leave_something()
    time.sleep(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
async def awaits(seconds: float) -> None:
    """The effect of :func:`outside`, on the loop."""
    leave_a_line()
    await asyncio.sleep(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
async def awaits_tenant(seconds: float) -> None:
    """As :func:`tenant`, in several calls: what it leaves is there in the next call, in the same
    session. Another thread gets a session of another handler's, which is clean."""
    leave_a_line()
    await sync_to_async(leave_something)()
    left = await sync_to_async(look)()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(look_at_the_session)
    if await sync_to_async(look)() != left:
        raise RuntimeError("a session changed between two calls")


def begin_in_a_pool(job: int, parent: int) -> None:
    """In each process of a pool. It is silent from here on: where its handler's process is killed,
    Python writes the traceback of a broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    note(".pools", job, parent, os.getpid())


def in_a_pool(seconds: float) -> None:
    """As the manual of Python has it."""
    leave_a_line()
    run = current_run()
    assert run is not None
    with multiprocessing.get_context("fork").Pool(
        2, initializer=begin_in_a_pool, initargs=(run.job_id, os.getpid())
    ) as pool:
        pool.map(time.sleep, [seconds / 2] * 4)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def pool(seconds: float) -> None:
    """Parallel work in a plain handler."""
    in_a_pool(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50, isolated=True)
def pool_alone(seconds: float) -> None:
    """The same in a child process of its own."""
    in_a_pool(seconds)


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def files(seconds: float, text: str, file: Stored) -> Any:
    """Reads a file, and an argument that was too long for the row; returns one or the other."""
    leave_a_line()
    time.sleep(seconds)
    run = current_run()
    assert run is not None
    if file.read().decode() != text:
        raise Discard("another file")
    return {"copy": Stored(text.encode(), "copy.txt")} if run.job_id % 2 else text


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def charges(seconds: float, order: int) -> str:
    """Charges an order, which other jobs do too."""
    leave_a_line()
    run = current_run()
    assert run is not None

    def charge() -> str:
        time.sleep(seconds)
        return uuid.uuid4().hex

    return str(run.once(f"order {order}", charge, scope="effect"))


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def calls_back(seconds: float) -> None:
    """Somebody is called at its end."""
    leave_a_line()
    time.sleep(seconds)


def with_gates(seconds: float) -> None:
    """What waits at gates before."""
    leave_a_line()
    time.sleep(seconds)


def tenant_of(payload: dict[str, float]) -> str:
    """One of two, of which one has a limit."""
    return "capped" if round(payload["seconds"] * 10_000) % 2 == 0 else "other"


OFTEN = {"backoff": SOON, "max_crashes": 50, "max_attempts": 50}
key_of_one = job(name="chaos.key_of_one", concurrency=Concurrency("one"), **OFTEN)(with_gates)
key_of_three = job(name="chaos.key_of_three", concurrency=Concurrency("three", limit=3), **OFTEN)(
    with_gates
)
slots = job(name="chaos.slots", resources=("slots",), **OFTEN)(with_gates)
calls = job(name="chaos.calls", resources=("calls",), **OFTEN)(with_gates)
of_tenant = job(name="chaos.of_tenant", tenant=tenant_of, **OFTEN)(with_gates)
metered = job(name="chaos.metered", tenant="metered", **OFTEN)(with_gates)
all_gates = job(
    name="chaos.all_gates",
    concurrency=Concurrency("three", limit=3),
    resources=("slots", "calls"),
    tenant="capped",
    **OFTEN,
)(with_gates)
if deploy.is_known():
    first = {"name": deploy.NEWCOMER, "concurrency": Concurrency("one"), "priority": 5}
    newcomer = job(**first, **OFTEN)(with_gates)


@job(**OFTEN)
def bulk_work(seconds: float) -> None:
    """An operation cancels it, makes it ready, or changes its priority."""
    leave_a_line()
    time.sleep(seconds)


@job(**OFTEN)
def bulk_dies(seconds: float, again: bool) -> None:
    """Dead until an operation replays it, and perhaps once more."""
    leave_a_line()
    time.sleep(seconds)
    run = current_run()
    assert run is not None
    if Job.objects.values_list("replays", flat=True).get(pk=run.job_id) <= again:
        raise Discard("as planned")


@job(backoff=SOON, max_crashes=50, max_attempts=50)
def guest(key: str, seconds: float) -> None:
    """A job of the database that is flushed."""
    note(".guests", "begin", key, os.getpid(), f"{time.time():.6f}")
    time.sleep(seconds)
    note(".guests", "end", key, os.getpid(), f"{time.time():.6f}")
