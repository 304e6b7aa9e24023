"""How many live jobs there are of each kind: counted, or estimated where there are too many."""

from __future__ import annotations

# Three steps. Up to ``pages`` pages of the live jobs are read, so all of them if they are few: then
# this is the count. Otherwise the first jobs of each state that has an index are read by it. Of the
# states of which that is all, this is the count. The others are estimated from the pages that were
# read, which TABLESAMPLE takes evenly from the whole table.
DEPTH = """
WITH share AS MATERIALIZED (
    SELECT least(1, %(pages)s::float8 / greatest(1, pg_relation_size('django_jobs_job_live')
            / current_setting('block_size')::bigint)) AS read,
        %(most)s::bigint / greatest((SELECT count(*) FROM django_jobs_queue), 1) AS each
), sampled AS MATERIALIZED (
    SELECT queue, job_type, status, sign(priority) AS priority, tenant, count(*) AS jobs
    FROM django_jobs_job_live TABLESAMPLE SYSTEM (100 * (SELECT read FROM share))
    GROUP BY 1, 2, 3, 4, 5
), head AS MATERIALIZED (
    SELECT job.* FROM django_jobs_queue AS line CROSS JOIN LATERAL (
        (SELECT queue, job_type, status, sign(priority) AS priority, tenant
         FROM django_jobs_job_live WHERE status = 'ready' AND queue = line.name
         ORDER BY rank, id LIMIT (SELECT CASE WHEN read < 1 THEN each ELSE 0 END FROM share))
        UNION ALL
        (SELECT queue, job_type, status, sign(priority), tenant
         FROM django_jobs_job_live WHERE status = 'dead' AND queue = line.name
         ORDER BY finished_at, id
         LIMIT (SELECT CASE WHEN read < 1 THEN each ELSE 0 END FROM share))
    ) AS job
    UNION ALL
    (SELECT queue, job_type, status, sign(priority), tenant
     FROM django_jobs_job_live WHERE status = 'scheduled'
     ORDER BY available_at
     LIMIT (SELECT CASE WHEN read < 1 THEN %(most)s::bigint ELSE 0 END FROM share))
    UNION ALL
    (SELECT queue, job_type, status, sign(priority), tenant
     FROM django_jobs_job_live WHERE status = 'running'
     ORDER BY worker_id
     LIMIT (SELECT CASE WHEN read < 1 THEN %(most)s::bigint ELSE 0 END FROM share))
), counted AS MATERIALIZED (
    SELECT queue, job_type, status, priority, tenant, count(*) AS jobs
    FROM head GROUP BY 1, 2, 3, 4, 5
), exact AS MATERIALIZED (
    SELECT line.name AS queue, of.status
    FROM share, django_jobs_queue AS line CROSS JOIN (VALUES ('ready'), ('dead')) AS of (status)
    WHERE read < 1 AND each > (
        SELECT coalesce(sum(jobs), 0) FROM counted
        WHERE counted.queue = line.name AND counted.status = of.status)
    UNION ALL
    SELECT '*', of.status FROM share, (VALUES ('scheduled'), ('running')) AS of (status)
    WHERE read < 1 AND %(most)s::bigint > (
        SELECT coalesce(sum(jobs), 0) FROM counted WHERE counted.status = of.status)
), job AS MATERIALIZED (
    SELECT counted.*, 0 AS estimated FROM counted WHERE EXISTS (
        SELECT FROM exact WHERE exact.status = counted.status
        AND exact.queue IN (counted.queue, '*'))
    UNION ALL
    SELECT queue, job_type, status, priority, tenant, jobs / read, (read < 1)::int
    FROM sampled, share WHERE NOT EXISTS (
        SELECT FROM exact WHERE exact.status = sampled.status
        AND exact.queue IN (sampled.queue, '*'))
)
SELECT jsonb_build_object(
    'sampled', jsonb_build_array((SELECT to_jsonb(share) FROM share)),
    'jobs', ARRAY(SELECT to_jsonb(part) FROM (
        SELECT queue, status AS state, round(sum(jobs)) AS jobs,
            nullif(max(estimated), 0) AS estimated
        FROM (
            SELECT queue, status, jobs, estimated FROM job
            UNION ALL
            SELECT name, state, 0, 0 FROM django_jobs_queue CROSS JOIN unnest(ARRAY[
                'waiting', 'scheduled', 'blocked', 'ready', 'running', 'dead']) AS state
        ) AS each GROUP BY 1, 2 ORDER BY 1, 2 LIMIT %(series)s) AS part),
    'types', ARRAY(SELECT to_jsonb(part) FROM (
        SELECT queue, job_type, status AS state, round(sum(jobs)) AS jobs
        FROM job GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT %(series)s) AS part),
    'priorities', ARRAY(SELECT to_jsonb(part) FROM (
        SELECT queue, CASE priority WHEN -1 THEN 'low' WHEN 0 THEN 'normal' ELSE 'high' END
            AS priority, status AS state, round(sum(jobs)) AS jobs
        FROM job GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT %(series)s) AS part),
    'tenants', ARRAY(SELECT to_jsonb(part) FROM (
        SELECT tenant, status AS state, round(sum(jobs)) AS jobs
        FROM job WHERE tenant IN (
            SELECT tenant FROM job WHERE tenant IS NOT NULL
            GROUP BY tenant ORDER BY sum(jobs) DESC, tenant LIMIT %(tenants)s)
        GROUP BY 1, 2 ORDER BY 1, 2) AS part))
"""
