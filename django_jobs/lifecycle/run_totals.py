"""Counts the runs in the table of totals, each once.

A run with a lower id may be committed after one with a higher id. So the last id of the sequence is
read first, then who is writing runs. A writer locks the table before it draws an id. Once those
have ended, each run up to that id is committed, or never will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

from ..domain.histograms import BOUNDS, BUCKETS
from ..models.database import execute, fetch
from ..models.queue import slo_began

BATCH = 20_000
"""Runs that one statement counts."""

MARGIN = timedelta(days=1)
"""How much earlier than the last look a run may have ended that is found at the next: settlers
write an ending again and again until the lease is over. Partitions beyond it are not read."""

SINCE_THE_BEGINNING, MINUTE, HOUR = 0, 60, 3600
"""The periods, in seconds."""

MOST_ERRORS = 50
"""Errors of one batch that are counted by themselves, the most frequent ones, so that the table
stays small if each error is another one."""

FAILED = "('failed', 'timed_out', 'lost')"
"""The outcomes whose errors are counted. The reason of a snooze or of a release is none."""

MINUTES_KEPT, HOURS_KEPT, ERRORS_KEPT = 3 * HOUR, 8 * 24 * HOUR, 2 * HOUR
TENANTS_KEPT = 25 * HOUR
"""Seconds for which totals of minutes, hours, errors and the hours of tenants are kept."""

LOOK = """
SELECT pg_sequence_last_value('django_jobs_run_id_seq'), mark.run_id, mark.reached_at,
    statement_timestamp()
FROM (SELECT) AS always LEFT JOIN django_jobs_runwatermark AS mark ON mark.id = 1
"""
ANY_NEW = """
coalesce(pg_sequence_last_value('django_jobs_run_id_seq'), 0) <>
    coalesce((SELECT run_id FROM django_jobs_runwatermark WHERE id = 1), 0)
"""
BEGIN = """
INSERT INTO django_jobs_runwatermark (id, run_id, reached_at)
VALUES (1, 0, NULL) ON CONFLICT DO NOTHING
"""
RESET = """
UPDATE django_jobs_runwatermark SET run_id = %(run_id)s WHERE id = 1 AND run_id = %(folded)s
"""

# The last run of a batch. Ids that no run has are skipped: a sequence may have been set ahead.
BATCH_END = """
SELECT id FROM django_jobs_run
WHERE id > %(after)s::bigint AND id <= %(last)s::bigint AND finished_at >= %(since)s::timestamptz
ORDER BY id OFFSET %(batch)s::integer - 1 LIMIT 1
"""

# The runs of this session's own transaction are visible to it. A prepared transaction has another
# number than before, so all of them are waited for.
WRITERS = """
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation IN (SELECT relid FROM pg_partition_tree('django_jobs_run'))
  AND pid IS DISTINCT FROM pg_backend_pid()
  AND (%(known)s::text[] IS NULL
       OR virtualtransaction = ANY(%(known)s::text[]) OR virtualtransaction LIKE '-1/%%')
"""

KEY = "queue, job_type, outcome"
TIMES = ("waiting", "start_lag", "runtime")
ALL_TIMES = (*TIMES, "gate")
SUMS = (
    *("runs", *(f"{time}_seconds" for time in ALL_TIMES)),
    *("slo_runs", "slo_met", "retries", "died", "prevented"),
)
OF_RESOURCES = ("runs", "throttled", "server_errors", "runtime_seconds")
OF_TENANTS = ("runs", "waiting_seconds", "runtime_seconds", "slo_runs", "slo_met")
OBJECTIVES_OF_TENANTS = {"slo_runs": "tenant_slo_runs", "slo_met": "tenant_slo_met"}


def _seconds(since: str, until: str) -> str:
    """0 if one of them is infinite: hands write that, and a sum would be infinite for ever."""
    finite = f"isfinite({since}) AND isfinite({until})"
    return f"CASE WHEN {finite} THEN greatest(date_part('epoch', {until} - {since}), 0) ELSE 0 END"


def _bucket(seconds: str) -> str:
    # width_bucket() puts a time that equals a bound above it. The columns have whole microseconds.
    return f"width_bucket({seconds} - 5e-7, ARRAY{[*BOUNDS]}::float8[])"


def _counted(time: str) -> str:
    counts = (
        f"coalesce(sum(runs) FILTER (WHERE {time} = {place}), 0)::bigint"
        for place in range(BUCKETS)
    )
    return f"ARRAY[{', '.join(counts)}] AS {time}_buckets"


def _added(time: str) -> str:
    column = f"{time}_buckets"
    sums = (f"total.{column}[{place}] + excluded.{column}[{place}]" for place in _places())
    return f"{column} = ARRAY[{', '.join(sums)}]"


def _more(columns: Sequence[str]) -> str:
    return ", ".join(f"{column} = total.{column} + excluded.{column}" for column in columns)


def _places() -> range:
    return range(1, BUCKETS + 1)


# A released or lost attempt leaves the job its due time. The next one has waited since the end of
# that one, which is not looked for if it was more than a day before the last look.
INTERRUPTED_AT = """CASE WHEN attempt > 1 THEN (
        SELECT earlier.finished_at FROM django_jobs_run AS earlier
        WHERE earlier.job_id = django_jobs_run.job_id
          AND earlier.attempt = django_jobs_run.attempt - 1
          AND earlier.outcome IN ('released', 'lost')
          AND earlier.finished_at
              BETWEEN django_jobs_run.available_at AND django_jobs_run.finished_at
          AND earlier.finished_at >= %(since)s::timestamptz) END"""

# Runs have no queue and no type. Their jobs ended with them or later, or are live; they are found
# through an array of ids, which makes an index search no matter how many runs the planner expects.
# The join is FULL because that cannot be a nested loop; each job has a run. First runs of equal
# buckets and errors are counted, which makes few rows of many; then these in their minute, in their
# hour, and since the beginning; and by resource and by tenant, of those that have a row.
# Duplicates that receipts prevented are counted once, with the attempt that ended the job in the
# history; only retries have any. Who finds another watermark, or the row locked, adds nothing:
# another worker does.
FOLD = f"""
WITH mark AS MATERIALIZED (
    SELECT run_id FROM django_jobs_runwatermark
    WHERE id = 1 AND run_id = %(after)s::bigint
    FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE django_jobs_runwatermark
    SET run_id = %(upto)s::bigint, reached_at = %(reached)s::timestamptz
    WHERE id = 1 AND EXISTS (SELECT FROM mark)
    RETURNING run_id
), run AS MATERIALIZED (
    SELECT job_id, attempt, outcome, greatest(available_at, {INTERRUPTED_AT}) AS due_at,
        ready_at, claimed_at, started_at, finished_at, error_type, error_code, fingerprint
    FROM django_jobs_run
    WHERE id > %(after)s::bigint AND id <= %(upto)s::bigint
      AND finished_at >= %(since)s::timestamptz AND EXISTS (SELECT FROM mark)
), job AS (
    SELECT id, queue, job_type, tenant, resources, NULL::integer AS died, attempt AS ended
    FROM django_jobs_job_history
    WHERE id = ANY(ARRAY(SELECT job_id FROM run)) AND finished_at >= %(since)s::timestamptz
    UNION ALL
    SELECT id, queue, job_type, tenant, resources, CASE status WHEN 'dead' THEN attempt END, NULL
    FROM django_jobs_job_live
    WHERE id = ANY(ARRAY(SELECT job_id FROM run))
), ended AS (
    SELECT date_bin('1 minute', run.finished_at, 'epoch') AS minute, run.outcome,
        run.error_type, run.fingerprint, job.resources,
        CASE WHEN job.resources IS NOT NULL THEN run.error_code END AS error_code,
        coalesce(job.queue, '') AS queue, coalesce(job.job_type, '') AS job_type,
        tenant.name AS tenant,
        {_seconds("run.due_at", "run.claimed_at")} AS waiting,
        {_seconds("run.due_at", "run.ready_at")} AS gate, run.ready_at IS NOT NULL AS gated,
        {_seconds("run.claimed_at", "run.started_at")} AS start_lag,
        {_seconds("run.started_at", "run.finished_at")} AS runtime,
        run.started_at IS NOT NULL AS started,
        run.attempt > 1 AS is_retry, job.died = run.attempt AS died,
        CASE WHEN run.attempt > 1 AND job.ended = run.attempt THEN (
            SELECT sum(receipt.prevented) FROM django_jobs_receipt AS receipt
            WHERE receipt.job_id = job.id) END AS prevented,
        {_seconds(slo_began("run.due_at", "run.ready_at"), "run.started_at")} AS took_to_start,
        queue.slo_seconds, coalesce(tenant.slo_seconds, queue.slo_seconds) AS of_tenant
    FROM run FULL JOIN job ON job.id = run.job_id
        LEFT JOIN django_jobs_queue AS queue ON queue.name = job.queue
        LEFT JOIN django_jobs_tenant AS tenant ON tenant.name = job.tenant
), alike AS MATERIALIZED (
    SELECT minute, {KEY}, {_bucket("waiting")} AS waiting,
        CASE WHEN gated THEN {_bucket("gate")} END AS gate,
        CASE WHEN started THEN {_bucket("start_lag")} END AS start_lag,
        CASE WHEN started THEN {_bucket("runtime")} END AS runtime,
        count(*) AS runs, sum(waiting) AS waiting_seconds,
        coalesce(sum(gate) FILTER (WHERE gated), 0) AS gate_seconds,
        coalesce(sum(start_lag) FILTER (WHERE started), 0) AS start_lag_seconds,
        coalesce(sum(runtime) FILTER (WHERE started), 0) AS runtime_seconds,
        count(slo_seconds) FILTER (WHERE started) AS slo_runs,
        count(*) FILTER (WHERE started AND took_to_start <= slo_seconds) AS slo_met,
        count(of_tenant) FILTER (WHERE started) AS tenant_slo_runs,
        count(*) FILTER (WHERE started AND took_to_start <= of_tenant) AS tenant_slo_met,
        count(*) FILTER (WHERE is_retry) AS retries, count(*) FILTER (WHERE died) AS died,
        coalesce(sum(prevented), 0) AS prevented,
        error_type, fingerprint, tenant, resources, error_code
    FROM ended
    GROUP BY 1, {KEY}, 5, 6, 7, 8, error_type, fingerprint, tenant, resources, error_code
), added AS (
    INSERT INTO django_jobs_runtotal AS total (
        period, began_at, {KEY}, {", ".join(f"{time}_buckets" for time in ALL_TIMES)},
        {", ".join(SUMS)})
    SELECT period.seconds,
        CASE period.seconds WHEN 0 THEN 'epoch' WHEN 60 THEN minute
            ELSE date_bin('1 hour', minute, 'epoch') END,
        {KEY}, {", ".join(_counted(time) for time in ALL_TIMES)},
        {", ".join(f"sum({column})" for column in SUMS)}
    FROM alike CROSS JOIN (VALUES ({SINCE_THE_BEGINNING}), ({MINUTE}), ({HOUR})) AS period (seconds)
    GROUP BY 1, 2, {KEY}
    ON CONFLICT (period, began_at, {KEY}) DO UPDATE SET
        {", ".join(_added(time) for time in ALL_TIMES)}, {_more(SUMS)}
    RETURNING 1
), added_resources AS (
    INSERT INTO django_jobs_resourcetotal AS total (
        resource, outcome, {", ".join(OF_RESOURCES)}, runtime_buckets)
    SELECT resource.name, outcome, sum(runs),
        coalesce(sum(runs) FILTER (WHERE error_code = '429'), 0),
        coalesce(sum(runs) FILTER (WHERE error_code ~ '^5[0-9][0-9]$'), 0),
        sum(runtime_seconds), {_counted("runtime")}
    FROM alike CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE jsonb_typeof(resources) WHEN 'array' THEN resources END) AS used (name)
    JOIN django_jobs_resource AS resource ON resource.name = used.name
    GROUP BY 1, 2
    ON CONFLICT (resource, outcome) DO UPDATE SET {_added("runtime")},
        {_more(OF_RESOURCES)}
    RETURNING 1
), added_tenants AS (
    INSERT INTO django_jobs_tenanttotal AS total (
        period, began_at, tenant, outcome, {", ".join(OF_TENANTS)}, waiting_buckets,
        runtime_buckets)
    SELECT period.seconds,
        CASE period.seconds WHEN 0 THEN 'epoch' ELSE date_bin('1 hour', minute, 'epoch') END,
        tenant, outcome,
        {", ".join(f"sum({OBJECTIVES_OF_TENANTS.get(name, name)})" for name in OF_TENANTS)},
        {_counted("waiting")}, {_counted("runtime")}
    FROM alike CROSS JOIN (VALUES ({SINCE_THE_BEGINNING}), ({HOUR})) AS period (seconds)
    WHERE tenant IS NOT NULL
    GROUP BY 1, 2, 3, 4
    ON CONFLICT (period, began_at, tenant, outcome) DO UPDATE SET {_added("waiting")},
        {_added("runtime")}, {_more(OF_TENANTS)}
    RETURNING 1
), added_errors AS (
    INSERT INTO django_jobs_errortotal AS total (
        began_at, job_type, error_type, fingerprint, runs)
    SELECT minute, job_type, error_type, fingerprint, sum(runs) FROM alike
    WHERE fingerprint <> '' AND outcome IN {FAILED}
    GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC LIMIT {MOST_ERRORS}
    ON CONFLICT (began_at, job_type, error_type, fingerprint) DO UPDATE SET
        runs = total.runs + excluded.runs
    RETURNING 1
)
SELECT count(*) FROM moved
"""

# Totals of the future, from before the clock of the server was set back, would count as the last
# hour until it has reached its former time.
FUTURE = "began_at > statement_timestamp() + interval '1 min'"
PRUNE_ERRORS = f"""
DELETE FROM django_jobs_errortotal
WHERE began_at < statement_timestamp() - interval '{ERRORS_KEPT} s' OR {FUTURE}
"""
PRUNE_TENANTS = f"""
DELETE FROM django_jobs_tenanttotal
WHERE period = {HOUR}
      AND (began_at < statement_timestamp() - interval '{TENANTS_KEPT} s' OR {FUTURE})
   OR tenant NOT IN (SELECT name FROM django_jobs_tenant)
"""
PRUNE_RESOURCES = """
DELETE FROM django_jobs_resourcetotal
WHERE resource NOT IN (SELECT name FROM django_jobs_resource)
"""
PRUNE = f"""
DELETE FROM django_jobs_runtotal
WHERE period = {MINUTE} AND began_at < statement_timestamp() - interval '{MINUTES_KEPT} s'
   OR period = {HOUR} AND began_at < statement_timestamp() - interval '{HOURS_KEPT} s'
   OR period IN ({MINUTE}, {HOUR}) AND {FUTURE}
"""


class Look(NamedTuple):
    """The last id that a run may have, the last one in the totals, and when it was reached."""

    last: int
    folded: int
    reached_at: datetime | None
    now: datetime

    @property
    def age(self) -> float:
        """Seconds since a worker reached the watermark; unknown, so infinite, if the clock of the
        server was set back meanwhile."""
        if self.reached_at is None or self.reached_at > self.now:
            return inf
        return (self.now - self.reached_at).total_seconds()

    @property
    def since(self) -> datetime | str:
        """When a run that is not in the totals ended at the earliest."""
        return min(self.reached_at, self.now) - MARGIN if self.reached_at else "-infinity"


def look() -> Look:
    ((last, folded, reached_at, now),) = fetch(LOOK, {})
    if folded is None:
        execute(BEGIN, {})
    elif (last or 0) < folded:
        # The sequence began again with an emptied table. What was written since the last look is
        # not counted, because after a restore of a part of the tables it might be twice.
        execute(RESET, {"run_id": last or 0, "folded": folded})
        folded = last
    return Look(last or 0, folded or 0, reached_at, now)


def writers(known: Sequence[str] | None = None) -> list[str]:
    """The transactions that write runs; of ``known`` ones, those that have not ended."""
    parameters = {"known": None if known is None else list(known)}
    return [transaction for (transaction,) in fetch(WRITERS, parameters)]


def batch_end(seen: Look, last: int, batch: int) -> int:
    """The id up to which the next batch of runs is, at most ``last``."""
    if last - seen.folded <= batch:
        return last
    parameters = {"after": seen.folded, "last": last, "since": seen.since, "batch": batch}
    return next((upto for (upto,) in fetch(BATCH_END, parameters)), last)


def fold(seen: Look, upto: int, reached_at: datetime | None) -> bool:
    """Count the runs behind the watermark up to an id. False if another session does.

    All that wrote runs up to this id have to have ended. Those above it end after ``reached_at``,
    or at most a day before.
    """
    parameters = {"after": seen.folded, "upto": upto, "since": seen.since, "reached": reached_at}
    return fetch(FOLD, parameters) == [(1,)]


def prune_run_totals() -> int:
    """Delete the totals that are long over, and those of tenants and resources without a row;
    return how many."""
    statements = PRUNE, PRUNE_ERRORS, PRUNE_TENANTS, PRUNE_RESOURCES
    return sum(execute(statement, {}) for statement in statements)
