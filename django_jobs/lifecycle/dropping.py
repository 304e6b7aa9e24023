"""succeeded, cancelled -> gone.

Drops a partition of the history, or of runs, after its retention. If too many of its rows are kept
for longer, the others are deleted by page and the partition stays.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from django.db import DatabaseError, ProgrammingError

from ..models.database import NO_TABLE, execute, is_canceled, sqlstate_of
from .history import (
    JOBS,
    MOMENT,
    RUNS,
    Partition,
    ends_of_newest,
    execute_with_names,
    fetch_with_names,
    in_a_moment,
    with_names,
)
from .pruning import ALL_JOBS, LIVE, PAGE, WITHOUT_PARTITION, Page, delete_expired

MOST_KEPT = 2_000
"""Rows that are copied to the default partition while settles wait for the lock: 0.03 s if each has
1 kB. Each is read again under a lock whenever a partition is made."""

LIMIT_COPY = f"SET LOCAL statement_timeout = {int(MOMENT * 1000)}"
"""2,000 rows with tracebacks of 20 kB took 1.6 s."""
LIMIT_NO_LONGER = "SET LOCAL statement_timeout TO DEFAULT"

DETACH = "ALTER TABLE {table} DETACH PARTITION {name}"
DROP = "DROP TABLE {name}"

PRUNE_PROGRESS = """
DELETE FROM django_jobs_progress WHERE job_id = ANY(ARRAY(
    SELECT job.id FROM django_jobs_progress AS progress JOIN {name} AS job
        ON job.id = progress.job_id AND job.workflow_run_id IS NULL
    LIMIT %(page)s))
"""
PRUNE_RECEIPTS = """
DELETE FROM django_jobs_receipt WHERE id = ANY(ARRAY(
    SELECT receipt.id FROM django_jobs_receipt AS receipt JOIN {name} AS job
        ON job.id = receipt.job_id AND job.workflow_run_id IS NULL
    LIMIT %(page)s))
"""
PRUNE_RUNS = """
DELETE FROM django_jobs_run_default WHERE id = ANY(ARRAY(
    SELECT run.id FROM django_jobs_run_default AS run JOIN {name} AS job
        ON job.id = run.job_id AND job.workflow_run_id IS NULL
    LIMIT %(page)s))
"""

# The steps of workflows stay as long as their run. There is an index on them.
COUNT_STEPS = """
SELECT count(*) FROM (
    SELECT 1 FROM {name} WHERE workflow_run_id IS NOT NULL LIMIT %(most)s) AS steps
"""
KEEP_STEPS = """
INSERT INTO django_jobs_job_history_default SELECT * FROM {name} WHERE workflow_run_id IS NOT NULL
"""
DELETE_JOBS = f"""
WITH page AS MATERIALIZED (
    SELECT id FROM {{name}} WHERE id > %(after)s ORDER BY id LIMIT %(page)s
), expired AS MATERIALIZED (
    SELECT job.id FROM {{name}} AS job
    WHERE job.id = ANY(ARRAY(SELECT id FROM page)) AND job.workflow_run_id IS NULL
    FOR UPDATE OF job SKIP LOCKED
), {delete_expired("{name}")}
SELECT (SELECT count(*) FROM jobs), max(id), count(*) FROM page
"""

# A run that succeeded ended its job at the same moment, so their partitions end together. Any other
# run may be of a job that ended later, or of one that is live or dead. OFFSET 0 makes an index
# search of each job, where the planner might read the whole table.
UNSUCCESSFUL_RUNS = """
WITH page AS MATERIALIZED (
    SELECT id, job_id FROM {name}
    WHERE id > %(after)s::bigint AND id <= %(after)s::bigint + %(window)s
      AND outcome <> 'succeeded'
    ORDER BY id
    LIMIT %(page)s
)
SELECT CASE WHEN count(*) < %(page)s THEN %(after)s::bigint + %(window)s ELSE max(id) END, ARRAY(
    SELECT id FROM page
    WHERE EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = page.job_id OFFSET 0))
FROM page
"""
IDS = "SELECT coalesce(min(id) - 1, 0), coalesce(max(id), 0) FROM {name}"
ALL_RUNS = """
WITH page AS MATERIALIZED (
    SELECT id FROM {all_of} WHERE id > %(after)s ORDER BY id LIMIT %(page)s
)
SELECT max(id), ARRAY(
    SELECT id FROM {name} WHERE job_id = ANY(ARRAY(SELECT id FROM page)))
FROM page
"""
LATE_RUNS = """
SELECT id FROM {name} AS run
WHERE id > %(after)s
  AND (EXISTS (SELECT 1 FROM {all_of} AS job WHERE job.id = run.job_id OFFSET 0)
       OR outcome <> 'succeeded'
          AND EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = run.job_id OFFSET 0))
"""
DELETE_RUNS = """
WITH page AS MATERIALIZED (
    SELECT id, job_id, outcome FROM {name} WHERE id > %(after)s ORDER BY id LIMIT %(page)s
), gone AS (
    DELETE FROM {name} WHERE id = ANY(ARRAY(
        SELECT id FROM page
        WHERE NOT EXISTS (SELECT 1 FROM {all_of} AS job WHERE job.id = page.job_id OFFSET 0)
          AND (outcome = 'succeeded' OR NOT EXISTS (
            SELECT 1 FROM {jobs} AS job WHERE job.id = page.job_id OFFSET 0))))
    RETURNING id
)
SELECT (SELECT count(*) FROM gone), max(id), count(*) FROM page
"""
KEEP = "INSERT INTO django_jobs_run_default SELECT * FROM {name} WHERE id = ANY(%(ids)s::bigint[])"

WINDOW = 200_000
"""Ids that one statement looks through for runs without success. Without a bound it would read all
of a partition in which nothing failed: 4 s with 4,000,000 runs, where a worker ends it after 5."""

NEWEST = 200
"""Runs that are examined under the lock. A transaction that was open before may have inserted them;
ids follow the time, so they are among the last."""


class DropResult(StrEnum):
    """What became of a partition. True if it was dropped."""

    DROPPED = "dropped"
    IN_USE = "in use"
    KEEPS_MANY = "keeps many"
    """Too many of its rows are kept for longer."""
    GONE = "gone"
    """Another session has dropped it."""

    def __bool__(self) -> bool:
        return self is DropResult.DROPPED


class KeptRuns(NamedTuple):
    """Which runs outlive their partition: unsuccessful ones of one table, all of another one."""

    jobs: str
    all_of: str


WITH_JOBS = KeptRuns(ALL_JOBS, WITHOUT_PARTITION)
"""Runs go with their job. Only steps and jobs without a partition outlive the time of a success."""
OF_LIVE_JOBS = KeptRuns(LIVE, LIVE)
"""Runs have an age of their own, and it is over."""
OF_KEPT_JOBS = KeptRuns(LIVE, WITHOUT_PARTITION)
"""Runs are in a file, as are all jobs but these."""


def drop(
    partition: Partition, *, kept: KeptRuns = WITH_JOBS, with_runs: bool = False
) -> DropResult:
    """Drop a partition with its rows, unless it is in use, or has more than ``MOST_KEPT`` steps of
    workflows or ``kept`` runs. Up to this number, they move to the default partition.

    With a partition of jobs go their progress and receipts, and ``with_runs`` also those of their
    runs that are in the default partition. These are deleted before the lock is requested, so a
    partition that is in use may have jobs that have lost them. Their retention is over.
    """
    try:
        if partition.table is RUNS:
            return _drop_runs(partition, kept)
        return _drop_jobs(partition, with_runs=with_runs)
    except ProgrammingError as error:
        if sqlstate_of(error) == NO_TABLE:
            return DropResult.GONE
        raise


def delete_others(partition: Partition, kept: KeptRuns, after: int, *, with_runs: bool) -> Page:
    """Delete, of the next rows of an expired partition behind id ``after``, those that are not
    kept: jobs that are no steps, with their runs if ``with_runs``; or runs that are not ``kept``.
    """
    parameters = {"after": after, "page": PAGE}
    if partition.table is JOBS:
        parameters["with_runs"] = with_runs
        rows = fetch_with_names(DELETE_JOBS, parameters, name=partition.name)
    else:
        rows = fetch_with_names(DELETE_RUNS, parameters, name=partition.name, **kept._asdict())
    ((deleted, last, seen),) = rows
    return Page(deleted=deleted, next_after=None if seen < PAGE else last)


def _drop_jobs(partition: Partition, *, with_runs: bool) -> DropResult:
    name = partition.name
    if keeps_many_steps(partition):
        return DropResult.KEEPS_MANY
    for statement in (PRUNE_PROGRESS, PRUNE_RECEIPTS, *([PRUNE_RUNS] if with_runs else [])):
        text = with_names(statement, name=name)
        while execute(text, {"page": PAGE}) >= PAGE:
            pass

    def work() -> bool:
        execute_with_names(DETACH, table=partition.table.name, name=name)
        if _count_steps(name):
            _copy(KEEP_STEPS, {}, name)
        execute_with_names(DROP, name=name)
        return True

    return _result(work)


def _drop_runs(partition: Partition, kept: KeptRuns) -> DropResult:
    name = partition.name
    (last,) = ends_of_newest([name], NEWEST)
    ids = _kept_runs(name, kept)
    if len(ids) > MOST_KEPT:
        return DropResult.KEEPS_MANY

    def work() -> bool:
        execute_with_names(DETACH, table=partition.table.name, name=name)
        # What arrived meanwhile. From now on nothing does.
        late = fetch_with_names(LATE_RUNS, {"after": last or 0}, name=name, **kept._asdict())
        if all_ids := ids.union(id_ for (id_,) in late):
            _copy(KEEP, {"ids": list(all_ids)}, name)
        execute_with_names(DROP, name=name)
        return True

    return _result(work)


def keeps_many_steps(partition: Partition) -> bool:
    """Whether a partition of jobs has too many steps to be dropped before their runs expire."""
    return _count_steps(partition.name) > MOST_KEPT


def _count_steps(name: str) -> int:
    ((steps,),) = fetch_with_names(COUNT_STEPS, {"most": MOST_KEPT + 1}, name=name)
    return int(steps)


def _kept_runs(name: str, kept: KeptRuns) -> set[int]:
    """The ids of the runs to keep. Ends when there are too many."""
    ids: set[int] = set()
    names = {"name": name, **kept._asdict()}
    ((after, last),) = fetch_with_names(IDS, {}, name=name)
    while after < last and len(ids) <= MOST_KEPT:
        page = {"after": after, "page": PAGE, "window": WINDOW}
        ((after, found),) = fetch_with_names(UNSUCCESSFUL_RUNS, page, **names)
        ids.update(found)
    after = 0 if kept.jobs != kept.all_of else None
    while after is not None and len(ids) <= MOST_KEPT:
        ((after, found),) = fetch_with_names(ALL_RUNS, {"after": after, "page": PAGE}, **names)
        ids.update(found)
    return ids


def _copy(statement: str, parameters: dict[str, Any], name: str) -> None:
    execute_with_names(LIMIT_COPY)
    execute(with_names(statement, name=name), parameters)
    execute_with_names(LIMIT_NO_LONGER)


def _result(work: Callable[[], bool]) -> DropResult:
    try:
        return DropResult.DROPPED if in_a_moment(work) else DropResult.IN_USE
    except DatabaseError as error:
        if is_canceled(error):
            return DropResult.KEEPS_MANY
        raise
