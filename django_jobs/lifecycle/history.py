"""The partitions of succeeded and cancelled jobs, and those of runs.

A settle moves a job that succeeded or was cancelled from ``django_jobs_job_live`` to the partition
of the day on which it ended. Retention drops such a partition as a whole. What finds no partition
is stored in the default one, so no write fails for want of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from django.db import DatabaseError, transaction
from psycopg import sql

from ..domain.partitions import Period, Span, end_of, missing
from ..models.database import database_time, execute, fetch, jobs_connection
from .pruning import PAGE

MOMENT = 0.15
"""Seconds that others may wait behind a statement that waits for its lock."""

NOT_NOW = {"55P03", "40P01"}
"""The lock was not free within the moment; a deadlock."""

ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(hashtextextended('django_jobs.history', 0))"
WAIT_A_MOMENT = f"SET LOCAL lock_timeout = {int(MOMENT * 1000)}"

# The bounds as PostgreSQL shows them: FOR VALUES FROM ('2026-11-22 00:00:00+00') TO ('...').
PARTITIONS = r"""
SELECT name, ends[1]::timestamptz AS start, ends[2]::timestamptz
FROM (
    SELECT child.relname AS name,
        regexp_match(pg_get_expr(child.relpartbound, child.oid),
                     'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS ends
    FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
    WHERE inhparent = to_regclass(%(table)s)
) AS leaf
WHERE ends IS NOT NULL
ORDER BY 2
"""
# An index of ids alone, so nothing of the rows is read.
END_OF_NEWEST = "(SELECT id FROM {table} ORDER BY id DESC OFFSET %(number)s LIMIT 1)"
OWNS = """
SELECT coalesce(bool_and(pg_has_role(relowner, 'USAGE')), false) FROM pg_class
WHERE oid IN (to_regclass('django_jobs_job_history'), to_regclass('django_jobs_run'))
"""
LAST_IN = "SELECT max(finished_at) FROM {default} WHERE finished_at >= %(start)s"

CREATE = "CREATE TABLE {name} (LIKE {default} INCLUDING ALL)"
ATTACH = "ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})"
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

# A run that succeeded ended its job at the same moment, so their partitions end together. Any other
# run may be of a job that ended later, or of one that is live or dead.
OF_KEPT_JOBS = """
WITH page AS MATERIALIZED (
    SELECT id, job_id FROM {name}
    WHERE id > %(after)s AND outcome <> 'succeeded'
    ORDER BY id
    LIMIT %(page)s
)
SELECT page.id, EXISTS (SELECT 1 FROM {jobs} AS job WHERE job.id = page.job_id)
FROM page ORDER BY page.id
"""
MOST_KEPT_STEPS = 20_000
"""Steps that move to the default partition while others wait for the lock. A partition with more of
them stays until their runs have expired."""

# The steps of workflows stay as long as their run. There is an index on them.
COUNT_STEPS = """
SELECT count(*) FROM (
    SELECT 1 FROM {name} WHERE workflow_run_id IS NOT NULL LIMIT %(most)s) AS steps
"""
KEEP_STEPS = """
INSERT INTO django_jobs_job_history_default SELECT * FROM {name} WHERE workflow_run_id IS NOT NULL
"""
SUCCEEDED_STEPS = """
SELECT run.id FROM {name} AS run JOIN django_jobs_job_history_default AS job ON job.id = run.job_id
WHERE job.workflow_run_id IS NOT NULL AND run.outcome = 'succeeded'
"""
KEEP = "INSERT INTO django_jobs_run_default SELECT * FROM {name} WHERE id = ANY(%(ids)s::bigint[])"


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A table with a partition for each period, and a default one, which is their pattern."""

    name: str
    default: str
    prefix: str


JOBS = PartitionedTable(
    "django_jobs_job_history", "django_jobs_job_history_default", "django_jobs_job_"
)
RUNS = PartitionedTable("django_jobs_run", "django_jobs_run_default", "django_jobs_run_")
TABLES = JOBS, RUNS
LIVE_TABLE = "django_jobs_job_live"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: the rows of ``table`` that ended from ``start`` up to ``end``."""

    table: PartitionedTable
    name: str
    start: datetime
    end: datetime


def partitions(table: PartitionedTable) -> list[Partition]:
    """The partitions of ``table`` without the default one, the oldest first."""
    return [Partition(table, *row) for row in fetch(PARTITIONS, {"table": table.name})]


def ends_of_newest(tables: Sequence[str], number: int) -> list[int | None]:
    """Of each table the id of the row that follows its newest ``number`` rows; None if these are
    all. For who reads without an index."""
    ends = [_written(END_OF_NEWEST, table=table) for table in tables]
    (row,) = fetch(f"SELECT {', '.join(ends)}", {"number": number})
    return list(row)


def owns_tables() -> bool:
    """Whether the role of this connection may make and drop partitions: it owns the tables."""
    ((owns,),) = fetch(OWNS, {})
    return bool(owns)


def make_partitions(period: Period) -> int:
    """Make the missing partitions up to a week ahead; return how many. Those whose lock is not free
    are left to the next call.

    Raises the database's error if its role may not make tables, or does not own these.
    """
    return sum(_make_all(table, period) for table in TABLES)


def _make_all(table: PartitionedTable, period: Period) -> int:
    made = 0
    while _in_a_moment(lambda: _make_next(table, period)):
        made += 1
    return made


def _make_next(table: PartitionedTable, period: Period) -> bool:
    now = database_time()
    existing = [Span(one.start, one.end) for one in partitions(table)]
    spans = missing(period, existing, now)
    if spans and (last := _last_in_default(table, spans[0].start)) is not None:
        # Rows of its time are in the default partition, so it can begin on the next day only.
        spans = missing(period, existing, now, not_before=end_of(Period.DAY, last))
    if not spans:
        return False
    span = spans[0]
    name = f"{table.prefix}{span.start.astimezone(UTC):%Y%m%d}"
    _do(CREATE, name=name, default=table.default)
    bounds = {"start": sql.Literal(str(span.start)), "end": sql.Literal(str(span.end))}
    _do(ATTACH, table=table.name, name=name, **bounds)
    return True


def _last_in_default(table: PartitionedTable, start: datetime) -> datetime | None:
    ((last,),) = _read(LAST_IN, {"start": start}, default=table.default)
    return cast("datetime | None", last)


def drop(
    partition: Partition, *, keeps_runs_of: str = "django_jobs_job", with_runs: bool = False
) -> bool:
    """Drop a partition with its rows; return False if it is in use, or has too many steps of
    workflows to keep.

    With a partition of jobs go their progress and receipts, and ``with_runs`` also those of their
    runs that are in the default partition. Steps move there, as do their runs, and those of a job
    that is still in the table ``keeps_runs_of``.
    """
    kept: list[int] = []
    last = 0
    if partition.table is JOBS:
        if _count_steps(partition.name) > MOST_KEPT_STEPS:
            return False
        runs = [PRUNE_RUNS] if with_runs else []
        for statement in (PRUNE_PROGRESS, PRUNE_RECEIPTS, *runs):
            text = _written(statement, name=partition.name)
            while execute(text, {"page": PAGE}) >= PAGE:
                pass
    else:
        kept, last = _runs_of_kept_jobs(partition.name, keeps_runs_of)

    def work() -> bool:
        _do(DETACH, table=partition.table.name, name=partition.name)
        ids = kept
        if partition.table is RUNS:  # what arrived meanwhile; from now on nothing does
            late, _ = _runs_of_kept_jobs(partition.name, keeps_runs_of, after=last)
            ids = kept + late + [id_ for (id_,) in _read(SUCCEEDED_STEPS, {}, name=partition.name)]
        elif _count_steps(partition.name):
            execute(_written(KEEP_STEPS, name=partition.name), {})
        if ids:
            execute(_written(KEEP, name=partition.name), {"ids": ids})
        _do(DROP, name=partition.name)
        return True

    return _in_a_moment(work)


def _count_steps(name: str) -> int:
    ((steps,),) = _read(COUNT_STEPS, {"most": MOST_KEPT_STEPS + 1}, name=name)
    return int(steps)


def _runs_of_kept_jobs(name: str, jobs: str, after: int = 0) -> tuple[list[int], int]:
    """The ids of those behind id ``after``, and the last id of all runs."""
    kept: list[int] = []
    while rows := _read(OF_KEPT_JOBS, {"after": after, "page": PAGE}, name=name, jobs=jobs):
        kept += [id_ for id_, is_kept in rows if is_kept]
        after = rows[-1][0]
    return kept, after


def _in_a_moment(work: Callable[[], bool]) -> bool:
    """Call ``work`` in a transaction of the only session that changes partitions. False if another
    does, or if a lock was not free within a moment."""
    try:
        with transaction.atomic(using=jobs_connection().alias):
            if fetch(ONE_AT_A_TIME, {}) != [(True,)]:
                return False
            _do(WAIT_A_MOMENT)
            return work()
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) in NOT_NOW:
            return False
        raise


def _read(statement: str, parameters: dict[str, Any], **names: str) -> list[tuple[Any, ...]]:
    return fetch(_written(statement, **names), parameters)


def _do(statement: str, **names: Any) -> None:
    with jobs_connection().cursor() as cursor:
        cursor.execute(_written(statement, **names))


def _written(statement: str, **names: Any) -> str:
    """The statement with its names quoted."""
    quoted = {
        key: sql.Identifier(value) if isinstance(value, str) else value
        for key, value in names.items()
    }
    return sql.SQL(statement).format(**quoted).as_string(None)
