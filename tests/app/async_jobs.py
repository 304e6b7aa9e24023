"""Async handlers that the tests enqueue."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_jobs import Backoff, current_run, job

from .database_jobs import hold_with_a_connection
from .marks import mark
from .models import Effect

_here = 0
_complete: asyncio.Event | None = None


@job
async def meet(crowd: int, path: str) -> int:
    """Say on disk that it started, and wait until so many run at once, in this process."""
    global _here, _complete
    mark(path)
    _complete = _complete or asyncio.Event()
    _here += 1
    if _here >= crowd:
        _complete.set()
    await _complete.wait()
    return _here


@job
async def hold_async(path: str) -> str:
    """Say on disk that it started, and wait until it is let go or asked to stop."""
    mark(path)
    while not Path(f"{path}.go").exists():
        await asyncio.sleep(0.01)
    return "went on"


@job
async def hold_session(path: str) -> None:
    """:func:`hold_async` with a session that it has changed."""
    await sync_to_async(_set)(path)
    await hold_async.handler(path)


@job(timeout=1, max_attempts=1)
async def begin_late() -> float:
    """The seconds that it has."""
    run = current_run()
    assert run is not None
    assert run.deadline is not None
    return (run.deadline - datetime.now(UTC)).total_seconds()


@job
async def noop_async() -> None:
    """Nothing."""


@job
async def nap_async(seconds: float) -> None:
    """Await that long."""
    await asyncio.sleep(seconds)


@job
async def cancel_everything() -> None:
    """As some libraries do when they shut down."""
    for task in asyncio.all_tasks():
        task.cancel()


def _hold_upgrade(payload: dict[str, str]) -> dict[str, str]:
    path = payload["path"]
    mark(path)
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    return payload


@job(version=2, upgrades={1: _hold_upgrade})
async def upgraded_slowly(path: str) -> None:
    """A payload of version 1 is upgraded once ``path`` is let go."""


@job
async def block(path: str, seconds: float, deep: bool = False) -> None:
    """Hold up the loop, in a task of its own if it is deep."""
    mark(path)
    if deep:
        await asyncio.gather(_doze(seconds), asyncio.sleep(0))
    else:
        time.sleep(seconds)


async def _doze(seconds: float) -> None:
    time.sleep(seconds)


@job
async def keep_books(number: int) -> int:
    """Some rows through the ORM, with waits between them."""
    effect = await Effect.objects.acreate(note=f"book {number}")
    await asyncio.sleep(0.001)
    read = await Effect.objects.aget(pk=effect.pk)
    return int(read.note.removeprefix("book "))


@job
async def read_back(path: str) -> str:
    """Write a row, wait until it is let go, and read the row."""
    effect = await Effect.objects.acreate(note=path)
    await hold_async.handler(path)
    return (await Effect.objects.aget(pk=effect.pk)).note


@job(backoff=Backoff.fixed(0.1))
async def sleep_in_a_call(path: str) -> None:
    """Sleep in the database, in the first attempt."""
    run = current_run()
    assert run is not None
    if run.attempt == 1:
        await sync_to_async(_sleep)(path)


def _sleep(path: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        mark(path)
        cursor.execute("SELECT pg_sleep(600)")


@job
async def walk_and_write(notes: int) -> int:
    """Write in other threads while an open cursor keeps the session."""
    async for effect in Effect.objects.filter(note__startswith="page").aiterator():
        await asyncio.to_thread(Effect.objects.create, note=f"read {effect.pk}")
        notes -= 1
    return notes


@job
async def hold_in_thread(path: str) -> None:
    """Use the database in another thread than that of the ORM, and wait there."""
    await asyncio.to_thread(hold_with_a_connection.handler, path)


@job(max_attempts=1)
async def leave_task_behind(how: str) -> int:
    """Leave the session as no handler should. Returns the session's process."""
    return await sync_to_async(_leave)(how)


def _leave(how: str) -> int:
    with connection.cursor() as cursor:
        if how == "setting":
            cursor.execute("SET app.mine = 'left'")
        elif how == "transaction":
            transaction.set_autocommit(False)
            Effect.objects.create(note="not committed")
        elif how == "atomic":
            transaction.atomic().__enter__()
            Effect.objects.create(note="not committed")
        elif how == "error":
            cursor.execute("SELECT 1 / 0")
        elif how == "closed":
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@job
async def keep_session() -> bool:
    """A setting of one call is there in the next one, and nobody else's."""

    def read() -> tuple[str | None, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('app.mine', true)")
            setting = cursor.fetchone()[0]
            return setting, connection.connection.info.backend_pid

    run = current_run()
    assert run is not None
    before, _ = await sync_to_async(read)()
    mine = str(run.job_id)
    pid = await sync_to_async(_set)(mine)
    await asyncio.sleep(0.01)
    after = await sync_to_async(read)()
    return not before and after == (mine, pid)


def _set(setting: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SET app.mine = '{setting}'")
        pid: int = connection.connection.info.backend_pid
        return pid
