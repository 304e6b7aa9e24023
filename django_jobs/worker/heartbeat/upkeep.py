"""The thread of the heartbeat process that fires schedules and runs maintenance tasks.

Both share one connection, to save connections on a small server. A statement that has to wait,
usually for a lock on a whole table, delays later work by at most its deadline.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

from ...conf import conf
from ...domain.maintenance import MaintenanceTask
from ...lifecycle.notifying import CHANNEL, OPERATIONS, QUARANTINED, SCHEDULES
from ...models.database import DATABASE_ERRORS
from ..connections import close_others, drop_connection, is_disconnected, own_connection, ping
from ..events import emit_throttled
from ..ipc.scoreboard import Scoreboard
from ..options import Options
from ..statement_timeout import StatementTimeout
from .maintenance import Look, Scheduler, TaskRunner

TASKS = {QUARANTINED: "quarantining", OPERATIONS: "bulk_operations"}
"""The maintenance task that a hint brings forward."""

MAKE_WAY_SECONDS = 1.0
"""Seconds between two checks whether the heartbeat or a settler needs the connection more."""


class Upkeep:
    """Fires schedules, then runs a part of one maintenance task, also if they failed; sleeps."""

    def __init__(
        self,
        tasks: Sequence[MaintenanceTask],
        look: Look | None,
        scoreboard: Scoreboard,
        options: Options,
    ) -> None:
        self.thread = threading.Thread(target=self.run, name="django_jobs-upkeep", daemon=True)
        self.deadline = StatementTimeout()
        self._scheduler = Scheduler(look, scoreboard, options.poll)
        asked = [self._scheduler.task] if look is not None else []
        self._tasks = TaskRunner([*tasks, *asked], options)
        self._scoreboard = scoreboard
        self._patience = options.beat
        self._grants_grace = True
        self._connected = False

    def run(self) -> None:
        own_connection()
        self.deadline.watch()
        while True:
            self.turn()

    def turn(self) -> None:
        """Run once what is due, unless others of the tree lack the connection for running jobs."""
        if self._scoreboard.is_short:
            self._connected = False
            drop_connection()
            time.sleep(MAKE_WAY_SECONDS)
            return
        looked = self._do(self._scheduler.look_if_due, _schedules_failed)
        done = self._do(self._tasks.run_one, _task_failed)
        close_others()
        if not (looked and done and self._do(self._sleep, _database_failed)):
            time.sleep(random.uniform(0.2, 0.5))  # noqa: S311 — jitter

    def _do(self, work: Callable[[], None], failed: Callable[[int, str], None]) -> bool:
        try:
            self._connect()
            work()
        except DATABASE_ERRORS as error:
            # Without the database the workers could not renew their leases either. If it refuses
            # a statement, or a lock is in the way, they could.
            self._grants_grace = self._grants_grace or is_disconnected()
            emit_failure = failed if self._connected else _database_failed
            self._connected = False
            drop_connection()
            emit_failure(logging.WARNING, f"{type(error).__name__}: {error}")
        except Exception as error:  # later schedules must be fired after any error
            failed(logging.ERROR, repr(error))
        else:
            return True
        return False

    def _connect(self) -> None:
        if self._connected:
            return
        ping()
        if self._scheduler.enabled:
            with connections[conf().database].cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
            self._scheduler.hint()  # notifications may have been missed
        self._connected = True
        if self._grants_grace:
            self._grants_grace = False
            self._tasks.wait_for_beats()

    def _sleep(self) -> None:
        """Sleep until something is due or a schedule was changed."""
        asked = min(self._scheduler.next_in(), self._tasks.next_in(), MAKE_WAY_SECONDS)
        if asked <= 0:
            return
        steady, wall = time.monotonic(), time.time()
        if self._scheduler.enabled:
            self._listen(asked)
        else:
            time.sleep(asked)
        # This process or its machine may have been suspended. The monotonic clock shows the first,
        # the other clock the second. The workers have had no time to renew either.
        slept = max(time.monotonic() - steady, time.time() - wall)
        if slept > asked + self._patience:
            self._tasks.wait_for_beats()

    def _listen(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        raw: Any = connections[conf().database].connection
        while (left := until - time.monotonic()) > 0:
            for notice in raw.notifies(timeout=left, stop_after=1):
                if notice.payload == SCHEDULES:
                    self._scheduler.hint()
                    return
                if notice.payload in TASKS:
                    self._tasks.bring_forward(TASKS[notice.payload])
                    return


def _database_failed(level: int, error: str) -> None:
    emit_throttled("database_error", level, what="schedules and maintenance tasks", error=error)


def _schedules_failed(level: int, error: str) -> None:
    emit_throttled("schedules_failed", level, error=error)


def _task_failed(level: int, error: str) -> None:
    emit_throttled("maintenance_failed", level, error=error)
