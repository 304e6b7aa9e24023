"""Hears from the workers that jobs have ended, for all that wait in this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ...lifecycle.notifying import ENDS_CHANNEL, read_id
from ...logs import log_event
from ...models.database import DATABASE_ERRORS, jobs_connection

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
        """Call ``wake``, in any thread, when a worker says that the job has ended. It may be
        missed, so the caller looks as well."""
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
