"""Listens for hints that there is work. Workers poll as well. Passes on the ends for which callers
wait with ``Job.wait()``, in any process."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from django.db import OperationalError, connections

from ..conf import conf
from ..domain.states import FINAL
from ..lifecycle.notifying import AWAITED, CHANNEL, NOTIFY, notify_ends, read_id
from ..lifecycle.settling import Settled
from ..models.database import DATABASE_ERRORS
from .connections import drop_connection, is_out_of_connections, own_connection, with_session
from .events import emit


class WakeEvent:
    """Like ``threading.Event`` for one waiting thread, but waking up clears it in the same step."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_set = False

    def set(self) -> None:
        """Wake the waiting thread, or end its next wait."""
        with self._condition:
            self._is_set = True
            self._condition.notify()

    def wait(self, seconds: float) -> bool:
        """Wait for at most ``seconds``. Returns whether the event was set."""
        with self._condition:
            if not self._is_set:
                self._condition.wait(seconds)
            was_set, self._is_set = self._is_set, False
            return was_set


SELF_TEST_SECONDS = 2.0
ALIVE_SECONDS, MAKE_WAY_SECONDS = 30.0, 1.0
LONGEST_PAUSE = 10.0
RETEST_SECONDS, LONGEST_RETEST = 30.0, 600.0
"""Seconds until a silent connection is tested: the machine may have been suspended."""


class Wakeup:
    """A thread with its own connection that calls ``on_notify`` for each hint, and with None if
    hints may have been missed; and ``note`` with whether they arrive. Any session may send a
    NOTIFY, so ``on_notify`` ignores unknown ones."""

    def __init__(
        self,
        on_notify: Callable[[str | None], None],
        after: threading.Event | None = None,
        makes_way: Callable[[], bool] = lambda: False,
        note: Callable[[bool], None] = lambda listens: None,
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="django_jobs-wakeup", daemon=True)
        self._worked = self._has_warned = False
        self._on_notify = on_notify
        self._after = after
        self._makes_way = makes_way
        self._note = note
        self._test = f":test:{os.getpid()}:{random.getrandbits(64)}"

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait()
        own_connection()
        pause, retest = 0.1, RETEST_SECONDS
        while True:
            while self._makes_way():
                self._note(False)
                drop_connection()
                time.sleep(MAKE_WAY_SECONDS)
            try:
                raw = self._listen()
                self._note(raw is not None)
                if raw is None:
                    time.sleep(retest)
                    retest = min(retest * 2, LONGEST_RETEST)
                    continue
                pause = 0.1
                self._on_notify(None)  # notifications may have been missed
                self._receive(raw)
            except DATABASE_ERRORS:
                self._note(False)
                drop_connection()
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 — jitter
                pause = min(pause * 2, LONGEST_PAUSE)

    def _listen(self) -> Any | None:
        """A connection that receives notifications; None if this one does not."""
        connection = connections[conf().database]
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        try:
            self._notify_ourselves()
        except DATABASE_ERRORS as error:
            if not is_out_of_connections(error):
                raise
            return connection.connection  # untested: a test would need another connection
        raw = connection.connection
        until = time.monotonic() + SELF_TEST_SECONDS
        while (left := until - time.monotonic()) > 0:
            for notice in raw.notifies(timeout=left, stop_after=1):
                if notice.payload == self._test:
                    self._worked = True
                    return raw
        if self._worked:
            raise OperationalError("a test notification did not arrive")
        if not self._has_warned:
            self._has_warned = True
            # A pooler in transaction mode accepts LISTEN and never delivers.
            emit(
                "listen_fails",
                logging.WARNING,
                reason="a test notification did not arrive; is there a pooler in transaction mode? "
                "Polling continues, more slowly",
            )
        drop_connection()
        return None

    def _notify_ourselves(self) -> None:
        """Send a test notification from another connection: an idle pooler may give one client the
        same session twice, and a session's own notification arrives with the answer."""
        other = connections[conf().database].copy()
        try:
            other.ensure_connection()
            with_session(other.connection)
            with other.cursor() as cursor:
                cursor.execute(NOTIFY, [CHANNEL, self._test])
        finally:
            other.close()

    def _receive(self, raw: Any) -> None:
        received_at = time.monotonic()
        while not self._makes_way():
            for notice in raw.notifies(timeout=MAKE_WAY_SECONDS):
                received_at = time.monotonic()
                self._on_notify(notice.payload)
            # A broken idle connection fails only when it is used.
            if time.monotonic() > received_at + ALIVE_SECONDS:
                raw.execute("SELECT 1")
                received_at = time.monotonic()


REMEMBER_SECONDS = 10.0
"""Those who wait ask again every second."""
MOST = 10_000


class AwaitedEnds:
    """Filled by the thread that listens, read by the settler. Falsy if nobody waits."""

    def __init__(self) -> None:
        self._asked: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def note(self, hint: str) -> None:
        job_id = read_id(hint.removeprefix(AWAITED))
        if job_id is None:
            return
        if len(self._asked) >= MOST:
            self._forget()
        if len(self._asked) < MOST:
            self._asked[job_id] = time.monotonic()

    def notify(self, settled: Iterable[Settled]) -> None:
        ended = [
            one.ending.job.id
            for one in settled
            if one.decision is not None
            and one.decision.status in FINAL
            and self._asked.pop(one.ending.job.id, None) is not None
        ]
        if ended:
            notify_ends(ended)
        self._forget()

    def _forget(self) -> None:
        before = time.monotonic() - REMEMBER_SECONDS
        for job_id, asked_at in list(self._asked.items()):
            if asked_at < before:
                self._asked.pop(job_id, None)
