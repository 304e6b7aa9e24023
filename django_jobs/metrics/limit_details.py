"""A resource or a tenant as it is now: what is taken of it, by which jobs, and what waits for it.
It takes two statements, each bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..domain.gates import Gates
from ..lifecycle.gates.supply import TOKENS
from ..lifecycle.run_totals import MINUTE
from ..models import Resource, Tenant
from ..models.database import fetch_last
from ..models.resource import FADED
from .limits import read_lines
from .overview import BEGAN_AGO, ENDED, LAST_HOUR
from .stored import PLAIN, Parts, with_parts

LONGEST_WINDOW = 1e9
BUCKETS = 30
"""Points of the curve of failures, from the first of the window to the last."""
MOST_COUNTED = 10_000
"""Jobs that are counted of those that hold it, and of those that wait."""
BOUNDS = {"most": MOST_COUNTED, "holders": 8, "next": 5, "lines": 8, "outcomes": 10_000}
"""What it reads: jobs that are ready or running, and outcomes; and what it returns: jobs that hold
it, jobs that are next, and lines."""

# As numbers: a time may be infinite.
AGO = "date_part('epoch', clock_timestamp()) - date_part('epoch', {})"
JOB = "job.id, job.status, job.job_type, job.queue, job.tenant, job.claimed_at, job.attempt"
RESOURCE_HOLDERS = f"""
SELECT * FROM (
    SELECT {JOB}, job.resources FROM django_jobs_job_live AS job
    WHERE job.resources IS NOT NULL AND job.status IN ('ready', 'running')
    ORDER BY job.id LIMIT %(most)s) AS of_any
WHERE jsonb_exists(of_any.resources, %(name)s)"""
TENANT_HOLDERS = f"""
SELECT {JOB} FROM django_jobs_job_live AS job
WHERE job.tenant = %(name)s AND job.status IN ('ready', 'running')
ORDER BY job.queue, job.tenant LIMIT %(most)s"""
# The lines are given: no index finds those of one resource.
IN_THIS_LINE = """
    WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates = line.gates
    ORDER BY job.gates, job.rank, job.id"""
PARTS = {
    "taken": """
        SELECT count(*) FILTER (WHERE status = 'running') AS running,
            count(*) FILTER (WHERE status = 'ready') AS ready,
            count(*) >= %(most)s AS more
        FROM used""",
    "holders": f"""
        SELECT first.*, {AGO.format("claimed_at")} AS seconds, progress.fraction
        FROM (SELECT id, status, job_type, queue, tenant, claimed_at, attempt FROM used
              ORDER BY claimed_at NULLS LAST, id LIMIT %(holders)s) AS first
        LEFT JOIN django_jobs_progress AS progress
            ON progress.job_id = first.id AND progress.attempt = first.attempt
        ORDER BY claimed_at NULLS LAST, id""",
    "waiting": """
        SELECT coalesce(sum(jobs), 0) AS jobs, coalesce(bool_or(jobs >= %(each)s), false) AS more
        FROM line""",
    "lines": """
        SELECT gates, jobs, jobs >= %(each)s AS more
        FROM line ORDER BY jobs DESC, gates LIMIT %(lines)s""",
    "next": f"""
        SELECT job.id, job.job_type, job.queue, job.tenant,
            {AGO.format("job.available_at")} AS seconds
        FROM line CROSS JOIN LATERAL (
            SELECT * FROM django_jobs_job_live AS job {IN_THIS_LINE} LIMIT %(next)s) AS job
        ORDER BY job.rank, job.id LIMIT %(next)s""",
}
OF_RESOURCE = {
    **PARTS,
    # Those that use another resource are read too.
    "read": """
        SELECT count(*) >= %(most)s AS more FROM (
            SELECT FROM django_jobs_job_live
            WHERE resources IS NOT NULL AND status IN ('ready', 'running')
            LIMIT %(most)s) AS first""",
    "meters": f"""
        SELECT {TOKENS} AS tokens, coalesce(recent_starts * {FADED}, 0) AS starts,
            coalesce(recent_retries * {FADED}, 0) AS retries
        FROM django_jobs_resource WHERE name = %(name)s""",
    # Those before the last change of the breaker do not count.
    "outcomes": f"""
        SELECT floor(ago * %(buckets)s / %(window)s)::int AS ago, counts,
            count(*) FILTER (WHERE failed) AS failed,
            count(*) FILTER (WHERE NOT failed) AS succeeded
        FROM (
            SELECT failed, coalesce(happened_at > breaker_changed_at, true) AS counts,
                greatest({AGO.format("happened_at")}, 0) AS ago
            FROM django_jobs_resourceoutcome AS outcome, (
                SELECT breaker_changed_at FROM django_jobs_resource WHERE name = %(name)s
            ) AS breaker
            WHERE outcome.resource = %(name)s AND happened_at
                > statement_timestamp() - make_interval(secs => %(window)s::float8)
            ORDER BY happened_at DESC LIMIT %(outcomes)s) AS recent
        GROUP BY 1, 2""",
    "minutes": f"""
        SELECT {BEGAN_AGO} AS ago, {ENDED}
        FROM django_jobs_runtotal, minute
        WHERE period = {MINUTE} AND began_at > {LAST_HOUR} AND job_type = ANY(%(types)s::text[])
        GROUP BY 1""",
}
OF_TENANT = {
    **PARTS,
    # Of each queue where it waits, those that wait there too and are not paused.
    "shares": """
        SELECT mine.*, coalesce(others.tenants, 0) AS tenants, coalesce(weights, 0) AS weights
        FROM (SELECT queue, sum(jobs) AS jobs, bool_or(jobs >= %(each)s) AS more FROM line
              GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %(lines)s) AS mine
        LEFT JOIN (
            SELECT turn.queue, count(*) AS tenants, sum(coalesce(weight, 1.0)) AS weights
            FROM unnest(%(turn_queues)s::text[], %(turn_tenants)s::text[]) AS turn (queue, tenant)
            LEFT JOIN django_jobs_tenant ON name = tenant
            WHERE paused_at IS NULL GROUP BY 1
        ) AS others USING (queue)
        ORDER BY 2 DESC, 1""",
}


def _statement(holders: str, parts: Mapping[str, str]) -> str:
    start = f"""
    WITH used AS MATERIALIZED ({holders}), minute AS MATERIALIZED (
        SELECT date_bin('1 minute', statement_timestamp(), 'epoch') AS now
    ), line AS MATERIALIZED (
        SELECT line.gates, line.queue, (SELECT count(*) FROM (
            SELECT FROM django_jobs_job_live AS job {IN_THIS_LINE} LIMIT %(each)s) AS counted
        ) AS jobs
        FROM unnest(%(texts)s::text[], %(queues)s::text[]) AS line (gates, queue)
    )"""
    return with_parts(start, parts)


RESOURCE = _statement(RESOURCE_HOLDERS, OF_RESOURCE)
TENANT = _statement(TENANT_HOLDERS, OF_TENANT)


@dataclass(frozen=True, slots=True)
class LimitDetails:
    """The rows of each part, the gates of the ``lines`` of which some are named, and whether more
    wait, or hold it, than were counted."""

    parts: Parts
    lines: dict[str, Gates]
    more_wait: bool
    more_hold: bool

    def row(self, part: str) -> dict[str, Any]:
        """The first row of a part; empty without one."""
        return next(iter(self.parts[part]), {})


def read_resource(resource: Resource, job_types: Sequence[str]) -> LimitDetails:
    """What is known of a resource that these job types use."""
    lines, is_cut = read_lines(lambda gates: resource.name in gates.resources)
    window = min(resource.breaker_window, LONGEST_WINDOW)
    given = {"types": list(job_types), "window": window, "buckets": BUCKETS}
    return _read(RESOURCE, resource.name, lines, is_cut, given)


def read_tenant(tenant: Tenant) -> LimitDetails:
    """What is known of a tenant. The shares are of the queues where it waits."""
    of_all, is_cut = read_lines(lambda gates: gates.tenant is not None)
    lines = {text: gates for text, gates in of_all.items() if gates.tenant == tenant.name}
    queues = {gates.queue for gates in lines.values()}
    turns = {(one.queue, one.tenant) for one in of_all.values() if one.queue in queues}
    given = {
        "turn_queues": [queue for queue, _ in turns],
        "turn_tenants": [name for _, name in turns],
    }
    return _read(TENANT, tenant.name, lines, is_cut, given)


def _read(
    sql: str, name: str, lines: dict[str, Gates], is_cut: bool, given: dict[str, Any]
) -> LimitDetails:
    each = max(MOST_COUNTED // max(len(lines), 1), 1)
    parameters = {**BOUNDS, **given, "name": name, "each": each}
    parameters |= {"texts": list(lines), "queues": [one.queue for one in lines.values()]}
    ((values,),) = fetch_last((PLAIN, sql), parameters)
    parts: Parts = json.loads(values)
    more_hold = parts.get("read", parts["taken"])[0]["more"]
    return LimitDetails(parts, lines, is_cut or parts["waiting"][0]["more"], more_hold)
