"""Partitions that will be missing, what was stored without one, and runs that are not counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from ..conf import conf
from ..domain.numbers import LONGEST_AGE, seconds_of
from ..domain.retention import Period, Span, missing
from ..lifecycle import history
from ..lifecycle.dropping import MOST_KEPT, keeps_many_steps
from ..lifecycle.history import JOBS, RUNS, TABLES, Partition, PartitionedTable
from ..maintenance.history import expired_among
from ..maintenance.retention import rules_in_force
from ..models.database import migrate_command
from ..models.worker import IS_ALIVE
from .findings import CannotExamine, Finding, Reader, Statement, age, at_least, found

BEHIND_SECONDS = 600.0
"""Workers count new runs every few seconds."""
SOON = timedelta(days=3)
"""Workers make partitions a week ahead. With fewer days left, none has made any for days."""
LATE = timedelta(days=1)
"""Workers drop a partition within minutes, or make a pause of an hour."""
MANY_IN_DEFAULT = 500_000
"""ATTACH reads them in 1.2 s. A worker gives up after 5 s, at about two million."""
MOST_READ = 10_000

NOW = Statement("SELECT statement_timestamp() AS now")
PARTITIONS = {
    table: Statement(history.PARTITIONS, partial(dict, table=table.name)) for table in TABLES
}
# Steps of workflows are moved to the default partition on purpose, and so are runs of jobs that are
# kept: when a partition is dropped, so they ended before this day.
MISPLACED = {
    JOBS: Statement(
        """
SELECT count(*) AS rows FROM (
    SELECT workflow_run_id FROM django_jobs_job_history_default LIMIT %(most)s) AS job
WHERE workflow_run_id IS NULL
""",
        lambda: {"most": MOST_READ},
    ),
    RUNS: Statement(
        """
SELECT count(*) AS rows FROM (
    SELECT finished_at FROM django_jobs_run_default ORDER BY id DESC LIMIT %(most)s) AS run
WHERE finished_at >= date_trunc('day', now(), 'UTC')
""",
        lambda: {"most": MOST_READ},
    ),
}
ROWS = Statement(
    """
SELECT relname AS name, greatest(reltuples, 0)::bigint AS rows FROM pg_class
WHERE oid = ANY(ARRAY(SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS ours (name)))
""",
    lambda: {"tables": [table.default for table in TABLES]},
)
# A run that ended just now is counted in some seconds, however long ago the one before ended. Until
# runs were counted once, the oldest worker could have counted them. ``ids`` is null without the
# right to read the sequence, and ``seconds`` if all runs are counted.
WATERMARK = Statement(f"""
SELECT CASE WHEN has_sequence_privilege('django_jobs_run_id_seq', 'USAGE, SELECT')
        THEN coalesce(pg_sequence_last_value('django_jobs_run_id_seq'), 0)
    END - coalesce(mark.run_id, 0) AS ids,
    CASE WHEN first.finished_at IS NOT NULL AND counting.since IS NOT NULL
        THEN extract(epoch FROM clock_timestamp() - greatest(first.finished_at, counting.since))
    END::float8 AS seconds
FROM (SELECT) AS always
LEFT JOIN django_jobs_runwatermark AS mark ON mark.id = 1
CROSS JOIN LATERAL (
    SELECT coalesce(mark.reached_at, min(started_at)) AS since FROM django_jobs_worker AS worker
    WHERE {IS_ALIVE}) AS counting
LEFT JOIN LATERAL (
    SELECT finished_at FROM django_jobs_run WHERE id > coalesce(mark.run_id, 0)
    ORDER BY id LIMIT 1) AS first ON true
""")


def examine_totals(read: Reader) -> Iterator[Finding]:
    (row,) = read(WATERMARK)
    ids, seconds = row["ids"], row["seconds"]
    if ids is None:
        raise CannotExamine("needs a right: USAGE on the sequence django_jobs_run_id_seq")
    if conf().totals and ids > 0 and (seconds or 0) >= BEHIND_SECONDS:
        yield found(
            "D133",
            f"Runs that ended {age(seconds)} ago are not in the totals, and up to {ids:,} are not "
            "counted. Metrics and objectives show less than happened.",
            "A worker counts them, unless a transaction that wrote runs is still open: see D111. "
            "Start a worker, or end that transaction.",
            runs=ids,
            seconds=seconds,
        )


def examine_partitions(read: Reader) -> Iterator[Finding]:
    """Missing partitions, rows in the default ones, and partitions that should have gone."""
    ((now,),) = (row.values() for row in read(NOW))
    there = {
        table: [Partition(table, **row) for row in read(PARTITIONS[table])] for table in TABLES
    }
    rules = rules_in_force()
    for table in TABLES:
        yield from _missing(table, there[table], now)
        yield from _misplaced(table, read)
        yield from _large_default(table, read)
        yield from _past_retention(table, expired_among(there, table, rules, now - LATE), now)


def _missing(
    table: PartitionedTable, there: Sequence[Partition], now: datetime
) -> Iterator[Finding]:
    spans = [Span(one.start, one.end) for one in there]
    spans = missing(Period(conf().history["partition"]), spans, now)
    if soon := [span for span in spans if span.start < now + SOON]:
        first, last = soon[0].start, soon[-1].end
        yield found(
            "D131",
            f"{table.name} has no partitions from {first:%Y-%m-%d} to {last:%Y-%m-%d}. Rows of "
            f"that time are stored in {table.default}, which retention cannot drop.",
            "Workers make partitions if their role owns the tables and has the right CREATE on the "
            "schema. So does migrate:",
            migrate_command(),
            table=table.name,
            first=first,
            last=last,
            missing=len(soon),
        )


def _misplaced(table: PartitionedTable, read: Reader) -> Iterator[Finding]:
    ((rows,),) = (row.values() for row in read(MISPLACED[table]))
    if rows:
        yield found(
            "D132",
            f"{table.default} has {at_least(rows, MOST_READ)} rows that ended while their "
            "partition was missing. Retention deletes them one by one, in place of a whole "
            "partition.",
            "Retention deletes these rows when their time is over. Until then the days on which "
            "they ended get no partition; all other days do (D131).",
            table=table.default,
            rows=rows,
        )


def _large_default(table: PartitionedTable, read: Reader) -> Iterator[Finding]:
    rows = next((row["rows"] for row in read(ROWS) if row["name"] == table.default), 0)
    if rows < MANY_IN_DEFAULT:
        return
    yield found(
        "D134",
        f"{table.default} has about {rows:,} rows. PostgreSQL reads them under a lock whenever a "
        f"partition is made, and what reads all of {table.name} waits. A worker gives up after 5 "
        "seconds; then no partition is made any more.",
        "They are steps of workflow runs that are kept, or have no partition (D132). Shorten "
        "the retention of workflows."
        if table is JOBS
        else "They are runs of jobs that are kept, such as dead ones, or have no partition (D132). "
        "Limit dead jobs by RETENTION, or dismiss those that nobody will replay.",
        table=table.default,
        rows=rows,
    )


def _past_retention(
    table: PartitionedTable, expired: Sequence[Partition], now: datetime
) -> Iterator[Finding]:
    expired = [one for one in expired if not _waits_for_its_runs(one, now)]
    if not expired:
        return
    oldest = expired[0]
    those = "partition" if len(expired) == 1 else "partitions"
    stays = (
        f"One with more than {MOST_KEPT:,} steps stays until their workflow runs have ended and "
        "expired: see manage.py jobworkflow list."
        if table is JOBS
        else f"One with more than {MOST_KEPT:,} runs of jobs that are kept, such as dead ones, "
        "stays as long as these: limit dead jobs by RETENTION, or dismiss them."
    )
    yield found(
        "D135",
        f"{table.name} has {len(expired):,} {those} that should have been dropped for more than a "
        f"day. The oldest is {oldest.name}, which ended on {oldest.end:%Y-%m-%d}.",
        "Workers drop a partition if their role owns the tables, and while no transaction reads it "
        f"(D111). {stays}",
        table=table.name,
        partitions=len(expired),
        oldest=oldest.name,
        end=oldest.end,
    )


def _waits_for_its_runs(partition: Partition, now: datetime) -> bool:
    """Whether its steps are kept by the retention of workflows, and are too many to move."""
    kept = seconds_of(conf().retention["workflows"])
    age = timedelta(seconds=LONGEST_AGE if kept is None else min(kept, LONGEST_AGE))
    are_kept = partition.end + age + LATE > now
    return partition.table is JOBS and are_kept and keeps_many_steps(partition)
