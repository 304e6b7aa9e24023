"""Makes the partitions of the next days, and drops those past their retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from django.db import DatabaseError, OperationalError

from ..conf import conf
from ..domain.maintenance import TaskParts
from ..domain.numbers import LONGEST_AGE
from ..domain.retention import Period, Span, missing
from ..lifecycle import history
from ..lifecycle.dropping import OF_LIVE_JOBS, WITH_JOBS, DropResult, KeptRuns, delete_others, drop
from ..lifecycle.history import JOBS, RUNS, TABLES, Partition, PartitionedTable
from ..lifecycle.pruning import Rules, runs_go_with_jobs
from ..models.database import database_time
from ..signals import emit
from .retention import BUDGET_SECONDS, longest_kept, rules_in_force, runs_kept

AGAIN_SECONDS = 3600.0
"""How long a partition is left alone that has to stay, once all else in it is deleted, or that
PostgreSQL refuses to drop, as if a view of the project reads it."""


class Partitions:
    """Makes and drops partitions. From run to run it remembers those that have to stay, because
    too many of their rows are kept for longer, and deletes their other rows."""

    def __init__(self, *, budget: float = BUDGET_SECONDS) -> None:
        self._budget = budget
        self._after: dict[str, int] = {}
        self._left_until: dict[str, float] = {}
        self._task_parts = TaskParts()

    def run_once(self) -> int:
        """Make the missing partitions, drop at most one of each table, and delete rows until the
        budget is spent; return how many partitions and rows changed.

        A role that does not own the tables may do neither: then the owner makes partitions by
        ``migrate``, and retention deletes rows. One without CREATE on the schema only drops.
        """
        state = history.state()
        if not state.owns:
            return 0
        deadline = time.monotonic() + self._budget
        parts: list[Callable[[], int]] = []
        there, rules = state.partitions, rules_in_force(queues=state.queues_keep)
        if state.creates and any(map(partial(_lacks_some, state), TABLES)):
            parts.append(make_due_partitions)
        if any(expired_among(there, table, rules, state.now) for table in TABLES):
            parts += [partial(self._drop_expired, table, deadline) for table in TABLES]
        return self._task_parts.run(parts)

    def _drop_expired(self, table: PartitionedTable, deadline: float) -> int:
        expired = expired_partitions(table)
        changed = int(self._drop_one(expired))
        for partition in expired:
            if partition.name in self._after and time.monotonic() < deadline:
                changed += self._delete_others(partition, deadline)
        return changed

    def _drop_one(self, expired: list[Partition]) -> bool:
        """Drop the oldest that need not stay. The others are not tried if it is in use: what reads
        one of them mostly reads all, and each try holds up others."""
        kept, with_runs = _kept_runs()
        for partition in self._not_left(expired):
            try:
                result = drop(partition, kept=kept, with_runs=with_runs)
            except DatabaseError as error:
                if not isinstance(error, OperationalError):  # the next try would be refused, too
                    self._left_until[partition.name] = time.monotonic() + AGAIN_SECONDS
                raise
            if result is DropResult.DROPPED:
                emit("partition_dropped", logging.INFO, partition=partition.name)
            if result is DropResult.KEEPS_MANY:
                self._after[partition.name] = 0
            elif result is not DropResult.GONE:
                return result is DropResult.DROPPED
        return False

    def _not_left(self, expired: list[Partition]) -> Iterator[Partition]:
        now = time.monotonic()
        for partition in expired:
            until = self._left_until.get(partition.name, now)
            if partition.name not in self._after and until <= now:
                yield partition

    def _delete_others(self, partition: Partition, deadline: float) -> int:
        kept, with_runs = _kept_runs()
        deleted = 0
        while True:
            after = self._after[partition.name]
            page = delete_others(partition, kept, after, with_runs=with_runs)
            deleted += page.deleted
            if page.next_after is None:
                del self._after[partition.name]
                self._left_until[partition.name] = time.monotonic() + AGAIN_SECONDS
                return deleted
            self._after[partition.name] = page.next_after
            if time.monotonic() >= deadline:
                return deleted


def _lacks_some(state: history.State, table: PartitionedTable) -> bool:
    spans = [Span(one.start, one.end) for one in state.partitions[table]]
    return bool(missing(Period(conf().history["partition"]), spans, state.now))


def make_due_partitions() -> int:
    """Make the missing partitions up to a week ahead, of the period that ``HISTORY`` states; return
    how many."""
    return history.make_partitions(Period(conf().history["partition"]))


def expired_partitions(table: PartitionedTable) -> list[Partition]:
    """The partitions in which all is past its retention, the oldest first."""
    there = {one: history.partitions(one) for one in TABLES}
    return expired_among(there, table, rules_in_force(), database_time())


def expired_among(
    there: Mapping[PartitionedTable, Sequence[Partition]],
    table: PartitionedTable,
    rules: Rules,
    now: datetime,
) -> list[Partition]:
    """Those of a table, of the partitions ``there``, in which all is past its retention."""
    kept = runs_kept(rules) if table is RUNS else longest_kept(rules)
    if kept is None or kept >= LONGEST_AGE:
        return []
    over = now - timedelta(seconds=kept)
    expired = [one for one in there[table] if one.end <= over]
    if table is JOBS or not runs_go_with_jobs():
        return expired
    # While a partition of jobs is in use it is not dropped, and their runs wait for it.
    return [one for one in expired if not any(one.overlaps(other) for other in there[JOBS])]


def _kept_runs() -> tuple[KeptRuns, bool]:
    """Which runs outlive their partition, and whether runs go with their job."""
    with_runs = runs_go_with_jobs()
    return WITH_JOBS if with_runs else OF_LIVE_JOBS, with_runs
