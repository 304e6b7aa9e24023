"""Handlers that use processor time, memory and queries."""

from __future__ import annotations

import asyncio
import time

from asgiref.sync import sync_to_async
from django.db import connection

from django_jobs import job

from .models import Effect


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _query(times: int) -> None:
    with connection.cursor() as cursor:
        for _ in range(times):
            cursor.execute("SELECT pg_sleep(0.01)")


@job
def use(seconds: float = 0.0, queries: int = 0, sleep: float = 0.0) -> None:
    """Uses this much processor time and so many queries of 10 ms."""
    time.sleep(sleep)
    _burn(seconds)
    _query(queries)


@job(max_attempts=1)
def use_and_fail(queries: int) -> None:
    """Fails after its queries."""
    _query(queries)
    raise ValueError("as asked")


@job
async def use_on_loop(queries: int) -> None:
    """Half of its queries by the ORM, half in calls of its own."""
    for _ in range(queries // 2):
        await Effect.objects.acount()
    await asyncio.gather(*(sync_to_async(_query)(1) for _ in range(queries // 2)))


@job(isolated=True)
def use_alone(seconds: float, megabytes: int) -> int:
    """Uses time and memory in a process of its own."""
    held = b"x" * (megabytes * 1_048_576)
    _burn(seconds)
    return len(held)


@job(delivery="exactly_once")
def use_once(queries: int) -> None:
    """Its settle is in the transaction of the handler."""
    _query(queries)
