"""The maintenance tasks that every worker has."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..api.pressure import pressure_of, read_resource
from ..conf import conf
from ..domain.maintenance import LeasesInDoubt, MaintenanceTask, TaskParts
from ..domain.pressure import Level, Pressure
from ..lifecycle import backlog, pausing, pruning, reaping, run_totals
from ..lifecycle.backlog import limited_queues, limited_resources, set_level
from ..lifecycle.backlog_samples import Past, Sample, past, ready_jobs, store
from ..lifecycle.claiming import START
from ..lifecycle.dead_letters import ANY_DEAD
from ..lifecycle.job_columns import QueuePosition
from ..lifecycle.operations import bulk, quarantines, workflows
from ..lifecycle.operations.quarantines import PAGE
from ..lifecycle.run_totals import BATCH, Look, batch_end, fold, look, writers
from ..lifecycle.signalling import send_job_signals
from ..models import Queue
from ..models.database import database_time
from ..signals import emit, queue_pressure_changed, resource_pressure_changed
from .bulk_operations import EVERY_SECONDS as BULK_SECONDS
from .bulk_operations import run_chunk
from .history import Partitions
from .retention import (
    ALL_SECONDS,
    EVERY_SECONDS,
    Retention,
    StoredFiles,
    prune_dead_letters,
    retention_asks,
)

FOLD_SECONDS = 5.0
OFTEN_ENOUGH = 0.7 * FOLD_SECONDS
"""Seconds for which the others leave new runs alone after one worker has added some."""

PATIENCE_SECONDS = 0.25
"""How long one run waits for those who write runs. The next one waits for the same."""

PAUSE_SECONDS = 0.01
EPOCH = datetime.fromtimestamp(0, UTC)


class Folding:
    """Knows up to which id all runs are committed, or for whom it waits to know that."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._asked = Look(0, 0, None, EPOCH)
        self._writers: list[str] = []

    def run_once(self) -> int:
        """Add a batch of new runs; return how many ids it had. One cheap statement if there are
        none, or if another worker has just added some."""
        seen = look()
        if not seen.folded < self._asked.last <= seen.last:
            if seen.last <= seen.folded or seen.age < OFTEN_ENOUGH:
                return 0
            self._asked, self._writers = seen, writers()
        if not self._are_committed():
            return 0
        upto = batch_end(seen, self._asked.last, BATCH)
        reached_at = self._asked.now if upto == self._asked.last else seen.reached_at
        return upto - seen.folded if fold(seen, upto, reached_at) else 0

    def _are_committed(self) -> bool:
        """Whether all who wrote runs when the last id was read have ended."""
        deadline = time.monotonic() + self.patience
        while self._writers:
            self._writers = writers(self._writers)
            if self._writers:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(PAUSE_SECONDS)
        return True


BUDGET_SECONDS = 0.1
"""Seconds for the scan of one queue in one run. The next run continues it."""

MOVING_SECONDS = 1.0
"""Seconds for a scan that finds jobs to block, because these slow down every claim until they are
blocked. The run is then repeated at once, after the schedules that are due by then."""


class Quarantining:
    """Scans the queues for one worker. The positions are kept from run to run."""

    def __init__(self, *, page: int = PAGE, budget: float = BUDGET_SECONDS) -> None:
        self.page = page
        self.budget = budget
        self.positions: dict[str, QueuePosition] = {}
        self._task_parts = TaskParts()

    def run_once(self) -> int:
        """Quarantine, block and unblock a batch of jobs. Returns how many rows changed."""
        return self._task_parts.run([quarantine_what_crashes, self._block, self._unblock])

    def _block(self) -> int:
        names = quarantines.in_force()
        changed = len(quarantines.spread(names))
        if names:
            changed += sum(map(self._walk, Queue.objects.names()))
        else:
            self.positions.clear()
        return changed

    def _unblock(self) -> int:
        return sum(quarantines.unblock(name, self.page) for name in quarantines.types_to_unblock())

    def _walk(self, queue: str) -> int:
        """Scan the head of the queue, where claims begin and jobs return to, then a part of the
        rest. Returns the number of blocked jobs."""
        started = time.monotonic()
        step = quarantines.block(queue, START, self.page)
        blocked = step.blocked
        position = self.positions.pop(queue, step.last)
        while step.is_full and time.monotonic() < started + (
            MOVING_SECONDS if step.blocked else self.budget
        ):
            step = quarantines.block(queue, position, self.page)
            blocked += step.blocked
            position = step.last
        if step.is_full:
            self.positions[queue] = position
        return blocked


def quarantining_asks() -> str:
    """The condition under which there may be something to do."""
    seconds = conf().quarantine["seconds"]
    if seconds is None:
        return quarantines.ANY
    return f"({quarantines.ANY} OR {quarantines.ANY_CRASH.format(seconds=float(seconds))})"


def quarantine_what_crashes() -> int:
    """Quarantine the job types that crashed as often as ``QUARANTINE`` states; return how many."""
    rule = conf().quarantine
    most, seconds = rule["crashes"], rule["seconds"]
    if most is None or seconds is None:
        return 0
    made = 0
    counted = [*quarantines.crashes(seconds).items()]
    random.shuffle(counted)  # the row of one may be locked
    for name, crashes in counted:
        if crashes.count >= most:
            reason = f"crashed {crashes.count} times in {seconds:g} s"
            if quarantines.quarantine(name, reason=reason, crashed_at=crashes.first, seconds=0.0):
                made += 1
                emit("job_type_quarantined", logging.ERROR, job_type=name, reason=reason)
    return made


def maintenance_tasks() -> list[MaintenanceTask]:
    """New instances of all maintenance tasks. Each remembers where it stopped. ``SWEEP_SECONDS``
    bounds how late a job of a lost worker is taken over."""
    sweep, minute = conf().sweep_seconds, EVERY_SECONDS
    leases, retention = Reaping(), Retention()
    rows: list[tuple[str, float, int, Callable[[], int], str]] = [
        ("reaping", sweep, reaping.BATCH, leases.run_once, reaping.ANY_LOST),
        ("dead_letters", minute, pruning.PAGE, prune_dead_letters, ANY_DEAD),
        ("retention", minute, pruning.PAGE, retention.run_once, retention_asks()),
        ("old_rows", ALL_SECONDS, pruning.PAGE, retention.run_once, ""),
        ("partitions", minute, 1, Partitions().run_once, ""),
        ("quarantining", sweep, quarantines.PAGE, Quarantining().run_once, quarantining_asks()),
        ("cancels", sweep, 1, workflows.finish_cancel, workflows.ANY_CANCEL),
        ("bulk_operations", BULK_SECONDS, 2, run_chunk, bulk.ANY_UNFINISHED),
        ("slots", sweep, pausing.BATCH, pausing.give_up_slots_of_closed, pausing.ANY_SLOT),
        ("pauses", sweep, 1_000, end_pauses, pausing.ANY_ENDED),
        ("pressure", sweep, 1_000, watch_pressure, backlog.ANY_LIMITED),
    ]
    if conf().totals:
        rows += [
            ("totals", FOLD_SECONDS, run_totals.BATCH, Folding().run_once, run_totals.ANY_NEW),
            ("backlog_samples", SAMPLE_SECONDS, 1_000_000, sample_backlogs, ""),
        ]
    if conf().storage is not None:
        rows += [("stored_files", minute, 50, StoredFiles().run_once, "")]
    first, *others = [
        MaintenanceTask(name=name, every=every, batch=batch, run_once=run_once, asks=asks)
        for name, every, batch, run_once, asks in rows
    ]
    return [replace(first, rested=leases.note_time), *others]


def end_pauses() -> int:
    """Resume what was paused until a time that has passed; return how many."""
    from ..api.closing import resume_ended  # here, because it imports the operations on all kinds

    resumed = resume_ended()
    for kind, name in resumed:
        emit("pause_ended", logging.INFO, kind=kind, name=name)
    return len(resumed)


CLOCK_GRACE = timedelta(seconds=2)
"""How far the database's clock may get ahead of this process's between two sweeps. It is less than
what is left of a lease when its next heartbeat is due, and more than what an answer takes."""


class Reaping:
    """Knows what time the database had at the last sweep.

    If the server stood still while its connections survived, or its clock jumped, all leases have
    run out, but no worker is lost. The clock of this process shows that: it is asked only how much
    time has passed, so it need not be right.
    """

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None

    def note_time(self, now: datetime, asked_at: float) -> None:
        """Note the database's time at which no lease was over. ``asked_at`` was before."""
        self._last = now, asked_at

    def run_once(self) -> int:
        """Declare workers lost, settle one batch of abandoned jobs and send their signals; return
        how many. Raises :class:`LeasesInDoubt`, and takes nothing from anybody, if the database's
        clock is further than it can be."""
        if self._last is None:
            asked_at = time.monotonic()
            self._last = database_time(), asked_at
        then, passed_since = self._last
        asked_at = time.monotonic()
        expected = then + timedelta(seconds=asked_at - passed_since)
        now, abandoned = reaping.declare_lost(latest=expected + CLOCK_GRACE)
        self._last = now, asked_at
        if now > expected + CLOCK_GRACE:
            raise LeasesInDoubt((now - expected).total_seconds())
        settled = reaping.settle_abandoned() if abandoned else []
        send_job_signals(settled)
        return len(settled)


def watch_pressure() -> int:
    """Compare the level of each queue that has a ``max_backlog``, and of each resource that has a
    ``max_waiting``, with that of the last look, by any worker, and send ``queue_pressure_changed``
    or ``resource_pressure_changed`` for each other one; return how many."""
    changed = 0
    for queue, before, found in limited_queues():
        if found.level != before and set_level("queue", queue, before, found.level):
            now = pressure_of(queue, found)
            emit("queue_pressure_changed", _level(now), queue=queue, **_fields(before, now))
            queue_pressure_changed.send_robust(
                queue, queue=queue, level=now.level, previous=before, pressure=now
            )
            changed += 1
    for name, before, level in limited_resources():
        if level != before and set_level("resource", name, before, level):
            now = replace(read_resource(name), level=level)
            emit("resource_pressure_changed", _level(now), resource=name, **_fields(before, now))
            resource_pressure_changed.send_robust(
                name, resource=name, level=level, previous=before, pressure=now
            )
            changed += 1
    return changed


def _level(pressure: Pressure) -> int:
    return logging.INFO if pressure.level == "ok" else logging.WARNING


def _fields(previous: Level, pressure: Pressure) -> dict[str, Any]:
    return {
        "pressure": pressure.level,
        "previous": previous,
        "ready": pressure.ready,
        "gated": pressure.gated,
        "oldest_seconds": pressure.oldest_seconds,
        "drain_seconds": pressure.drain_seconds,
    }


SAMPLE_SECONDS = 60.0
RECENT_SECONDS = 0.7 * SAMPLE_SECONDS


def sample_backlogs() -> int:
    """Store the ready jobs of each queue with the forecast for them, unless another worker has;
    return how many."""
    if not (found := ready_jobs(RECENT_SECONDS)):
        return 0
    known = past()
    samples = [
        Sample(queue, ready, one.running, one.runs, _forecast(one, ready))
        for queue, ready in found.items()
        if (one := known.get(queue))
    ]
    return store(samples, RECENT_SECONDS) if samples else 0


def _forecast(known: Past, ready: int | None) -> float | None:
    return None if ready is None else known.drain_seconds(ready)
