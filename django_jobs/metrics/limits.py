"""Resources and tenants: how much of each is taken, and what waits for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now

from ..conf import conf
from ..domain.gates import Gates, parse
from ..lifecycle.gate_limits import in_line, waiting_up_to
from ..lifecycle.gates.supply import TOKENS
from ..lifecycle.run_totals import HOUR, MINUTE
from ..models import BreakerState, Resource, Tenant
from ..models.database import fetch, fetch_last, with_parts
from ..models.resource import FADED
from .overview import BEGAN_AGO, ENDED, LAST_HOUR
from .stored import PLAIN, Parts
from .totals import SUMS_OF_TENANTS

MOST_READ = 100_000
"""Jobs that one count reads."""
MOST_LINES = 10_000
"""Lines of waiting jobs that are looked at. With more, all numbers mean "at least"."""
MOST_LISTED = 1_000

# What was written by hand and is no array names none.
NAMED = """jsonb_array_elements_text(
    CASE jsonb_typeof(resources) WHEN 'array' THEN resources END)"""

TAKEN = f"""
SELECT 'resource', used.name, count(*) FROM (
    SELECT resources FROM django_jobs_job_live
    WHERE resources IS NOT NULL AND status IN ('ready', 'running')
    ORDER BY id LIMIT %(most)s
) AS job, {NAMED} AS used (name) GROUP BY used.name
UNION ALL
SELECT 'tenant', tenant, count(*) FROM (
    SELECT tenant FROM django_jobs_job_live
    WHERE tenant IS NOT NULL AND status IN ('ready', 'running')
    ORDER BY queue, tenant LIMIT %(most)s
) AS job GROUP BY tenant
"""
# Steps from one line to the next in the index, so that a line of a million jobs costs one step.
LINES = """
WITH RECURSIVE line AS (
    (SELECT gates FROM django_jobs_job_live WHERE status = 'blocked' AND gates IS NOT NULL
     ORDER BY gates, rank, id LIMIT 1)
    UNION ALL
    SELECT next.gates FROM line CROSS JOIN LATERAL (
        SELECT job.gates FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates > line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT 1
    ) AS next
)
SELECT gates FROM line LIMIT %(most)s
"""
WAITING = f"""
SELECT line.gates, {waiting_up_to("%(most)s")}
FROM unnest(%(lines)s::text[]) AS line (gates)
"""
# The resources with the most jobs, for a scrape. What was not reached is null: it may not be 0. The
# list of resources follows the queue in the gates; a text of another form, written by hand, has
# none.
BUSIEST_RESOURCES = rf"""
waiting_line AS MATERIALIZED ({LINES.replace("%(most)s", "%(lines)s")}),
taken_job AS MATERIALIZED (
    SELECT resources FROM django_jobs_job_live
    WHERE resources IS NOT NULL AND status IN ('ready', 'running') ORDER BY id LIMIT %(most)s
), used AS MATERIALIZED (
    SELECT name, sum(taken) AS taken, sum(waiting) AS waiting FROM (
        SELECT one.name, 1 AS taken, NULL AS waiting
        FROM taken_job, {NAMED} AS one (name)
        UNION ALL
        SELECT one.name, NULL,
            {waiting_up_to("greatest(%(head)s / (SELECT count(*) FROM waiting_line), 1)")}
        FROM waiting_line AS line, jsonb_array_elements_text(
            substring(line.gates
                FROM E'^\\["[^"]*",(\\[("[^"\\\\[:cntrl:]]*"(,"[^"\\\\[:cntrl:]]*")*)?\\]),')::jsonb
        ) AS one (name)
    ) AS use GROUP BY 1
), busiest_resource AS MATERIALIZED (
    SELECT resource.*,
        coalesce(taken, CASE WHEN (SELECT count(*) FROM taken_job) < %(most)s THEN 0 END) AS taken,
        coalesce(waiting, CASE WHEN (SELECT count(*) FROM waiting_line) < %(lines)s THEN 0 END)
            AS waiting
    FROM (
        SELECT name FROM used
        UNION (SELECT name FROM django_jobs_resource ORDER BY name LIMIT %(series)s)
    ) AS named JOIN django_jobs_resource AS resource USING (name) LEFT JOIN used USING (name)
    ORDER BY coalesce(used.taken, 0) + coalesce(used.waiting, 0) DESC, name LIMIT %(series)s
)
"""


class LimitState(StrEnum):
    """The state of a resource or a tenant; the first that applies."""

    PAUSED = "paused"
    BREAKER_OPEN = "breaker_open"
    HALF_OPEN = "half_open"
    OVER_LIMIT = "over_limit"
    BUSY = "busy"
    OK = "ok"

    @classmethod
    def of(cls, row: Resource | Tenant, taken: int) -> LimitState:
        """The state of a row of which so much is taken."""
        breaker = row.breaker_state if isinstance(row, Resource) else BreakerState.CLOSED
        limit = row.max_concurrency
        if row.paused:
            return cls.PAUSED
        if breaker == BreakerState.OPEN:
            return cls.BREAKER_OPEN
        if breaker == BreakerState.HALF_OPEN:
            return cls.HALF_OPEN
        if limit is None or taken < limit:
            return cls.OK
        return cls.OVER_LIMIT if taken > limit else cls.BUSY


@dataclass(frozen=True, slots=True)
class Usage:
    """``taken`` counts jobs that are ready or running, ``waiting`` those that are blocked. With
    ``more_wait`` there are at least that many."""

    taken: int = 0
    waiting: int = 0
    more_wait: bool = False


@dataclass(slots=True)
class Usages:
    resources: dict[str, Usage] = field(default_factory=dict)
    tenants: dict[str, Usage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSnapshot:
    """What resources and tenants have in common. ``taken`` counts the ready and running jobs,
    ``waiting`` the blocked ones; with ``more_wait`` there are at least that many. ``limit`` is the
    ``max_concurrency``."""

    name: str
    state: str
    taken: int
    limit: int | None
    waiting: int
    more_wait: bool
    max_waiting: int | None
    paused_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSnapshot(LimitSnapshot):
    """One resource. Its breaker is as it is for ``breaker_seconds``; None if it never changed."""

    rate: float | None
    rate_seconds: float
    breaker: str
    breaker_reason: str
    breaker_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSnapshot(LimitSnapshot):
    weight: float


def read_lines(wanted: Callable[[Gates], bool]) -> tuple[dict[str, Gates], bool]:
    """The lines of blocked jobs that are ``wanted``, and whether there may be more. A line that
    cannot be read is left out: this package did not write it, and its jobs stay blocked."""
    texts = [text for (text,) in fetch(LINES, {"most": MOST_LINES})]
    known = {text: gates for text in texts if (gates := _readable(text)) and wanted(gates)}
    return known, len(texts) >= MOST_LINES


def _readable(text: str) -> Gates | None:
    try:
        return parse(text)
    except ValueError:
        return None


def read_usages(wanted: Callable[[Gates], bool] = lambda gates: True) -> Usages:
    """What is taken of all resources and tenants, and what waits in the lines that are ``wanted``,
    in three statements. The lines share the 100,000 jobs that are counted."""
    taken: dict[str, Counter[str]] = {"resource": Counter(), "tenant": Counter()}
    for kind, name, count in fetch(TAKEN, {"most": MOST_READ}):
        taken[kind][name] = count
    chosen, is_cut = read_lines(wanted)
    most = MOST_READ // max(len(chosen), 1)
    waiting: dict[str, Counter[str]] = {"resource": Counter(), "tenant": Counter()}
    cut: set[tuple[str, str]] = set()
    for text, count in fetch(WAITING, {"lines": list(chosen), "most": most}) if chosen else ():
        gates = chosen[text]
        names = [("resource", name) for name in gates.resources]
        if gates.tenant is not None:
            names.append(("tenant", gates.tenant))
        for kind, name in names:
            waiting[kind][name] += count
            if count >= most:
                cut.add((kind, name))

    def of_kind(kind: str) -> dict[str, Usage]:
        return {
            name: Usage(taken[kind][name], waiting[kind][name], is_cut or (kind, name) in cut)
            for name in taken[kind].keys() | waiting[kind].keys()
        }

    return Usages(of_kind("resource"), of_kind("tenant"))


def take_limits() -> tuple[tuple[ResourceSnapshot, ...], tuple[TenantSnapshot, ...]]:
    """The first 1,000 resources by name, and 1,000 tenants that are paused or have live jobs with
    gates, those with the most waiting jobs first. Five statements."""
    usages, alias = read_usages(), conf().database
    age = Now() - F("breaker_changed_at")
    resources = Resource.objects.using(alias).order_by("name").annotate(breaker_age=age)
    paused = Q(paused_at__isnull=False)
    rows = Tenant.objects.using(alias).filter(paused | Q(name__in=list(usages.tenants)))
    tenants = {row.name: row for row in rows}
    for name in usages.tenants.keys() - tenants.keys():
        tenants[name] = Tenant(name=name)
    listed = [_tenant(row, usages.tenants.get(row.name, Usage())) for row in tenants.values()]
    listed.sort(key=lambda one: (-one.waiting, one.name))
    return (
        tuple(
            _resource(row, usages.resources.get(row.name, Usage()))
            for row in resources[:MOST_LISTED]
        ),
        tuple(listed[:MOST_LISTED]),
    )


def _resource(row: Resource, usage: Usage) -> ResourceSnapshot:
    age = getattr(row, "breaker_age", None)
    return ResourceSnapshot(
        **_common(row, usage),
        rate=row.rate,
        rate_seconds=row.rate_seconds,
        breaker=row.breaker_state,
        breaker_reason=row.breaker_reason,
        breaker_seconds=None if age is None else age.total_seconds(),
    )


def _tenant(row: Tenant, usage: Usage) -> TenantSnapshot:
    return TenantSnapshot(**_common(row, usage), weight=row.weight)


def _common(row: Resource | Tenant, usage: Usage) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": LimitState.of(row, usage.taken),
        "taken": usage.taken,
        "limit": row.max_concurrency,
        "waiting": usage.waiting,
        "more_wait": usage.more_wait,
        "max_waiting": row.max_waiting,
        "paused_reason": row.paused_reason,
    }


def at_least(count: int, more: bool, most: int | None = None) -> str:
    """``12``, or ``12+`` if there may be more; ``12 / 100`` of a limit."""
    number = f"{count}+" if more else str(count)
    return number if most is None else f"{number} / {most}"


def rate_text(rate: float | None, seconds: float) -> str:
    """``50/s``, ``10/60s``; a dash without a rate."""
    if rate is None:
        return "-"
    return f"{rate:g}/s" if seconds == 1 else f"{rate:g}/{seconds:g}s"


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
    "lines": f"""
        SELECT gates, jobs, jobs >= %(each)s AS more,
            (SELECT job.id FROM django_jobs_job_live AS job {in_line()} LIMIT 1) AS first
        FROM (SELECT * FROM line ORDER BY jobs DESC, gates LIMIT %(lines)s) AS line""",
    "next": f"""
        SELECT job.id, job.job_type, job.queue, job.tenant,
            {AGO.format("job.available_at")} AS seconds
        FROM line CROSS JOIN LATERAL (
            SELECT * FROM django_jobs_job_live AS job {in_line()} LIMIT %(next)s) AS job
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
    "meters": f"SELECT {TOKENS} AS tokens FROM django_jobs_tenant WHERE name = %(name)s",
    "day": f"""
        {SUMS_OF_TENANTS} WHERE tenant = %(name)s AND period = {HOUR}
            AND began_at >= date_bin('1 hour', statement_timestamp() - interval '1 day', 'epoch')
        GROUP BY 1""",
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
    # The lines are given: no index finds those of one resource.
    start = f"""
    WITH used AS MATERIALIZED ({holders}), minute AS MATERIALIZED (
        SELECT date_bin('1 minute', statement_timestamp(), 'epoch') AS now
    ), line AS MATERIALIZED (
        SELECT line.gates, line.queue, {waiting_up_to("%(each)s")} AS jobs
        FROM unnest(%(texts)s::text[], %(queues)s::text[]) AS line (gates, queue)
    )"""
    return with_parts(parts, start)


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
