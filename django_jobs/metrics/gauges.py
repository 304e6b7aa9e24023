"""The numbers of ``/metrics``, taken by one statement at most every five seconds."""

from __future__ import annotations

from itertools import islice
from typing import Any

from .. import registry
from ..domain.admission import ALWAYS
from ..lifecycle.backlog_samples import FRESH_SECONDS
from ..lifecycle.pruning import SUCCESSES_KEPT, queues_without_successes
from ..lifecycle.reaping import OUT_OF_LEASE
from ..lifecycle.run_totals import SINCE_THE_BEGINNING
from ..lifecycle.workers import MOST_STARTED
from ..models.resource import FADED
from ..models.worker import IS_ALIVE
from .depth import DEPTH, DEPTHS
from .forecast import SLOTS
from .limits import BUSIEST_RESOURCES
from .schedules import LAG, STATES
from .stored import SCRAPED, Parts, read_stored, statement
from .totals import SUMS, SUMS_OF_RESOURCES, SUMS_OF_TENANTS
from .unclaimable import AT_GATES, FIRST_BLOCKED, quarantined_up_to, unclaimable_among

Gauges = Parts

BOUNDS = {
    "whole": 4_000,
    "pages": 200,
    "most": 1_000,
    "head": 4_000,
    "lines": 1_000,
    "recent": 500,
    "series": 500,
    "tenants": 20,
}
"""What the statement reads: all live jobs in up to ``whole`` pages, ``pages`` of more, ``most``
rows of an index, the ``head`` of all queues together and of all ``lines`` of blocked jobs together,
and ``recent`` dead jobs of each; and what it returns: rows of a part, and tenants."""

ALL_TIME = {"period": SINCE_THE_BEGINNING}
"""Which totals of runs are read: a counter counts from the beginning."""

BUSIEST_TYPES = """pair AS MATERIALIZED (
    SELECT queue, job_type, sum(runs) AS runs, sum(slo_runs) AS slo_runs, sum(slo_met) AS slo_met
    FROM django_jobs_runtotal WHERE period = %(period)s GROUP BY 1, 2
), busiest_type AS MATERIALIZED (
    SELECT queue, job_type FROM pair ORDER BY runs DESC, 1, 2 LIMIT %(series)s
)"""

ENDED_BY = f"""CASE WHEN status = 'lost' THEN CASE stop_reason
        WHEN '{OUT_OF_LEASE}' THEN 'lease_over'
        WHEN 'its process ended with SIGKILL' THEN 'killed' ELSE 'crashed' END
    WHEN starts_with(stop_reason, 'recycled:') THEN 'recycled'
    WHEN drain_requested_at IS NOT NULL THEN 'drained' ELSE 'stopped' END"""
DRAIN_SECONDS = """CASE WHEN isfinite(stopped_at)
        AND isfinite(coalesce(drain_requested_at, draining_at))
    THEN date_part('epoch', stopped_at - coalesce(drain_requested_at, draining_at)) END"""

# Each part is a list of rows. Their columns are labels and values: see exposition.py.
# Workers of one release have the same queues, which are told apart by hash: see unclaimable.py.
PARTS = {
    "queues": f"""
        WITH served AS MATERIALIZED (
            SELECT queue, sum(threads) AS threads, sum(loop_slots) AS loop_slots
            FROM (
                SELECT (array_agg(queues))[1] AS queues, sum(threads) AS threads,
                    sum(loop_slots) AS loop_slots
                FROM ({SLOTS}) AS slot (queues, threads, loop_slots)
                GROUP BY jsonb_hash_extended(queues, 0)
            ) AS alike, jsonb_array_elements_text(queues) AS of (queue) GROUP BY 1),
        overdue AS MATERIALIZED (
            SELECT job.queue, min(job.available_at) AS since, count(*) FILTER (WHERE
                job.available_at < now() - make_interval(secs => of_job.slo_seconds)) AS late
            FROM (
                SELECT queue, available_at FROM django_jobs_job_live
                WHERE status = 'scheduled' AND available_at < statement_timestamp()
                ORDER BY available_at LIMIT %(most)s) AS job
            JOIN django_jobs_queue AS of_job ON of_job.name = job.queue GROUP BY 1),
        ahead AS MATERIALIZED (
            SELECT queue, count(*) AS read, least(greatest(date_part('epoch', clock_timestamp())
                - date_part('epoch', min(available_at)), 0), 1e9) AS oldest,
                count(*) FILTER (WHERE slo_at
                    < now() - make_interval(secs => slo_seconds)) AS late
            FROM front GROUP BY 1)
        SELECT queue.name AS queue, (queue.paused_at IS NOT NULL)::int AS paused,
            queue.max_concurrency, queue.max_backlog, queue.slo_seconds,
            {SUCCESSES_KEPT} AS retention,
            coalesce(queue.retention ? 'succeeded', false) AS has_retention,
            CASE WHEN queue.slo_seconds IS NOT NULL THEN queue.slo_target END AS slo_target,
            coalesce(ahead.oldest, 0) AS oldest_ready_seconds,
            coalesce(least(greatest(date_part('epoch', clock_timestamp())
                - date_part('epoch', overdue.since), 0), 1e9), 0) AS overdue_scheduled_seconds,
            (SELECT greatest(drain_seconds - date_part('epoch', now() - taken_at), 0) FROM (
                SELECT taken_at, drain_seconds FROM django_jobs_backlogsample
                WHERE queue = queue.name AND taken_at >= now() - interval '{FRESH_SECONDS} s'
                ORDER BY taken_at DESC LIMIT 1) AS sample
             WHERE drain_seconds IS NOT NULL) AS drain_seconds,
            coalesce(served.threads, 0) AS threads, coalesce(served.loop_slots, 0) AS loop_slots,
            coalesce(served.threads + served.loop_slots, 0) AS slots,
            died.jobs AS recently_dead, died.of_ended_runs AS recently_dead_of_ended_runs,
            CASE WHEN queue.slo_seconds IS NOT NULL THEN coalesce(overdue.late, 0)
                + coalesce(greatest(ahead.late, CASE WHEN ahead.read >= (SELECT front FROM share)
                    THEN (SELECT round(jobs) FROM late WHERE late.queue = queue.name) END), 0)
            END AS late
        FROM busiest_queue JOIN django_jobs_queue AS queue USING (name)
        LEFT JOIN overdue ON overdue.queue = queue.name
        LEFT JOIN ahead ON ahead.queue = queue.name
        LEFT JOIN served ON served.queue = queue.name
        CROSS JOIN LATERAL (
            SELECT count(*) AS jobs, count(*) FILTER (WHERE counted.run IS NOT NULL AND (
                SELECT run.status FROM django_jobs_workflowrun AS run WHERE run.id = counted.run
            ) <> 'running') AS of_ended_runs
            FROM (
                SELECT job.workflow_run_id AS run FROM django_jobs_job_live AS job
                WHERE job.status = 'dead' AND job.queue = queue.name
                  AND job.finished_at >= statement_timestamp() - interval '1 hour'
                ORDER BY job.finished_at, job.id LIMIT %(recent)s) AS counted) AS died
        ORDER BY queue.name""",
    "unclaimable": f"""
        SELECT job_type, CASE WHEN version IS NULL THEN 'unknown_type' ELSE 'newer_version' END
            AS reason, sum(ready) AS jobs
        FROM ({
        unclaimable_among(f'''SELECT queue, job_type, payload_version FROM front
            UNION ALL ({FIRST_BLOCKED})''')
    }) AS kind (job_type, version, ready)
        GROUP BY 1, 2""",
    "quarantines": f"""
        WITH {AT_GATES}
        SELECT quarantine.job_type, least(%(recent)s, {quarantined_up_to("%(recent)s")}) AS jobs
        FROM django_jobs_quarantine AS quarantine
        WHERE quarantine.lifted_at IS NULL ORDER BY 1 LIMIT 100""",
    "workers": f"""
        SELECT code_version AS version, CASE WHEN {IS_ALIVE} THEN status ELSE 'expired' END
            AS status, count(*) AS workers
        FROM django_jobs_worker AS worker WHERE status IN ('running', 'draining')
        GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT %(series)s""",
    "worker_slots": f"""
        SELECT code_version AS version, kind, sum(slots) AS slots
        FROM django_jobs_worker AS worker
        CROSS JOIN LATERAL (VALUES ('thread', threads), ('async', async_slots)) AS of (kind, slots)
        WHERE {IS_ALIVE}
        GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT %(series)s""",
    "worker_jobs": f"""
        SELECT worker.code_version AS version,
            sum(jobs) FILTER (WHERE {IS_ALIVE}) AS jobs,
            sum(CASE WHEN started < {MOST_STARTED} THEN started
                ELSE least(jobs, worker.threads + worker.async_slots) END
            ) FILTER (WHERE {IS_ALIVE}) AS busy,
            sum(worker.claim_failures) AS claim_failures, sum(worker.ended_runs) AS runs,
            sum(worker.failed_runs) AS failed_runs,
            sum(worker.rss_mb::bigint * 1048576) FILTER (WHERE {IS_ALIVE}) AS rss_bytes
        FROM django_jobs_worker AS worker CROSS JOIN LATERAL (
            SELECT count(*) AS jobs, CASE jsonb_typeof(worker.started_jobs)
                WHEN 'array' THEN jsonb_array_length(worker.started_jobs) ELSE 0 END AS started
            FROM django_jobs_job_live AS job
            WHERE job.status = 'running' AND job.worker_id = worker.id) AS held
        WHERE worker.status IN ('running', 'draining')
        GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT %(series)s""",
    "ended_workers": f"""
        SELECT version, reason, count(*) AS workers, max(seconds) AS drain_seconds
        FROM (
            SELECT code_version AS version, {ENDED_BY} AS reason, {DRAIN_SECONDS} AS seconds
            FROM django_jobs_worker
            WHERE stopped_at >= statement_timestamp() - interval '1 hour'
            ORDER BY stopped_at DESC LIMIT %(most)s) AS ended
        GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT %(series)s""",
    "heartbeats": f"""
        SELECT coalesce(extract(epoch FROM greatest(
            (SELECT max(clock_timestamp() - heartbeat_at) FROM django_jobs_worker
             WHERE status IN ('running', 'draining')),
            (SELECT max(stopped_at - heartbeat_at) FROM django_jobs_worker WHERE status = 'lost'
               AND stopped_at > statement_timestamp() - interval '5 min'))), 0) AS seconds,
            (SELECT count(*) FROM django_jobs_worker AS worker
             WHERE NOT listens AND {IS_ALIVE}) AS deaf""",
    "schedules": STATES,
    "lag": f"""
        SELECT coalesce(overdue_seconds, 0) AS lag, seen_seconds AS looked
        FROM ({LAG}) AS late""",
    "resources": f"""
        SELECT name AS resource, max_concurrency, max_waiting, rate / rate_seconds AS rate,
            (paused_at IS NOT NULL)::int AS paused, retry_budget,
            CASE WHEN retry_budget < 1 THEN coalesce(retries / nullif(retries + floor(greatest(
                (retry_budget * starts - retries) / nullif(1 - retry_budget, 0),
                {ALWAYS} - retries, 0)), 0), 0)
            WHEN retry_budget IS NOT NULL THEN 0 END AS retry_budget_used, taken, waiting
        FROM busiest_resource CROSS JOIN LATERAL (
            SELECT coalesce(recent_starts * {FADED}, 0) AS starts,
                coalesce(recent_retries * {FADED}, 0) AS retries) AS recent""",
    "breakers": """
        SELECT name AS resource, state, (breaker_state = state)::int AS is_in
        FROM busiest_resource CROSS JOIN unnest(ARRAY['closed', 'open', 'half_open']) AS state""",
    "tenant_rows": """
        SELECT name AS tenant, weight, max_concurrency, max_waiting,
            (paused_at IS NOT NULL)::int AS paused
        FROM django_jobs_tenant ORDER BY weight DESC, name LIMIT %(tenants)s""",
    "workflows": """
        SELECT count(*) AS runs FROM (
            SELECT FROM django_jobs_workflowrun WHERE status = 'running'
            ORDER BY id LIMIT %(most)s) AS counted""",
    "ended_workflows": """
        SELECT status, count(*) AS runs FROM (
            SELECT status FROM django_jobs_workflowrun
            WHERE finished_at >= statement_timestamp() - interval '1 hour'
            ORDER BY finished_at LIMIT %(most)s) AS ended GROUP BY 1""",
    "pairs": "SELECT count(*) AS pairs FROM pair",
    "times": f"""
        {SUMS} FROM django_jobs_runtotal JOIN busiest_type USING (queue, job_type)
        WHERE period = %(period)s GROUP BY 1, 2 ORDER BY 1, 2""",
    "resource_times": f"""
        {SUMS_OF_RESOURCES} FROM django_jobs_resourcetotal
        WHERE resource IN (SELECT name FROM busiest_resource) GROUP BY 1 ORDER BY 1""",
    "tenant_times": f"""
        {SUMS_OF_TENANTS} WHERE period = %(period)s AND tenant IN (
            SELECT tenant FROM django_jobs_tenanttotal WHERE period = %(period)s
            GROUP BY 1 ORDER BY sum(runs) DESC, 1 LIMIT %(tenants)s)
        GROUP BY 1 ORDER BY 1""",
    "slo": """
        SELECT queue, sum(slo_runs) AS runs, sum(slo_met) AS met FROM (
            SELECT queue, slo_runs, slo_met FROM pair WHERE slo_runs > 0
            UNION ALL SELECT name, 0, 0 FROM django_jobs_queue WHERE slo_seconds IS NOT NULL
        ) AS counted GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %(series)s""",
    "watermark": """
        SELECT CASE WHEN run_id < pg_sequence_last_value('django_jobs_run_id_seq')
            THEN extract(epoch FROM clock_timestamp() - reached_at) ELSE 0 END AS age
        FROM django_jobs_runwatermark WHERE id = 1 AND isfinite(reached_at)""",
    "failures": """
        SELECT error_type, fingerprint, sum(runs) AS runs FROM django_jobs_errortotal
        WHERE began_at
            > date_bin('1 minute', statement_timestamp(), 'epoch') - interval '60 min'
        GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 10""",
    # A vacuum holds back no other one. Sessions that wrote and are idle have no snapshot.
    "transactions": """
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) FILTER (WHERE
                (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
                AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)), 0) AS seconds,
            count(*) FILTER (WHERE wait_event_type = 'Lock'
                AND strpos(query, 'django_jobs_') > 0) AS lock_waits
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND leader_pid IS NULL""",
    "tables": """
        SELECT name AS table, pg_total_relation_size(relation) AS bytes,
            pg_stat_get_live_tuples(relation) AS live_rows,
            pg_stat_get_dead_tuples(relation) AS dead_rows,
            pg_stat_get_numscans(relation) AS sequential_scans, of.index_scans,
            pg_stat_get_blocks_hit(relation) + of.hits AS hits,
            pg_stat_get_blocks_fetched(relation) - pg_stat_get_blocks_hit(relation)
                + of.fetched - of.hits AS reads
        FROM unnest(ARRAY['job_live', 'worker', 'uniquekey', 'schedule']) AS name
        CROSS JOIN CAST('django_jobs_' || name AS regclass) AS relation
        CROSS JOIN LATERAL (
            SELECT sum(pg_stat_get_numscans(indexrelid)) AS index_scans,
                sum(pg_stat_get_blocks_hit(indexrelid)) AS hits,
                sum(pg_stat_get_blocks_fetched(indexrelid)) AS fetched
            FROM pg_index WHERE indrelid = relation) AS of""",
}
REFRESH = statement(f"{DEPTH}, {BUSIEST_RESOURCES}, {BUSIEST_TYPES}", PARTS | DEPTHS)


def read_gauges() -> Gauges:
    """The stored numbers, as :func:`~django_jobs.metrics.stored.read_stored`."""
    parameters = {**BOUNDS, **ALL_TIME}
    gauges = read_stored(SCRAPED, REFRESH, parameters, PARTS.keys() | DEPTHS.keys())
    _add_keeps_successes(gauges["queues"])
    _add_deliveries(gauges)
    _add_runs(gauges)
    return gauges


def _add_keeps_successes(queues: list[dict[str, Any]]) -> None:
    # A retention of its own may be null, for ever. Older code stored no more than the value.
    has_own = [row for row in queues if row.get("has_retention", row["retention"] is not None)]
    own = {row["queue"]: row["retention"] for row in has_own}
    unkept = queues_without_successes([row["queue"] for row in queues], own)
    for row in queues:
        row["keeps_successes"] = int(row["queue"] not in unkept)


def _add_deliveries(gauges: Gauges) -> None:
    deliveries = {name: registry.get(name).delivery for name in sorted(registry.names())}
    gauges["job_types"] = [
        {"job_type": name, "delivery": delivery, "info": 1}
        for name, delivery in islice(deliveries.items(), BOUNDS["series"])
    ]
    for pair in gauges["times"]:
        delivery = deliveries.get(pair["job_type"])
        if delivery == "at_most_once":
            pair["lost"] = pair["outcomes"]["lost"]
        elif delivery == "exactly_once":
            pair["repeated"] = pair["retries"]


def _add_runs(gauges: Gauges) -> None:
    """A row for each pair and outcome: to make them in PostgreSQL took 17 of the 85 ms of the
    statement. Zeros too: increase() does not see what a counter has at its first scrape."""
    gauges["runs"] = _by_outcome(gauges["times"], "queue", "job_type")
    gauges["resource_runs"] = _by_outcome(gauges["resource_times"], "resource")
    gauges["tenant_runs"] = _by_outcome(gauges["tenant_times"], "tenant")


def _by_outcome(rows: list[dict[str, Any]], *labels: str) -> list[dict[str, Any]]:
    return [
        {**{label: row[label] for label in labels}, "outcome": outcome, "runs": runs}
        for row in rows
        for outcome, runs in row["outcomes"].items()
    ]
