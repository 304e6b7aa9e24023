"""The statements with which an attempt ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..domain.gates import JUST_WAITS
from ..domain.run_log import RunCost
from ..models.resource import LIMITS_MORE_THAN_SLOTS
from .job_columns import ADMITTED, AT_THE_GATES, IN_LINE, IN_LIVE, as_array

# Plain successes are passed as arrays: with all endings as JSON one process reached 18,700 instead
# of 23,400 jobs/s. Rows are locked in the order of their ids, as everywhere. So they are looked up
# one after the other, for any statistics of the table: with a hash join, which it preferred
# from 60 jobs to 15,000, they are locked in the order in which they lie. So it expects one ending:
# the subqueries hide the lengths of the arrays, and of a range it expects 0.5 %. The range is that
# of all ids. See also ``ITS_OWN``.
ENDINGS = """
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), settled AS MATERIALIZED (
    SELECT s.*, clock.now, clock.now - make_interval(secs => s.ago) AS ended_at
    FROM clock, (
        SELECT *
        FROM json_to_recordset(%(rows)s::json) AS input (
            id bigint, attempt integer, worker bigint, ran float8, ago float8,
            cpu_seconds float8, max_rss_kb integer, queries integer, query_seconds float8,
            status text, outcome text, final boolean, cancel_no_matter boolean, due float8,
            failures integer, crashes integer, delay float8,
            queue text, gates text, priority smallint, weight float8,
            result text, reason text, error text, error_type text, error_code text,
            error_message text, traceback text, fingerprint text, awaits text, log text,
            skipped text, traceparent text, retry_for float8)
        UNION ALL
        SELECT plain.id, plain.attempt, plain.worker, plain.ran, plain.ago,
            CASE WHEN plain.cpu_seconds = 'infinity' THEN plain.ran ELSE plain.cpu_seconds END,
            plain.max_rss_kb, plain.queries, plain.query_seconds,
            'succeeded', 'succeeded', true, true, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, plain.traceparent,
            NULL
        FROM unnest(
            (SELECT %(ids)s::bigint[]), (SELECT %(attempts)s::integer[]),
            (SELECT %(workers)s::bigint[]), (SELECT %(ran)s::float8[]),
            (SELECT %(ago)s::float8[]), (SELECT %(cpu_seconds)s::float8[]),
            (SELECT %(max_rss_kb)s::integer[]), (SELECT %(queries)s::integer[]),
            (SELECT %(query_seconds)s::float8[]), (SELECT %(traceparents)s::text[])) AS plain (
            id, attempt, worker, ran, ago, cpu_seconds, max_rss_kb, queries, query_seconds,
            traceparent)
        OFFSET 0
    ) AS s
    WHERE s.id BETWEEN -9223372036854775808 AND 9223372036854775807
    ORDER BY s.id
)"""

# With ``ANY`` of one value: an index can look it up, but no hash and no merge can join it.
ITS_OWN = """WHERE job.id = ANY(ARRAY[s.id]) AND job.attempt = ANY(ARRAY[s.attempt])
      AND job.worker_id = ANY(ARRAY[s.worker])"""

# What the run takes from the ending. With the job's row, so that nothing is joined again.
TOLD = """s.outcome, s.worker, s.due, s.ran, s.ended_at, s.error_type, s.error_code,
        s.error_message, s.traceback, s.fingerprint, s.traceparent, s.cpu_seconds, s.max_rss_kb,
        s.queries, s.query_seconds, s.log"""

# A job that is to wait for a signal does not, if the signal is in the row by the time it is locked.
SIGNALLED = "jsonb_exists(job.signals, s.awaits)"
DELAY = f"CASE WHEN {SIGNALLED} THEN 0 ELSE s.delay END"

# A row that ends moves to the history. Naming the statuses of the live partition keeps the planner
# out of all others. Within it rows are found by primary key only: with ``job.status = 'running'``
# the planner may take the small partial index on running jobs, which under churn is full of dead
# entries: 14,000 instead of 37,000 jobs/s. A cancel requested after the decision blocks the write,
# so that the ending is decided again with the cancel. A success is written either way.
UPDATE = f""", updated AS (
    UPDATE django_jobs_job AS job
    SET status = CASE WHEN {SIGNALLED} THEN {AT_THE_GATES} ELSE s.status END, worker_id = NULL,
        awaits = CASE WHEN {SIGNALLED} THEN NULL ELSE s.awaits END,
        failures = coalesce(s.failures, 0), crashes = coalesce(s.crashes, 0),
        available_at = CASE WHEN s.delay IS NULL THEN job.available_at
                            ELSE s.now + make_interval(secs => {DELAY}) END,
        queue = coalesce(s.queue, job.queue), gates = coalesce(s.gates, job.gates),
        priority = coalesce(s.priority, job.priority),
        rank = CASE WHEN s.delay IS NULL THEN job.rank
                    WHEN s.weight IS NOT NULL THEN date_part('epoch', s.now) + s.delay
                         - coalesce(s.priority, job.priority) * s.weight
                    ELSE job.rank + date_part('epoch', s.now) + {DELAY}
                         - date_part('epoch', job.available_at) END,
        started_at = s.ended_at - make_interval(secs => s.ran),
        retry_until = CASE WHEN s.outcome <> 'snoozed' THEN coalesce(job.retry_until,
            coalesce(s.ended_at - make_interval(secs => s.ran), job.claimed_at)
            + make_interval(secs => s.retry_for)) END,
        finished_at = CASE WHEN s.final THEN s.ended_at END,
        result = s.result::jsonb, skipped = s.skipped,
        last_error = coalesce(s.error, job.last_error),
        fingerprint = coalesce(s.fingerprint, job.fingerprint),
        reason = CASE WHEN s.status = 'cancelled' AND s.skipped IS NULL
                           AND job.cancel_requested_at IS NOT NULL
                      THEN coalesce(nullif(job.reason, ''), s.reason, '')
                      ELSE coalesce(s.reason, '') END
    FROM settled AS s
    {ITS_OWN}
      AND job.{IN_LIVE} AND (job.cancel_requested_at IS NULL OR s.cancel_no_matter){{only}}
    RETURNING job.id, job.attempt, job.available_at, job.ready_at, job.claimed_at, job.started_at,
        job.status, job.gates, job.tenant, job.resources, job.queue, s.queue IS NOT NULL AS moved,
        {TOLD}
)"""
UPDATED = UPDATE.format(only="")
RUNS = """django_jobs_run (
    job_id, attempt, outcome, worker_id, available_at, ready_at, claimed_at, started_at,
    finished_at, error_type, error_code, error_message, traceback, fingerprint, traceparent,
    cpu_seconds, max_rss_kb, queries, query_seconds, log)
SELECT u.id, u.attempt, u.outcome, u.worker, coalesce(to_timestamp(u.due), u.available_at),
    u.ready_at, u.claimed_at, u.started_at, u.ended_at,
    coalesce(u.error_type, ''), coalesce(u.error_code, ''), coalesce(u.error_message, ''),
    coalesce(u.traceback, ''), coalesce(u.fingerprint, ''), coalesce(u.traceparent, ''),
    u.cpu_seconds, u.max_rss_kb, u.queries, u.query_seconds, u.log
FROM updated AS u
RETURNING job_id
"""
SETTLE = f"""
{ENDINGS}{UPDATED}
INSERT INTO {RUNS}"""

# For one ending: no other row is read, even if the planner knows nothing of the table. Two
# SERIALIZABLE transactions that read the rows of each other's jobs cannot both commit. And the
# settle of one of 4,000 jobs that were just enqueued takes 0.6 of the time.
SETTLE_ONE = f"""
{ENDINGS}{UPDATE.format(only=" AND job.id = %(id)s")}
INSERT INTO {RUNS}"""

# For a few, whose plan is kept: by their ids alone PostgreSQL has an index to read even where the
# plan is made for a small table. Of hundreds each would be compared with each.
FEW = 100
UPDATED_FEW = UPDATE.format(only=" AND job.id = ANY(%(few)s::bigint[])")
SETTLE_FEW = f"""
{ENDINGS}{UPDATED_FEW}
INSERT INTO {RUNS}"""

# The slot of an ended job passes to the best blocked one of its line, which counts nothing and
# locks no key: 0.83 of the drain without keys, where counting after each settle fell to 0.27. Not
# between tenants, which take turns, and not for resources with a rate or a breaker, or with more
# jobs than they should have, and not in a paused queue: there each job needs an admission. So it
# does where the next job may be one too many (``on_conflict``), or where the ended one went to
# another queue and its gates are those of another line.
HAND_OVER = f""", written AS (
INSERT INTO {RUNS}), freed AS MATERIALIZED (
    SELECT u.gates, u.resources, count(*) AS slots FROM updated AS u
    WHERE u.gates IS NOT NULL AND u.tenant IS NULL AND u.status <> 'ready' AND NOT u.moved
      AND right(u.gates, {len(JUST_WAITS)}) = '{JUST_WAITS}'
      AND u.gates <> ALL(%(compared)s::text[])
      AND u.queue NOT IN (SELECT name FROM django_jobs_queue WHERE paused_at IS NOT NULL)
    GROUP BY u.gates, u.resources
), heirs AS MATERIALIZED (
    SELECT next.id FROM freed AS line CROSS JOIN LATERAL (
        SELECT job.id FROM django_jobs_job_live AS job
        WHERE {IN_LINE}
        ORDER BY job.gates, job.rank, job.id
        LIMIT line.slots
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next
    WHERE line.resources IS NULL OR NOT EXISTS (
        SELECT 1 FROM django_jobs_resource AS resource
        WHERE line.resources ? resource.name
          AND ({LIMITS_MORE_THAN_SLOTS}))
), opened AS (
    UPDATE django_jobs_job_live AS job SET {ADMITTED}
    WHERE job.id = ANY(ARRAY(SELECT id FROM heirs))
    RETURNING job.queue, job.resources IS NOT NULL AS shared
)
SELECT job_id, NULL, NULL FROM written UNION ALL SELECT NULL, queue, shared FROM opened
"""
SETTLE_AND_HAND_OVER = f"""
{ENDINGS}{UPDATED}{HAND_OVER}"""
SETTLE_FEW_AND_HAND_OVER = f"""
{ENDINGS}{UPDATED_FEW}{HAND_OVER}"""

# Of the jobs of a batch that were to wait, those that may start at once.
SIGNALLED_ALREADY = """
SELECT DISTINCT queue, status FROM django_jobs_job_live
WHERE id = ANY(%(ids)s::bigint[]) AND status IN ('ready', 'blocked')
"""

# For successes that are not kept. Runs of earlier attempts go too, unless runs have an age.
SETTLE_AND_DELETE = f"""
{ENDINGS}, deleted AS (
    DELETE FROM django_jobs_job_live AS job USING settled AS s
    {ITS_OWN}
    RETURNING job.id, job.attempt, job.available_at, job.ready_at, job.claimed_at,
        {TOLD}
), progress AS (
    DELETE FROM django_jobs_progress WHERE job_id = ANY(ARRAY(SELECT id FROM deleted))
), receipts AS (
    DELETE FROM django_jobs_receipt WHERE job_id = ANY(ARRAY(SELECT id FROM deleted))
), earlier AS (
    DELETE FROM django_jobs_run
    WHERE %(with_runs)s AND job_id = ANY(ARRAY(SELECT id FROM deleted WHERE attempt > 1))
), written AS (
    INSERT INTO django_jobs_run (
        job_id, attempt, outcome, worker_id, available_at, ready_at, claimed_at, started_at,
        finished_at, error_type, error_message, traceback, fingerprint, traceparent,
        cpu_seconds, max_rss_kb, queries, query_seconds, log)
    SELECT d.id, d.attempt, d.outcome, d.worker, d.available_at, d.ready_at, d.claimed_at,
        d.ended_at - make_interval(secs => d.ran), d.ended_at, '', '', '', '',
        coalesce(d.traceparent, ''),
        d.cpu_seconds, d.max_rss_kb, d.queries, d.query_seconds, d.log
    FROM deleted AS d
    WHERE NOT %(with_runs)s
)
SELECT id FROM deleted
"""

# Why a settle was refused: an earlier try wrote it and the answer to its commit was lost, a cancel
# came in between, or the job is no longer ours. The outcome distinguishes a run that we wrote from
# one that the reaper wrote for our attempt: that one is "lost".
EXPLAIN_REFUSAL = """
SELECT asked.id,
    (SELECT run.outcome FROM django_jobs_run AS run
     WHERE run.job_id = asked.id AND run.attempt = asked.attempt
       AND run.worker_id = asked.worker) AS outcome,
    EXISTS (SELECT 1 FROM django_jobs_job_live AS job
            WHERE job.id = asked.id AND job.attempt = asked.attempt
              AND job.worker_id = asked.worker) AS ours
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::bigint[])
    AS asked (id, attempt, worker)
"""

REASONS = "SELECT id, reason FROM django_jobs_job_live WHERE id = ANY(%(ids)s::bigint[])"

# For jobs that were prefetched and never started: restores the row as it was before the claim, or
# cancels it if that was requested meanwhile. Leaves no run. Skips rows that another session has
# locked, because a claimer that waits for one row claims nothing.
GIVE_BACK = f"""
WITH held AS MATERIALIZED (
    SELECT job.id FROM django_jobs_job_live AS job
    WHERE job.id = ANY(%(ids)s::bigint[])
      AND job.attempt = (%(attempts)s::integer[])[array_position(%(ids)s::bigint[], job.id)]
      AND job.worker_id = (%(workers)s::bigint[])[array_position(%(ids)s::bigint[], job.id)]
    ORDER BY job.id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_job AS job
SET status = CASE WHEN job.cancel_requested_at IS NULL THEN 'ready' ELSE 'cancelled' END,
    finished_at = CASE WHEN job.cancel_requested_at IS NULL THEN NULL
                       ELSE clock_timestamp() END,
    reason = CASE WHEN job.cancel_requested_at IS NULL THEN ''
                  ELSE coalesce(nullif(job.reason, ''), 'cancelled') END,
    worker_id = NULL, claimed_at = NULL, attempt = job.attempt - 1
WHERE job.id = ANY(ARRAY(SELECT id FROM held)) AND job.{IN_LIVE}
RETURNING job.id, CASE WHEN job.status = 'cancelled' THEN job.workflow_run_id END
"""

NO_COST = RunCost()
NO_COSTS = dict.fromkeys(RunCost._fields, "{}")


def cost_columns(costs: Sequence[RunCost | None]) -> dict[str, str]:
    """The arrays of the costs. Empty if there are none: ``unnest`` fills shorter arrays up."""
    if not any(costs):
        return NO_COSTS
    if costs.count(costs[0]) == len(costs):  # all were as short
        columns: Iterable[Sequence[float | None]] = ([value] for value in costs[0] or NO_COST)
    else:
        columns = zip(*(cost or NO_COST for cost in costs), strict=True)
    return {
        name: _cost_column(values, len(costs))
        for name, values in zip(NO_COSTS, columns, strict=True)
    }


def _cost_column(values: Sequence[float | None], rows: int) -> str:
    if len(distinct := set(values)) == 1:  # not measured, or no queries
        (value,) = distinct
        return "{}" if value is None else as_array([_cost_text(value)] * rows)
    return as_array(map(_cost_text, values))


def _cost_text(value: float | None) -> str:
    if value is None:
        return "NULL"
    # To the microsecond: all 17 digits of a number take twice as long to write.
    return f"{value:.6f}" if isinstance(value, float) else str(value)
