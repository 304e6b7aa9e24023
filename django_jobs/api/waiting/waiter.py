"""``Job.wait()`` and ``Job.await_end()``.

They look at the row, less and less often, so they need no worker that answers. They also ask the
workers to say when the job has ended, and then look at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from asgiref.sync import sync_to_async

from ...exceptions import JobsError
from ...lifecycle.notifying import ask_for_end
from ...models import Job, JobStatus
from ...models.database import jobs_connection
from .listener import listener

FIRST_LOOK, LONGEST_LOOK = 0.05, 1.0
"""Seconds until the second look at the row, and at most between two. Each pause is twice the one
before."""


def wait(job: Job, timeout: float | None) -> JobStatus:
    """Block this thread until the job has ended."""
    if _has_ended(job):
        return JobStatus(job.status)
    ended = threading.Event()
    with listener.listening(job.pk, ended.set):
        for pause in _pauses(job, timeout):
            if _look(job):
                break
            ended.wait(pause)
            ended.clear()
    return JobStatus(job.status)


async def await_end(job: Job, timeout: float | None) -> JobStatus:
    """Wait on the event loop, without a thread."""
    if await sync_to_async(_has_ended)(job):
        return JobStatus(job.status)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(ended.set)

    with listener.listening(job.pk, wake):
        for pause in _pauses(job, timeout):
            if await sync_to_async(_look)(job):
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause)
            ended.clear()
    return JobStatus(job.status)


def _pauses(job: Job, timeout: float | None) -> Iterator[float]:
    """How long to wait after each look. There is a look at the very end of the time."""
    ends_at = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_LOOK
    while True:
        left = pause if ends_at is None else ends_at - time.monotonic()
        if left <= 0:
            yield 0.0
            raise TimeoutError(f"{job} has not ended after {timeout:g} s; it is {job.status}")
        yield min(pause, left)
        pause = min(pause * 2, LONGEST_LOOK)


def _has_ended(job: Job) -> bool:
    """Whether the job had ended before the wait. Raises :class:`JobsError` if the transaction of
    the caller would never let it end, and ``Job.DoesNotExist`` if the job is not stored."""
    job.refresh_from_db()
    if job.is_live and jobs_connection().in_atomic_block:
        raise JobsError(
            f"{job} cannot be waited for in transaction.atomic(): until the commit, no worker sees "
            "what you enqueued. Wait after the block"
        )
    return job.is_final


def _look(job: Job) -> bool:
    """Ask for the news of the end, and whether it is there."""
    listener.ensure()
    ask_for_end(job.pk)
    job.refresh_from_db()
    return job.is_final
