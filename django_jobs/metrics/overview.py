"""The numbers of the overview in the admin that ``/metrics`` does not have. One statement takes
them, at most every five seconds for all that look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from django.utils import timezone

from .. import registry
from ..domain.workflows import WAIT
from ..lifecycle.backlog import MOST_COUNTED
from ..lifecycle.backlog_samples import PAST, RATE_SECONDS, Past
from ..lifecycle.compensating import FAILED as NOT_UNDONE
from ..lifecycle.gate_limits import in_line
from ..lifecycle.run_totals import FAILED, MINUTE, TIMES
from ..lifecycle.waits import SIGNAL_KEY
from ..models.database import fetch, with_parts
from ..models.worker import IS_ALIVE
from .forecast import JOB_OF_RUN, SLOTS
from .slo import MOST_LATE, OBJECTIVES
from .stored import SHOWN, Parts, read_stored, statement
from .totals import histogram

MINUTES = 60
"""What the page covers. The last one is not over."""
RATE_MINUTES = 5
"""Minutes that are over, whose runs give the rates of now."""

BOUNDS = {
    "types": 20,
    "workers": 20,
    "named": 3,
    "next": 8,
    "newest": 3_000,
    "groups": 8,
    "recent": 200,
    "not_undone": 5,
    "running": 10_000,
    "first": 1_000,
    "pages": 100,
    "keys": 10,
    "each": 400,
}
"""What it returns: job types, workers, jobs of each that holds something, due times, groups of
failures, runs of workflows of which not all was undone; and what it reads: ``newest`` runs (and
whether as many before them have one of the last hour), ``recent`` workflow runs, ``running`` jobs,
the ``first`` schedules and steps that wait for a person, ``pages`` of the live jobs, and ``each``
job of the lines of the ``keys`` that are found there."""


def _of(outcomes: str, columns: str = "runs") -> str:
    return f"coalesce(sum({columns}) FILTER (WHERE outcome {outcomes}), 0)"


ENDED = f"""{_of("= 'succeeded'")} AS succeeded, {_of(f"IN {FAILED}")} AS failed,
            {_of(f"NOT IN ('succeeded', {FAILED[1:]}")} AS others"""
"""The attempts that ended, by outcome."""

# Totals of a minute have the key (period, began_at, ...). The planner knows the value of this.
LAST_HOUR = f"""(date_bin('1 minute', statement_timestamp(), 'epoch') - interval '{MINUTES} min')"""
RECENT = f"""
WITH minute AS MATERIALIZED (
    SELECT date_bin('1 minute', statement_timestamp(), 'epoch') AS now
), recent AS MATERIALIZED (
    SELECT began_at, queue, job_type, outcome, runs, runtime_seconds FROM django_jobs_runtotal
    WHERE period = {MINUTE}
      AND began_at > {LAST_HOUR}
), running_job AS MATERIALIZED (
    SELECT id, queue, job_type, claimed_at, worker_id FROM django_jobs_job_live
    WHERE status = 'running' ORDER BY worker_id LIMIT %(running)s
)
"""
# A time may be infinite, or beyond an integer. Rounded, the end of a minute would be in the next.
MINUTES_AGO = """trunc(greatest(least(
    date_part('epoch', {now}) - date_part('epoch', {at}), 1e9), -1e9) / 60)::int"""
BEGAN_AGO = MINUTES_AGO.format(now="now", at="began_at")
LAST_RUN = "(SELECT pg_sequence_last_value('django_jobs_run_id_seq'))"
SECONDS = "extract(epoch FROM clock_timestamp() - {})::float8"
# The pools that serve the late queues, and what their workers hold of the queues of these pools. A
# job does not say which pool of its worker runs it. Without late queues no job is looked at.
POOLS = f"""
WITH pool AS MATERIALIZED (
    SELECT name, slot.* FROM unnest(%(late_queues)s::text[]) AS name
    JOIN ({SLOTS}) AS slot (queues, threads, loop_slots, worker) ON jsonb_exists(queues, name)
), held AS MATERIALIZED (
    SELECT worker_id AS worker, queue, job_type, count(*) AS jobs,
        min(ARRAY[date_part('epoch', claimed_at), id]) AS oldest
    FROM running_job WHERE worker_id IN (SELECT worker FROM pool) GROUP BY 1, 2, 3
), busy AS MATERIALIZED (
    SELECT DISTINCT name, worker, queue, job_type, jobs, oldest,
        loop_slots > 0 AND job_type = ANY(%(async_types)s::text[]) AS on_loop
    FROM pool JOIN held USING (worker) WHERE jsonb_exists(queues, queue)
), kind AS (
    SELECT name, worker, on_loop, sum(slots) AS slots
    FROM pool
    CROSS JOIN LATERAL (VALUES (false, threads), (true, loop_slots)) AS of (on_loop, slots)
    GROUP BY 1, 2, 3
)
"""
JOB = f"jsonb_build_array(id, job_type, {SECONDS.format('claimed_at')}) ORDER BY claimed_at, id"

PARTS = {
    "minutes": f"""
        SELECT {BEGAN_AGO} AS ago, {ENDED}
        FROM recent, minute GROUP BY 1""",
    "rates": f"""
        SELECT queue, {_of("= 'succeeded' AND lately")} AS done,
            {_of(f"IN {FAILED} AND lately")} AS failed, {_of(f"IN {FAILED}")} AS failed_in_hour,
            sum(runs) AS runs, {_of("IS NOT NULL AND NOT on_loop", "runtime_seconds")} AS seconds,
            {_of("IS NOT NULL AND on_loop", "runtime_seconds")} AS seconds_on_loop
        FROM (SELECT *, job_type = ANY(%(async_types)s::text[]) AS on_loop,
                  began_at < now AND began_at >= now - interval '{RATE_MINUTES} min' AS lately
              FROM recent, minute) AS recent
        WHERE queue = ANY(%(queues)s::text[]) GROUP BY 1""",
    "types": f"""
        SELECT job_type, sum(runs) AS runs, {_of(f"IN {FAILED}")} AS failed,
            {", ".join(map(histogram, TIMES))}
        FROM django_jobs_runtotal
        WHERE period = {MINUTE}
          AND began_at > {LAST_HOUR}
          AND job_type = ANY(ARRAY(SELECT job_type FROM recent WHERE job_type <> ''
              GROUP BY 1 ORDER BY sum(runs) DESC, 1 LIMIT %(types)s))
        GROUP BY 1 ORDER BY 2 DESC, 1""",
    "curves": f"""
        SELECT name AS queue, ARRAY(
            SELECT jsonb_build_array({MINUTES_AGO.format(now="now", at="taken_at")}, ready)
            FROM django_jobs_backlogsample, minute
            WHERE queue = name AND taken_at > now - interval '{MINUTES} min' AND ready IS NOT NULL
            ORDER BY taken_at) AS points
        FROM unnest(%(queues)s::text[]) AS name""",
    "past": f"""
        SELECT * FROM ({PAST.replace("%(most)s", str(MOST_COUNTED))})
            AS part (queue, {", ".join(Past._fields)})
        WHERE queue = ANY(%(queues)s::text[])""",
    "objectives": OBJECTIVES.replace("%(most)s", str(MOST_LATE)),
    "paused": f"""
        SELECT name AS queue, {SECONDS.format("paused_at")} AS seconds, paused_reason AS reason
        FROM django_jobs_queue WHERE paused_at IS NOT NULL ORDER BY name LIMIT %(first)s""",
    "queue_ids": """
        SELECT id, name FROM django_jobs_queue WHERE name = ANY(%(queues)s::text[])""",
    "queue_holders": f"""
        SELECT name, ARRAY(
            SELECT jsonb_build_array(id, job_type, {SECONDS.format("claimed_at")})
            FROM running_job WHERE queue = name ORDER BY claimed_at, id LIMIT %(named)s) AS jobs
        FROM unnest(%(full_queues)s::text[]) AS name""",
    "pools": f"""
        {POOLS}
        SELECT name AS queue, on_loop, sum(slots) AS slots,
            sum(least(slots, coalesce(taken, 0))) AS taken, (
            SELECT jsonb_agg(jsonb_build_array(job_type, jobs, oldest[2]::bigint,
                date_part('epoch', clock_timestamp()) - oldest[1]) ORDER BY jobs DESC, job_type)
            FROM (
                SELECT job_type, sum(jobs) AS jobs, min(oldest) AS oldest FROM busy
                WHERE busy.name = kind.name AND busy.on_loop = kind.on_loop
                GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %(named)s) AS first) AS types
        FROM kind LEFT JOIN (
            SELECT name, worker, on_loop, sum(jobs) AS taken FROM busy GROUP BY 1, 2, 3
        ) AS of_worker USING (name, worker, on_loop)
        WHERE slots > 0 GROUP BY 1, 2""",
    "resource_holders": f"""
        SELECT name, ARRAY(
            SELECT jsonb_build_array(id, job_type, {SECONDS.format("coalesce(claimed_at, now())")})
            FROM (
                SELECT id, job_type, claimed_at FROM django_jobs_job_live AS job
                WHERE resources IS NOT NULL AND status IN ('ready', 'running')
                  AND jsonb_exists(resources, name)
                ORDER BY id LIMIT %(named)s) AS first) AS jobs
        FROM unnest(%(full_resources)s::text[]) AS name""",
    "resources": f"""
        SELECT id, name, breaker_state AS breaker, breaker_reason,
            {SECONDS.format("breaker_changed_at")} AS seconds,
            (paused_at IS NOT NULL) AS paused, paused_reason
        FROM (SELECT * FROM django_jobs_resource ORDER BY name LIMIT %(first)s) AS first
        WHERE breaker_state <> 'closed' OR paused_at IS NOT NULL
          OR name = ANY(%(full_resources)s::text[])
        ORDER BY name""",
    "workers": f"""
        SELECT id, name, host, pid, code_version AS version, threads, async_slots,
            CASE WHEN {IS_ALIVE} THEN status ELSE 'expired' END AS status,
            {SECONDS.format("heartbeat_at")} AS seconds, held.number AS jobs,
            coalesce(held.longest, '[]') AS longest
        FROM django_jobs_worker AS worker CROSS JOIN LATERAL (
            SELECT count(*) AS number, (
                SELECT jsonb_agg({JOB}) FROM (
                    SELECT job.id, job.job_type, job.claimed_at FROM django_jobs_job_live AS job
                    WHERE job.status = 'running' AND job.worker_id = worker.id
                    ORDER BY job.claimed_at, job.id LIMIT %(named)s) AS first) AS longest
            FROM django_jobs_job_live AS job
            WHERE job.status = 'running' AND job.worker_id = worker.id) AS held
        WHERE worker.id = ANY(ARRAY(
            SELECT id FROM django_jobs_worker AS worker WHERE status IN ('running', 'draining')
            ORDER BY {IS_ALIVE}, status, name, id LIMIT %(workers)s))
        ORDER BY {IS_ALIVE}, status, name, id""",
    # A line is found by its share of the pages, and counted by its index. TABLESAMPLE takes the
    # same pages each time, so that an estimate stands still while nothing moves.
    "keys": f"""
        WITH share AS MATERIALIZED (
            SELECT least(%(pages)s::float8 * current_setting('block_size')::bigint
                / greatest(pg_relation_size('django_jobs_job_live'), 1), 1) AS read
        )
        SELECT key, queue, first.id AS first, CASE WHEN jobs < %(each)s THEN jobs
            ELSE greatest(jobs, round(found / share.read)) END AS jobs, jobs >= %(each)s AS more
        FROM share CROSS JOIN LATERAL (
            SELECT gates, queue, concurrency_key AS key, count(*) AS found
            FROM django_jobs_job_live TABLESAMPLE SYSTEM (100 * share.read) REPEATABLE (0)
            WHERE status = 'blocked' AND gates IS NOT NULL AND concurrency_key IS NOT NULL
            GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1 LIMIT %(keys)s) AS line
        CROSS JOIN LATERAL (SELECT count(*) AS jobs, (array_agg(id))[1] AS id FROM (
            SELECT id FROM django_jobs_job_live AS job {in_line()} LIMIT %(each)s) AS counted
        ) AS first
        WHERE jobs > 0 ORDER BY 4 DESC, 1, 2""",
    "due": f"""
        SELECT id, name, job_type, -{SECONDS.format("next_due_at")} AS seconds
        FROM django_jobs_schedule
        WHERE enabled AND paused_at IS NULL AND error = '' AND next_due_at IS NOT NULL
        ORDER BY next_due_at LIMIT %(next)s""",
    "broken": """
        SELECT id, name, error
        FROM (SELECT * FROM django_jobs_schedule ORDER BY id LIMIT %(first)s) AS first
        WHERE error <> '' ORDER BY id LIMIT %(named)s""",
    "workflows": f"""
        (SELECT id, name, status, {SECONDS.format("started_at")} AS seconds
         FROM django_jobs_workflowrun WHERE status = 'running' ORDER BY id LIMIT %(named)s)
        UNION ALL
        (SELECT id, name, status, {SECONDS.format("finished_at")} FROM (
            SELECT * FROM django_jobs_workflowrun
            WHERE finished_at >= statement_timestamp() - interval '1 hour'
            ORDER BY finished_at DESC LIMIT %(recent)s) AS ended
         WHERE status = 'failed' ORDER BY finished_at DESC LIMIT %(named)s)""",
    # A receipt keeps when the wait began. Steps that declare fields are for a person.
    "asking": f"""
        SELECT run.id, run.name, step.step, {SECONDS.format("receipt.made_at")} AS seconds,
            count(*) OVER () AS steps
        FROM (
            SELECT * FROM django_jobs_job_live
            WHERE status = 'waiting' AND awaits IS NOT NULL
            ORDER BY available_at LIMIT %(first)s) AS step
        JOIN django_jobs_workflowrun AS run ON run.id = step.workflow_run_id
        JOIN django_jobs_receipt AS receipt
            ON receipt.job_id = step.id AND receipt.key = '{SIGNAL_KEY}' || step.awaits
        WHERE step.job_type = '{WAIT}' AND jsonb_exists(step.payload, 'fields')
          AND receipt.made_at < statement_timestamp() - interval '1 day'
        ORDER BY receipt.made_at, run.id LIMIT 1""",
    "not_undone": NOT_UNDONE.replace("%(most)s", "%(not_undone)s"),
    # Those that a person has not dealt with: a dead step that is replayed, skipped or dismissed is
    # dead no more.
    "failed_runs": f"""
        SELECT id, name, {SECONDS.format("finished_at")} AS seconds, count(*) OVER () AS runs
        FROM (
            SELECT * FROM django_jobs_workflowrun
            WHERE finished_at >= statement_timestamp() - interval '1 hour'
            ORDER BY finished_at DESC LIMIT %(first)s) AS ended
        WHERE status = 'failed' AND EXISTS (
            SELECT FROM django_jobs_job_live AS job
            WHERE job.workflow_run_id = ended.id AND job.status = 'dead' OFFSET 0)
        ORDER BY finished_at DESC LIMIT %(named)s""",
    "older_runs": f"""
        SELECT id FROM django_jobs_run
        WHERE id <= {LAST_RUN} - %(newest)s AND id > {LAST_RUN} - 2 * %(newest)s
          AND finished_at >= %(day)s::timestamptz
          AND finished_at >= statement_timestamp() - interval '1 hour'
        LIMIT 1""",
    "failed_types": f"""
        SELECT job_type, sum(runs) AS runs,
            jsonb_agg(jsonb_build_array({BEGAN_AGO}, runs)) AS minutes
        FROM recent, minute WHERE outcome IN {FAILED} AND job_type <> ''
        GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %(groups)s""",
    # The newest runs by id: they have no index by time, and their ids follow it. What is lost with
    # a worker has one fingerprint, whatever the job type, so each run is asked for its type.
    "failures": f"""
        SELECT error_type, fingerprint, job.job_type, count(*) AS runs,
            {SECONDS.format("max(finished_at)")} AS seconds,
            array_agg({MINUTES_AGO.format(now="statement_timestamp()", at="finished_at")})
                AS minutes
        FROM (
            SELECT job_id, outcome, error_type, fingerprint, finished_at FROM django_jobs_run
            WHERE id > {LAST_RUN} - %(newest)s
              AND finished_at >= %(day)s::timestamptz
              AND finished_at >= statement_timestamp() - interval '1 hour'
            ORDER BY id DESC LIMIT %(newest)s
        ) AS ended LEFT JOIN {JOB_OF_RUN} ON true
        WHERE fingerprint <> '' AND outcome IN {FAILED}
        GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT %(groups)s""",
}
REFRESH = statement(RECENT, PARTS)

OF_QUEUE = "rates", "curves", "past"
QUEUE = with_parts({name: PARTS[name] for name in OF_QUEUE}, RECENT)


def read_overview(
    queues: Sequence[str],
    full_queues: Sequence[str],
    full_resources: Sequence[str],
    late_queues: Sequence[str],
) -> Parts:
    """The stored numbers, as :func:`~django_jobs.metrics.stored.read_stored`. If they are taken
    now, then those of these ``queues``, the jobs that hold those that are full, and those in the
    pools that serve the late ones."""
    parameters = {
        **BOUNDS,
        "day": timezone.now() - timedelta(days=1),
        "seconds": RATE_SECONDS + 30,
        "queues": list(queues),
        "full_queues": list(full_queues),
        "full_resources": list(full_resources),
        "late_queues": list(late_queues),
        "async_types": registry.loop_types(),
    }
    return read_stored(SHOWN, REFRESH, parameters, PARTS.keys())


def read_queue(queue: str) -> Parts:
    """The parts about a queue that is not among the stored ones. Nothing is stored."""
    parameters = {"seconds": RATE_SECONDS + 30, "async_types": registry.loop_types()}
    ((values,),) = fetch(QUEUE, {**BOUNDS, **parameters, "queues": [queue]})
    parts: Parts = json.loads(values)
    return parts
