"""Makes the partitions of the next days, and drops those past their retention."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..conf import conf
from ..domain.durations import LONGEST_AGE, seconds_of
from ..domain.partitions import Period
from ..lifecycle import history
from ..lifecycle.history import JOBS, RUNS, Partition, PartitionedTable
from ..lifecycle.pruning import LIVE, runs_go_with_jobs
from ..models.database import database_time
from ..signals import worker_event
from .retention import longest_kept, rules_in_force

ALL_JOBS = "django_jobs_job"


def keep_partitions() -> int:
    """Make the missing partitions, and drop at most one of each table; return how many changed.

    A role that does not own the tables may do neither: then the owner makes them by ``migrate``,
    and retention deletes rows.
    """
    if not history.owns_tables():
        return 0
    changed = make_due_partitions()
    for partition in expired_partitions():
        # Runs with an age belong to live and dead jobs only, and to no job that has ended.
        if history.drop(partition, keeps_runs_of=ALL_JOBS if runs_go_with_jobs() else LIVE):
            changed += 1
            fields = {"partition": partition.name}
            worker_event.send_robust("partition_dropped", level=logging.INFO, fields=fields)
    return changed


def make_due_partitions() -> int:
    """Make the missing partitions up to a week ahead, of the period that ``HISTORY`` states; return
    how many."""
    return history.make_partitions(Period(conf().history["partition"]))


def expired_partitions() -> list[Partition]:
    """The oldest partition of jobs and that of runs, if all in it is past its retention."""
    jobs = longest_kept(rules_in_force())
    own = seconds_of(conf().retention["runs"])
    runs = jobs if runs_go_with_jobs() else own
    return [*_expired(JOBS, jobs), *_expired(RUNS, runs)]


def _expired(table: PartitionedTable, kept: float | None) -> list[Partition]:
    if kept is None or kept >= LONGEST_AGE:
        return []
    over = database_time() - timedelta(seconds=kept)
    return [one for one in history.partitions(table)[:1] if one.end <= over]
