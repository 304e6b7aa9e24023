"""succeeded, cancelled -> a file.

Reads a partition of the history in one snapshot, and drops it if it still has these rows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, transaction

from ..conf import conf
from ..domain.numbers import LONGEST_AGE
from ..models import Run
from ..models.database import database_time, jobs_connection, sqlstate_of
from .dropping import OF_KEPT_JOBS, DropResult, drop
from .history import JOBS, NOT_NOW, RUNS, TABLES, WAIT_A_MOMENT, Partition, partitions
from .pruning import runs_go_with_jobs

PATIENCE = 60.0
"""Seconds after which a partition that is in use is kept."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0

SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

# A file does not depend on the settings of the role: times have their offset, and floats are read
# back as the same number.
SAME_TEXT = """
SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO', true),
    set_config('extra_float_digits', '1', true)
"""

CONTENTS = "SELECT count(*), coalesce(sum(id), 0) FROM ONLY {partition}"

LOCK = "LOCK TABLE {partition} IN SHARE MODE"
"""Writers of this partition wait until it is dropped, and readers do not. None of the writers is a
claim, an enqueue or a settle."""

CSV = "COPY (SELECT * FROM ONLY {partition}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')"

# One value in each line. The text format would double its backslashes. This one quotes a value
# that has a line break or one of the two characters, and row_to_json escapes all three.
JSON_LINES = """
COPY (SELECT row_to_json(archived) FROM ONLY {partition} AS archived)
TO STDOUT (FORMAT csv, DELIMITER E'\\x01', QUOTE E'\\x02', ENCODING 'UTF8')
"""

COPIES = {"csv": CSV, "jsonl": JSON_LINES}
"""The statement of each format."""


KEEPS_MANY = {
    JOBS.name: "it has too many steps of workflow runs that are kept; it can be dropped once these "
    "have expired",
    RUNS.name: "it has too many runs of jobs that are kept; it can be dropped once these are gone",
}
"""Why a partition stays of which too much would have to be copied."""


class Contents(NamedTuple):
    """The number of rows, and the sum of their ids. Rows of the history are never changed, so
    those with the same contents are the same."""

    rows: int
    ids: int


def ended_before(age: float) -> list[Partition]:
    """The partitions that ended more than ``age`` seconds ago, oldest first: jobs, then runs."""
    Run.objects.using(conf().database).exists()  # raises an error if there are no tables
    end = database_time() - timedelta(seconds=min(age, LONGEST_AGE))
    return [one for table in TABLES for one in partitions(table) if one.end <= end]


def contents_of(partition: Partition) -> Contents:
    with jobs_connection().cursor() as cursor:
        return _contents(cursor, _quoted(partition))


def copy_out(partition: Partition, form: str, write: Callable[[Any], object]) -> Contents:
    """Pass all rows to ``write``, as bytes of one of :data:`COPIES`, and return what they are."""
    connection = jobs_connection()
    name = _quoted(partition)
    with (
        transaction.atomic(using=connection.alias, durable=True),
        connection.cursor() as cursor,
        connection.wrap_database_errors,  # Django wraps the errors of execute() and not of copy()
    ):
        cursor.execute(SNAPSHOT)
        cursor.execute(SAME_TEXT)
        contents = _contents(cursor, name)
        with cursor.copy(COPIES[form].format(partition=name)) as copy:
            for block in copy:
                write(block)
    return contents


def drop_archived(partition: Partition, contents: Contents) -> str | None:
    """Drop the partition if it has exactly these contents; return why it was kept, if it was.

    Steps of workflows move to the default partition, as do the runs of live jobs, dead ones and
    those in the default partition. If the partition is in use, tries again until ``PATIENCE`` is
    over. Runs are kept while the partition of their jobs is there. With the jobs go their runs in
    the default partition, as in retention.
    """
    jobs = partitions(JOBS) if partition.table is RUNS else []
    if stays := [one.name for one in jobs if one.overlaps(partition)]:
        return f"{', '.join(stays)} is there, with the jobs of its time"
    deadline, pause = time.monotonic() + PATIENCE, FIRST_PAUSE
    try:
        while (result := _drop(partition, contents)) is DropResult.IN_USE:
            if time.monotonic() > deadline:
                return f"it was in use for {PATIENCE:g} s; run the command again"
            # A statement that holds it may recur at our own interval.
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 — jitter
            pause = min(pause * 1.5, LONGEST_PAUSE)
    except _RowsChangedError:
        return "its rows changed after they were written; run the command again"
    return KEEPS_MANY[partition.table.name] if result is DropResult.KEEPS_MANY else None


def _drop(partition: Partition, contents: Contents) -> DropResult:
    connection = jobs_connection()
    try:
        with transaction.atomic(using=connection.alias, durable=True):
            with connection.cursor() as cursor:
                # The lock comes before the first query, so that also a REPEATABLE READ
                # transaction sees all that was committed before it.
                cursor.execute(WAIT_A_MOMENT)
                cursor.execute(LOCK.format(partition=_quoted(partition)))
            if contents_of(partition) != contents:
                raise _RowsChangedError
            result = drop(partition, kept=OF_KEPT_JOBS, with_runs=runs_go_with_jobs())
            if not result:
                transaction.set_rollback(True, using=connection.alias)
            return result
    except DatabaseError as error:
        if sqlstate_of(error) in NOT_NOW:
            return DropResult.IN_USE
        raise


class _RowsChangedError(Exception):
    pass


def _contents(cursor: Any, name: str) -> Contents:
    cursor.execute(CONTENTS.format(partition=name))
    rows, ids = cursor.fetchone()
    return Contents(rows, int(ids))


def _quoted(partition: Partition) -> str:
    return jobs_connection().ops.quote_name(partition.name)
