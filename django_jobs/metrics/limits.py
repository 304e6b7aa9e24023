"""Resources and tenants: how much of each is taken, and what waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db.models import F, Q
from django.db.models.functions import Now

from ..conf import conf
from ..domain.gates import Gates, parse
from ..models import BreakerState, Resource, Tenant
from ..models.database import fetch

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
    SELECT resources FROM django_jobs_job
    WHERE resources IS NOT NULL AND status IN ('ready', 'running')
    ORDER BY id LIMIT %(most)s
) AS job, {NAMED} AS used (name) GROUP BY used.name
UNION ALL
SELECT 'tenant', tenant, count(*) FROM (
    SELECT tenant FROM django_jobs_job
    WHERE tenant IS NOT NULL AND status IN ('ready', 'running')
    ORDER BY queue, tenant LIMIT %(most)s
) AS job GROUP BY tenant
"""
# Steps from one line to the next in the index, so that a line of a million jobs costs one step.
LINES = """
WITH RECURSIVE line AS (
    (SELECT gates FROM django_jobs_job WHERE status = 'blocked' AND gates IS NOT NULL
     ORDER BY gates, rank, id LIMIT 1)
    UNION ALL
    SELECT next.gates FROM line CROSS JOIN LATERAL (
        SELECT job.gates FROM django_jobs_job AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates > line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT 1
    ) AS next
)
SELECT gates FROM line LIMIT %(most)s
"""
WAITING = """
SELECT line.gates, (
    SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates = line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT %(most)s) AS counted)
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
        SELECT one.name, NULL, (SELECT count(*) FROM (
            SELECT FROM django_jobs_job_live AS job
            WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates = line.gates
            ORDER BY job.gates, job.rank, job.id
            LIMIT greatest(%(head)s / (SELECT count(*) FROM waiting_line), 1)) AS counted)
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
    """The usage of resources and of tenants by name."""

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
    """One resource. ``breaker_seconds`` is for how long its breaker has been as it is; None if it
    never changed."""

    rate: float | None
    rate_seconds: float
    breaker: str
    breaker_reason: str
    breaker_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSnapshot(LimitSnapshot):
    """One tenant."""

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
