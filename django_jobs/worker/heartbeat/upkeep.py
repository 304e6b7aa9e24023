"""The thread of the heartbeat process that fires schedules and runs maintenance tasks, and what is
due for it when.

Both share one connection, to save connections on a small server. A statement that has to wait,
usually for a lock on a whole table, delays later work by at most its deadline.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.db import connections

from ...conf import conf
from ...domain.maintenance import LeasesInDoubt, MaintenanceTask
from ...domain.numbers import NEVER
from ...lifecycle.notifying import CHANNEL, OPERATIONS, QUARANTINED, SCHEDULES
from ...lifecycle.schedules.due import any_within
from ...models.database import DATABASE_ERRORS, fetch
from ..connections import close_others, drop_connection, is_disconnected, own_connection, ping
from ..events import emit_throttled
from ..ipc.scoreboard import Scoreboard
from ..options import Options
from ..poller import LINGER_SECONDS
from ..statement_timeout import StatementTimeout

SHORTEST_GRACE = 2.0
"""Seconds. A failed heartbeat is repeated twice a second."""

ASKED_SECONDS = 5.0
"""How long no task with nothing to do is asked again, so that one statement asks all; or
``SWEEP_SECONDS``, if that is less."""


class TaskRunner:
    """Runs the tasks that are due, one bounded part at a time."""

    def __init__(self, tasks: Sequence[MaintenanceTask], options: Options) -> None:
        self._tasks = tasks
        self._grace = max(2 * options.beat, SHORTEST_GRACE)
        self._due = {task.name: 0.0 for task in tasks}
        self._together = min(ASKED_SECONDS, conf().sweep_seconds)
        self._answered: set[str] = set()
        self._waits_until = 0.0

    def wait_for_beats(self) -> None:
        """Postpone the tasks until live workers had two heartbeats to renew: if the database was
        away or stood still for longer than a lease, its clock jumped, or the machine was suspended,
        all leases have run out, but no worker is lost. Their order stays: one that always loses the
        connection would come before the others each time."""
        self._waits_until = time.monotonic() + self._grace

    def bring_forward(self, name: str) -> None:
        """Run the task with this name next, if there is one. There is something to do."""
        if name in self._due:
            self._due[name] = 0.0
            self._answered.add(name)

    def next_in(self) -> float:
        """Seconds until a task is due."""
        now = time.monotonic()
        due = min(self._due.values(), default=now + 60)
        return max(max(due, self._waits_until) - now, 0.0)

    def run_one(self) -> None:
        """Run a part of the task that is due for longest, if any. Raises the database's errors."""
        task = min(self._tasks, key=lambda task: self._due[task.name], default=None)
        now = time.monotonic()
        if task is None or now < max(self._due[task.name], self._waits_until):
            return
        if task.asks and task.name not in self._answered:
            self._ask_all(now)
            return
        self._answered.discard(task.name)
        self._due[task.name] = now + _jittered(task.every)
        try:
            if task.has_more(task.run_once()):
                self._due[task.name] = now  # after the others that are due
                self._answered.add(task.name)
        except LeasesInDoubt as doubt:
            self._due[task.name] = now  # its turn was none
            seconds = round(doubt.seconds, 1)
            emit_throttled("database_clock_jumped", logging.WARNING, seconds=seconds)
            self.wait_for_beats()
        except DATABASE_ERRORS as error:
            text = f"{type(error).__name__}: {error}"
            emit_throttled("maintenance_failed", logging.WARNING, task=task.name, error=text)
            raise
        except Exception as error:  # an error in one task must not end the others
            emit_throttled("maintenance_failed", logging.ERROR, task=task.name, error=repr(error))

    def _ask_all(self, now: float) -> None:
        """Ask those due now or soon; put off what has nothing to do. If that fails, each runs."""
        asking = [
            task
            for task in self._tasks
            if task.asks
            and task.name not in self._answered
            and self._due[task.name] <= now + self._together
        ]
        answers: Sequence[bool] = [True] * len(asking)
        try:
            asks = ", ".join(task.asks for task in asking)
            ((read_at, *answers),) = fetch(f"SELECT statement_timestamp(), {asks}", {})
        finally:
            jitter = _jittered(1.0)
            for task, has_work in zip(asking, answers, strict=True):
                if has_work:
                    self._answered.add(task.name)
                    continue
                self._due[task.name] = now + jitter * max(task.every, self._together)
                if task.rested is not None:
                    task.rested(read_at, now)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.9, 1.0)  # noqa: S311 — no secret


Look = Callable[[], float]
"""Fires the due schedules, and returns the most seconds until the next look."""


class Scheduler:
    """Looks at the next known due time, after a hint that a schedule was changed, and at every
    poll; where notifications arrive every ``SWEEP_SECONDS``, unless the question to all tasks said
    meanwhile that nothing is due soon. Without ``look`` it does nothing."""

    def __init__(self, look: Look | None, scoreboard: Scoreboard, poll: float) -> None:
        self.enabled = look is not None
        self._look = look
        self._scoreboard = scoreboard
        self._poll = poll
        self._quiet = max(poll, conf().sweep_seconds)
        self._hinted = False
        self._next = self._sweep = 0.0

    @property
    def task(self) -> MaintenanceTask:
        """The part of the question to all tasks."""
        return MaintenanceTask(
            name="schedules",
            every=self._quiet,
            batch=1,
            run_once=self._look_now,
            asks=any_within(2 * self._quiet),
            rested=self._rest,
        )

    def _look_now(self) -> int:
        self._sweep = 0.0
        return 0

    def _rest(self, _: datetime, asked_at: float) -> None:
        self._scoreboard.status.schedules_seen_at = asked_at
        self._sweep = asked_at + 2 * self._quiet

    def next_in(self) -> float:
        """Seconds until the next look."""
        if not self.enabled:
            return float("inf")
        return max(min(self._next, self._sweep) - time.monotonic(), 0.0)

    def hint(self) -> None:
        """A schedule was changed. One hint may stand for several, because NOTIFY is throttled."""
        self._next, self._hinted = 0.0, True

    def look_if_due(self) -> None:
        """Look if it is due. Raises the database's errors, and is then due in a poll."""
        if self._look is None or self.next_in() > 0:
            return
        pause = self._poll
        hears = any(slot.listens for slot in self._scoreboard.slots)
        longest = NEVER if hears else self._poll
        if self._hinted:
            self._hinted, longest = False, LINGER_SECONDS
        try:
            pause = min(self._look(), longest)
            self._scoreboard.status.schedules_seen_at = time.monotonic()
        finally:
            now = time.monotonic()
            self._next, self._sweep = now + pause, now + self._quiet


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
