"""``Job.wait()`` and ``Job.await_end()``.

They look at the row, less and less often, so they need no worker that answers. They also ask the
workers to say when the job has ended, and then look at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from asgiref.sync import sync_to_async

from ..exceptions import JobsError
from ..lifecycle.notifying import ENDS_CHANNEL, ask_for_end, read_id
from ..logs import log_event
from ..models import Job, JobStatus
from ..models.database import DATABASE_ERRORS, jobs_connection

LINGER_SECONDS = 0.5
"""Seconds between two looks whether a caller still waits; if none does, the connection closes."""

Wake = Callable[[], None]


class EndListener:
    """A thread with a connection, which lives while a caller waits."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):  # the thread is not in the child
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Wake]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self, job_id: int, wake: Wake) -> Iterator[None]:
        """Call ``wake``, in any thread, at the end of the job. It may be missed: look as well."""
        with self._lock:
            self._waiting.setdefault(job_id, []).append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._waiting[job_id].remove(wake)
                if not self._waiting[job_id]:
                    del self._waiting[job_id]

    def ensure(self) -> None:
        """Start the thread, if it does not run: it ends without a database."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="django_jobs-ends", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        connection = jobs_connection()
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {ENDS_CHANNEL}")
            while self._is_needed():
                for notice in connection.connection.notifies(timeout=LINGER_SECONDS):
                    self._hear(notice.payload)
            with connection.cursor() as cursor:  # a pool may give the session to others
                cursor.execute(f"UNLISTEN {ENDS_CHANNEL}")
        except DATABASE_ERRORS as error:
            log_event("listen_for_ends_failed", logging.INFO, {"error": type(error).__name__})
        finally:
            with self._lock:
                if self._thread is threading.current_thread():  # after any error
                    self._thread = None
            with suppress(*DATABASE_ERRORS):
                connection.close()

    def _is_needed(self) -> bool:
        """Whether a caller waits. If none does, the next one starts another thread."""
        with self._lock:
            if not self._waiting:
                self._thread = None
            return bool(self._waiting)

    def _hear(self, payload: str) -> None:
        with self._lock:
            wakes = [
                wake
                for word in payload.split(",")
                if (job_id := read_id(word)) is not None
                for wake in self._waiting.get(job_id, ())
            ]
        for wake in wakes:
            wake()


listener = EndListener()


FIRST_LOOK, LONGEST_LOOK = 0.05, 1.0
"""Seconds until the second look at the row, and the most between two. Each pause doubles."""


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
