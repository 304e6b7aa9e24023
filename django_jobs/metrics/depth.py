"""How many live jobs there are of each kind: counted, or estimated where there are too many."""

from __future__ import annotations

from ..models.job import QUARANTINED
from ..models.queue import slo_began

KIND = "queue, job_type, status, sign(priority) AS priority, tenant"

# What waits is a step, waits for a signal, or for the last job of its schedule. What is blocked has
# gates or is quarantined.
INDEXED = {
    "status = 'scheduled'": "available_at",
    "status = 'running'": "worker_id",
    "status = 'blocked' AND gates IS NOT NULL": "gates, rank, id",
    f"status = 'blocked' AND gates IS NULL AND reason = '{QUARANTINED}'": "job_type, id",
    "status = 'waiting' AND workflow_run_id IS NULL AND awaits IS NOT NULL": "available_at",
    "status = 'waiting' AND workflow_run_id IS NULL AND awaits IS NULL"
    " AND schedule_id IS NOT NULL": "schedule_id, id",
}
"""Live jobs that no index has by queue, by the order of an index that has all of them."""

FIRST = "UNION ALL".join(
    f"""
    (SELECT {KIND}, true FROM django_jobs_job_live WHERE {which}
     ORDER BY {order} LIMIT (SELECT most FROM share))
    """
    for which, order in INDEXED.items()
)

# Three steps. A table of up to ``whole`` pages is read from end to end, within 50 ms: then this is
# the count. Otherwise the first jobs of each state are read by its indexes. Of the states of which
# that is all, this is the count. The others are estimated from ``pages`` pages, which TABLESAMPLE
# takes evenly from the whole table, and the same ones as long as it does not grow: an estimate
# stands still while nothing moves. Of jobs that lie side by side it may find none, so there are at
# least as many as were counted. ``late`` estimates as well how many ready jobs have waited longer
# than the objective of their queue; it is not executed if none has one, which saves a join with
# each job that was read. ``front`` are the first jobs of each queue in the order of their claims,
# which the parts of queues and of unclaimable jobs read too.
DEPTH = f"""
WITH share AS MATERIALIZED (
    SELECT CASE WHEN size <= %(whole)s THEN 1 ELSE %(pages)s::float8 / size END AS read,
        %(most)s::bigint / queues AS each, greatest(%(head)s::bigint / queues, 20) AS front,
        CASE WHEN size <= %(whole)s THEN 0 ELSE %(most)s::bigint END AS most
    FROM (SELECT greatest(count(*), 1) AS queues FROM django_jobs_queue) AS counted,
        (SELECT pg_relation_size('django_jobs_job_live')
            / current_setting('block_size')::bigint AS size) AS live
), front AS MATERIALIZED (
    SELECT line.name AS queue, line.slo_seconds, {slo_began("available_at", "ready_at")} AS slo_at,
        job.*
    FROM django_jobs_queue AS line CROSS JOIN LATERAL (
        SELECT job_type, payload_version, priority, tenant, available_at, ready_at
        FROM django_jobs_job_live WHERE status = 'ready' AND queue = line.name
        ORDER BY rank, id LIMIT (SELECT front FROM share)) AS job
), going AS MATERIALIZED (
    SELECT id FROM django_jobs_workflowrun WHERE status = 'running'
    ORDER BY id LIMIT (SELECT most FROM share)
), kind AS MATERIALIZED (
    SELECT queue, job_type, status, priority, tenant,
        (count(*) FILTER (WHERE in_head))::float8 AS counted,
        count(*) FILTER (WHERE NOT in_head) / (SELECT read FROM share) AS estimate
    FROM (
        SELECT {KIND}, false AS in_head FROM django_jobs_job_live
            TABLESAMPLE SYSTEM (100 * (SELECT read FROM share)) REPEATABLE (0)
        UNION ALL
        SELECT queue, job_type, 'ready', sign(priority), tenant, true
        FROM front WHERE (SELECT read FROM share) < 1
        UNION ALL
        SELECT job.* FROM django_jobs_queue AS line CROSS JOIN LATERAL (
            SELECT {KIND}, true
            FROM django_jobs_job_live WHERE status = 'dead' AND queue = line.name
            ORDER BY finished_at, id
            LIMIT (SELECT CASE WHEN read < 1 THEN each ELSE 0 END FROM share)) AS job
        UNION ALL
        {FIRST}UNION ALL
        (SELECT step.* FROM going CROSS JOIN LATERAL (
            SELECT {KIND}, true FROM django_jobs_job_live
            WHERE workflow_run_id = going.id AND status = 'waiting'
            LIMIT (SELECT most FROM share)) AS step
         LIMIT (SELECT most FROM share))
    ) AS one GROUP BY 1, 2, 3, 4, 5
), late AS MATERIALIZED (
    SELECT job.queue, count(*) / (SELECT read FROM share) AS jobs
    FROM django_jobs_job_live AS job
        TABLESAMPLE SYSTEM (100 * (SELECT read FROM share)) REPEATABLE (0)
    JOIN django_jobs_queue AS line ON line.name = job.queue
    WHERE job.status = 'ready'
      AND {slo_began("job.available_at", "job.ready_at")}
        < now() - make_interval(secs => line.slo_seconds)
    GROUP BY 1
), each_state AS MATERIALIZED (
    SELECT queue, status, sum(counted) AS counted, sum(estimate) AS estimate
    FROM (
        SELECT queue, status, counted, estimate FROM kind
        UNION ALL
        SELECT name, state, 0, 0 FROM django_jobs_queue CROSS JOIN unnest(ARRAY[
            'waiting', 'scheduled', 'blocked', 'ready', 'running', 'dead']) AS state
    ) AS one GROUP BY 1, 2
), known AS MATERIALIZED (
    SELECT each_state.*, read = 1 OR CASE
        WHEN status IN ('ready', 'dead') AND queue NOT IN (SELECT name FROM django_jobs_queue)
            THEN false  -- they were not looked for
        WHEN status = 'ready' THEN counted < front
        WHEN status = 'dead' THEN counted < each
        ELSE sum(counted) OVER (PARTITION BY status) < most
            AND (status <> 'waiting' OR (SELECT count(*) FROM going) < most)
            AND estimate * read <= counted END AS exact  -- else there are rows of no index
    FROM share, each_state
), depth AS MATERIALIZED (
    SELECT queue, status, exact, read < 1 AND (exact OR counted >= estimate) AS in_head,
        CASE WHEN exact AND read < 1 THEN counted ELSE greatest(counted, estimate) END AS jobs
    FROM share, known
), job AS MATERIALIZED (
    SELECT kind.*, CASE WHEN in_head THEN kind.counted ELSE estimate END AS jobs
    FROM kind JOIN depth USING (queue, status)
    WHERE CASE WHEN in_head THEN kind.counted ELSE estimate END > 0
), busiest_queue AS MATERIALIZED (
    SELECT queue AS name FROM depth GROUP BY 1 ORDER BY sum(jobs) DESC, 1 LIMIT %(series)s
)
"""

DEPTHS = {
    "sampled": "SELECT * FROM share",
    "jobs": """
        SELECT queue, status AS state, round(jobs) AS jobs, CASE WHEN NOT exact THEN 1 END
            AS estimated
        FROM depth WHERE queue IN (SELECT name FROM busiest_queue) ORDER BY 1, 2""",
    "types": """
        SELECT queue, job_type, status AS state, round(sum(jobs)) AS jobs
        FROM job GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT %(series)s""",
    "priorities": """
        SELECT queue, CASE priority WHEN -1 THEN 'low' WHEN 0 THEN 'normal' ELSE 'high' END
            AS priority, status AS state, round(sum(jobs)) AS jobs
        FROM job GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT %(series)s""",
    "tenants": """
        SELECT tenant, status AS state, round(sum(jobs)) AS jobs
        FROM job WHERE tenant IN (
            SELECT tenant FROM job WHERE tenant IS NOT NULL
            GROUP BY tenant ORDER BY sum(jobs) DESC, tenant LIMIT %(tenants)s)
        GROUP BY 1, 2 ORDER BY 1, 2""",
}
"""The parts of the numbers that are read from :data:`DEPTH`, the start of the statement."""
