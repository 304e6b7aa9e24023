"""Makes the partitions of the next days, and drops those past their retention."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..conf import conf
from ..domain.durations import LONGEST_AGE
from ..domain.partitions import Period
from ..lifecycle import history
from ..lifecycle.dropping import drop
from ..lifecycle.history import JOBS, RUNS, TABLES, Partition, PartitionedTable
from ..lifecycle.pruning import ALL_JOBS, LIVE, runs_go_with_jobs
from ..models.database import database_time
from ..signals import worker_event
from .retention import longest_kept, rules_in_force, runs_kept


def keep_partitions() -> int:
    """Make the missing partitions, and drop at most one of each table; return how many changed.

    A role that does not own the tables may do neither: then the owner makes them by ``migrate``,
    and retention deletes rows.
    """
    if not history.owns_tables():
        return 0
    changed = make_due_partitions()
    with_runs = runs_go_with_jobs()
    # Runs with an age belong to live and dead jobs only, and to no job that has ended.
    keeps_runs_of = ALL_JOBS if with_runs else LIVE
    for table in TABLES:
        for partition in expired_partitions(table):
            if drop(partition, keeps_runs_of=keeps_runs_of, with_runs=with_runs):
                changed += 1
                fields = {"partition": partition.name}
                worker_event.send_robust("partition_dropped", level=logging.INFO, fields=fields)
    return changed


def make_due_partitions() -> int:
    """Make the missing partitions up to a week ahead, of the period that ``HISTORY`` states; return
    how many."""
    return history.make_partitions(Period(conf().history["partition"]))


def expired_partitions(table: PartitionedTable) -> list[Partition]:
    """The oldest partition, if all in it is past its retention."""
    rules = rules_in_force()
    expired = _expired(table, runs_kept(rules) if table is RUNS else longest_kept(rules))
    if table is JOBS or not runs_go_with_jobs():
        return expired
    # While a partition of jobs is in use it is not dropped, and their runs wait for it.
    jobs = history.partitions(JOBS)
    return [one for one in expired if not any(_overlap(one, other) for other in jobs)]


def _expired(table: PartitionedTable, kept: float | None) -> list[Partition]:
    if kept is None or kept >= LONGEST_AGE:
        return []
    over = database_time() - timedelta(seconds=kept)
    return [one for one in history.partitions(table)[:1] if one.end <= over]


def _overlap(one: Partition, other: Partition) -> bool:
    return one.start < other.end and other.start < one.end
