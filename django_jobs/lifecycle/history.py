"""The partitions of succeeded and cancelled jobs, and those of runs.

A settle moves a job that succeeded or was cancelled from ``django_jobs_job_live`` to the partition
of the day on which it ended. Retention drops such a partition as a whole. What finds no partition
is stored in the default one, so no write fails for want of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, transaction
from psycopg import sql

from ..domain.retention import Period, Span, end_of, missing
from ..models.database import database_time, fetch, jobs_connection, sqlstate_of

MOMENT = 0.15
"""Seconds that others may wait behind a statement that waits for its lock."""

NOT_NOW = {"55P03", "40P01"}
"""The lock was not free within the moment; a deadlock."""

ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(hashtextextended('django_jobs.history', 0))"
WAIT_A_MOMENT = f"SET LOCAL lock_timeout = {int(MOMENT * 1000)}"

# The bounds as PostgreSQL shows them: FOR VALUES FROM ('2026-11-22 00:00:00+00') TO ('...').
# Without backslashes, which a server with standard_conforming_strings = off drops.
_LEAVES = """(
    SELECT inhparent AS parent, child.relname AS name,
        regexp_match(pg_get_expr(child.relpartbound, child.oid),
                     'FROM [(]''([^'']+)''[)] TO [(]''([^'']+)''[)]') AS ends
    FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid)"""
PARTITIONS = f"""
SELECT name, ends[1]::timestamptz AS start, ends[2]::timestamptz AS "end"
FROM {_LEAVES} AS leaf
WHERE parent = to_regclass(%(table)s) AND ends IS NOT NULL
ORDER BY 2
"""
# An index of ids alone, so nothing of the rows is read.
END_OF_NEWEST = "(SELECT id FROM {table} ORDER BY id DESC OFFSET %(number)s LIMIT 1)"
# CREATE TABLE makes a table in the first schema of the search_path.
OWNS = """
SELECT coalesce(bool_and(pg_has_role(relowner, 'USAGE')), false),
    coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
FROM pg_class WHERE oid IN (to_regclass('django_jobs_job_history'), to_regclass('django_jobs_run'))
"""
# All that shows whether there is a partition to make or to drop.
STATE = f"""
SELECT statement_timestamp(), rights.owns, rights.creates,
    EXISTS (SELECT FROM django_jobs_queue WHERE retention IS NOT NULL),
    leaf.parent = to_regclass('django_jobs_run'), leaf.name,
    leaf.ends[1]::timestamptz, leaf.ends[2]::timestamptz
FROM ({OWNS}) AS rights (owns, creates) LEFT JOIN {_LEAVES} AS leaf
    ON leaf.ends IS NOT NULL
    AND leaf.parent IN (to_regclass('django_jobs_job_history'), to_regclass('django_jobs_run'))
ORDER BY 7
"""
OTHER_OWNER = """
SELECT rolname::text FROM pg_class JOIN pg_roles ON pg_roles.oid = relowner
WHERE pg_class.oid = to_regclass(%(table)s) AND rolname <> current_user
    AND has_schema_privilege(relowner, relnamespace, 'CREATE')
"""
DAYS_IN = """
SELECT DISTINCT date_trunc('day', finished_at, 'UTC') FROM {default}
WHERE finished_at >= %(start)s AND finished_at < %(end)s
"""

CREATE = "CREATE TABLE {name} (LIKE {default} INCLUDING ALL)"
ATTACH = "ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})"
HAND_OVER = "ALTER TABLE {name} OWNER TO {owner}"


class PartitionedTable(NamedTuple):
    """A table with a partition for each period, and a default one, which is their pattern."""

    name: str
    default: str
    prefix: str


JOBS = PartitionedTable(
    "django_jobs_job_history", "django_jobs_job_history_default", "django_jobs_job_"
)
RUNS = PartitionedTable("django_jobs_run", "django_jobs_run_default", "django_jobs_run_")
TABLES = JOBS, RUNS


class Partition(NamedTuple):
    """One partition: the rows of ``table`` that ended from ``start`` up to ``end``."""

    table: PartitionedTable
    name: str
    start: datetime
    end: datetime

    def overlaps(self, other: Partition) -> bool:
        return self.start < other.end and other.start < self.end


def partitions(table: PartitionedTable) -> list[Partition]:
    """The partitions of ``table`` without the default one, the oldest first."""
    return [Partition(table, *row) for row in fetch(PARTITIONS, {"table": table.name})]


class State(NamedTuple):
    """The partitions of each table, the oldest first, the time, whether the role of this connection
    owns the tables, whether it may create others in their schema, and whether a queue has its own
    retention."""

    partitions: dict[PartitionedTable, list[Partition]]
    now: datetime
    owns: bool
    creates: bool
    queues_keep: bool


def state() -> State:
    """Read all of it in one statement."""
    there: dict[PartitionedTable, list[Partition]] = {table: [] for table in TABLES}
    rows = fetch(STATE, {})
    for *_, of_runs, name, start, end in rows:
        if name is not None:
            table = RUNS if of_runs else JOBS
            there[table].append(Partition(table, name, start, end))
    return State(there, *rows[0][:4])


def ends_of_newest(tables: Sequence[str], number: int) -> list[int | None]:
    """Of each table the id of the row that follows its newest ``number`` rows; None if these are
    all. For who reads without an index."""
    ends = [with_names(END_OF_NEWEST, table=table) for table in tables]
    (row,) = fetch(f"SELECT {', '.join(ends)}", {"number": number})
    return list(row)


def owns_tables() -> bool:
    """Whether the role of this connection may drop partitions: it owns the tables."""
    return _rights()[0]


def may_make_partitions() -> bool:
    """Whether it may make some: it owns the tables, and may create others in their schema."""
    return all(_rights())


def _rights() -> tuple[bool, bool]:
    ((owns, creates),) = fetch(OWNS, {})
    return owns, creates


def make_partitions(period: Period) -> int:
    """Make the missing partitions up to a week ahead; return how many. Those whose lock is not free
    are left to the next call. A role that may not make tables here, or does not own these, makes
    none."""
    if not may_make_partitions():
        return 0
    return sum(_make_all(table, period) for table in TABLES)


def _make_all(table: PartitionedTable, period: Period) -> int:
    made = 0
    while in_a_moment(lambda: _make_next(table, period)):
        made += 1
    return made


def _make_next(table: PartitionedTable, period: Period) -> bool:
    now = database_time()
    existing = [Span(one.start, one.end) for one in partitions(table)]
    spans = missing(period, existing, now)
    if spans:  # no partition can have a day of which rows are in the default one
        days = _days_in_default(table, Span(spans[0].start, spans[-1].end))
        spans = missing(period, existing + days, now)
    if not spans:
        return False
    span = spans[0]
    name = f"{table.prefix}{span.start.astimezone(UTC):%Y%m%d}"
    execute_with_names(CREATE, name=name, default=table.default)
    bounds = {"start": sql.Literal(str(span.start)), "end": sql.Literal(str(span.end))}
    execute_with_names(ATTACH, table=table.name, name=name, **bounds)
    # Made by a superuser or a member of the owner, it would be out of reach of the owner, who could
    # neither drop it nor migrate.
    for (owner,) in fetch(OTHER_OWNER, {"table": table.name}):
        execute_with_names(HAND_OVER, name=name, owner=owner)
    return True


def _days_in_default(table: PartitionedTable, within: Span) -> list[Span]:
    days = fetch_with_names(DAYS_IN, within._asdict(), default=table.default)
    return [Span(day, end_of(Period.DAY, day)) for (day,) in days]


def in_a_moment(work: Callable[[], bool]) -> bool:
    """Call ``work`` in a transaction of the only session that changes partitions. False if another
    does, or if a lock was not free within a moment."""
    try:
        with transaction.atomic(using=jobs_connection().alias):
            if fetch(ONE_AT_A_TIME, {}) != [(True,)]:
                return False
            execute_with_names(WAIT_A_MOMENT)
            return work()
    except DatabaseError as error:
        if sqlstate_of(error) in NOT_NOW:
            return False
        raise


def fetch_with_names(
    statement: str, parameters: dict[str, Any], **names: str
) -> list[tuple[Any, ...]]:
    """Run a statement with the names of tables in it, and return its rows."""
    return fetch(with_names(statement, **names), parameters)


def execute_with_names(statement: str, **names: Any) -> None:
    """Run a statement without parameters, with names or literals in it."""
    with jobs_connection().cursor() as cursor:
        cursor.execute(with_names(statement, **names))


def with_names(statement: str, **names: Any) -> str:
    quoted = {
        key: sql.Identifier(value) if isinstance(value, str) else value
        for key, value in names.items()
    }
    return sql.SQL(statement).format(**quoted).as_string(None)
