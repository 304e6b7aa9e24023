"""What the gates have left: counted from the jobs that are ready or running, and by the clock."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from math import floor, inf
from typing import NamedTuple

from ... import registry
from ...domain.admission import Line, Supply, retries_allowed
from ...domain.breaker import PROBES, BreakerState
from ...models.database import execute, fetch
from ...models.resource import FADED
from ..resource_outcomes import Change
from . import breakers
from .retry_budgets import RetryBudgets

AHEAD, MANY = 3, 100
"""A worker of quick jobs, which has room for ``MANY``, gets ``AHEAD`` times its room admitted: to
look at the lines costs as much as to admit a hundred jobs."""

# Only those that lines need are asked: to plan three of them takes 0.7 ms, and one 0.3. Of a queue
# with a limit those count that run, and those that are ready and hold slots of others meanwhile.
TAKEN = {
    "key": """
SELECT 'key', concurrency_key, count(*) FROM django_jobs_job_live
WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running')
  AND concurrency_key = ANY(%(keys)s::text[])
GROUP BY concurrency_key
""",
    "tenant": """
SELECT 'tenant', tenant, count(*) FROM django_jobs_job_live
WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND tenant = ANY(%(tenants)s::text[])
GROUP BY tenant
""",
    "bursting": """
SELECT 'bursting', tenant, count(*) FROM django_jobs_job_live
WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
  AND tenant = ANY(%(rated)s::text[])
GROUP BY tenant
""",
    "ready": """
SELECT 'ready', queue, count(*) FROM django_jobs_job_live
WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
  AND queue = ANY(%(queues)s::text[]) AND job_type = ANY(%(types)s::text[])
GROUP BY queue
""",
    "queue": """
SELECT 'queue', queue, count(*) FROM (
    SELECT id, queue FROM django_jobs_job_live
    WHERE status = 'running' AND queue = ANY(%(limited)s::text[])
    UNION
    SELECT id, queue FROM django_jobs_job_live
    WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running')
      AND queue = ANY(%(limited)s::text[])
    UNION
    SELECT id, queue FROM django_jobs_job_live
    WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND queue = ANY(%(limited)s::text[])
    UNION
    SELECT id, queue FROM django_jobs_job_live
    WHERE resources IS NOT NULL AND status IN ('ready', 'running')
      AND queue = ANY(%(limited)s::text[])
) AS taken
GROUP BY queue
""",
}
"""What is taken of the gates, what is ready of tenants with a rate, by queue the jobs with a tenant
that are ready, of types that this worker knows, and what is taken of the limits of queues."""

# What the metered resources of the lines have made ready takes room as well, until it is claimed.
# Jobs with a tenant are counted above, and those of other types are claimed by other workers.
READY_METERED = """
SELECT queue, count(*) FROM django_jobs_job_live
WHERE resources IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
  AND tenant IS NULL AND resources ?| %(names)s::text[] AND queue = ANY(%(queues)s::text[])
  AND job_type = ANY(%(types)s::text[])
GROUP BY queue
"""

# By the database's clock.
TOKENS = """least(
        coalesce(burst, ceil(rate)),
        coalesce(tokens, burst, ceil(rate))
        + rate / rate_seconds * greatest(
            date_part('epoch', statement_timestamp() - refilled_at), 0))"""
# Of one resource, for who enqueues. Jobs that have a slot and did not start yet are ready.
HELD = f"""
SELECT max_waiting, breaker_state, {TOKENS}, rate / rate_seconds, paused_at IS NOT NULL,
    held.jobs, held.oldest
FROM django_jobs_resource, LATERAL (
    SELECT count(*) AS jobs, max(least(greatest(date_part('epoch', clock_timestamp())
        - date_part('epoch', job.available_at), 0), 1e9)) AS oldest
    FROM (SELECT available_at FROM django_jobs_job_live
          WHERE resources IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
            AND resources ? %(name)s
          ORDER BY id LIMIT %(most)s) AS job) AS held
WHERE name = %(name)s
"""
# Each with the jobs that use it: what was written by hand and is no array uses none. A ready job
# has its token, and may start at any time: with it and the tokens that are left, no more than the
# burst may. The second column tells whether the clock went back.
RESOURCES = f"""
SELECT name,
    coalesce(greatest(refilled_at, counted_at, breaker_changed_at) > statement_timestamp(), false),
    max_concurrency, coalesce(taken.jobs, 0), paused_at IS NOT NULL, over_limit,
    breaker_state, breaker_failures IS NOT NULL OR breaker_state <> 'closed',
    {TOKENS}, coalesce(burst, ceil(rate)) - coalesce(taken.ready, 0), rate / rate_seconds,
    retry_budget, coalesce(recent_starts * {FADED}, 0), coalesce(recent_retries * {FADED}, 0)
FROM django_jobs_resource LEFT JOIN (
    SELECT used.name, count(*) AS jobs, count(*) FILTER (WHERE job.status = 'ready') AS ready
    FROM django_jobs_job_live AS job, jsonb_array_elements_text(
        CASE jsonb_typeof(job.resources) WHEN 'array' THEN job.resources END) AS used (name)
    WHERE job.resources IS NOT NULL AND job.status IN ('ready', 'running')
    GROUP BY used.name
) AS taken USING (name)
"""

# Refills once more: if the tokens that came in during the admission were lost, 50/s would be 45/s.
SPEND, SPEND_OF_TENANTS = (
    f"""
UPDATE {table} AS rated
SET tokens = {TOKENS} - input.starts, refilled_at = statement_timestamp()
FROM unnest(%(names)s::text[], %(starts)s::float8[]) AS input (name, starts)
WHERE rated.name = input.name
"""
    for table in ("django_jobs_resource", "django_jobs_tenant")
)
NOTE_OVER_LIMIT = """
UPDATE django_jobs_resource SET over_limit = NOT over_limit WHERE name = ANY(%(names)s::text[])
"""

# Those that are free stay so for the rest of the admission.
LOCKED = """
WITH free AS MATERIALIZED (SELECT id FROM django_jobs_resource FOR NO KEY UPDATE SKIP LOCKED)
SELECT name FROM django_jobs_resource WHERE id NOT IN (SELECT id FROM free)
"""
LOCKED_TENANTS = """
WITH free AS MATERIALIZED (
    SELECT id FROM django_jobs_tenant WHERE rate IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED
)
SELECT name FROM django_jobs_tenant WHERE rate IS NOT NULL AND id NOT IN (SELECT id FROM free)
"""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tokens of a rate, and how many come in a second. ``excess`` are those of its row that are
    beyond the burst. ``is_held``: ready jobs have the whole burst, so none comes before a claim.
    ``is_back``: the clock of the database went back, and no token would come."""

    tokens: float
    pace: float
    excess: float = 0.0
    is_held: bool = False
    is_back: bool = False

    @classmethod
    def of(cls, tokens: float, left: float, pace: float, *, is_back: bool = False) -> Bucket:
        """Of the ``tokens`` of a row, and what its ready jobs have left of the burst."""
        within = min(tokens, max(left, 0.0))
        return cls(within, pace, tokens - within, is_held=left < 1, is_back=is_back)


class TenantLimits(NamedTuple):
    """The weight of a tenant, and how many of its jobs may be under way: 0 if it is paused. The
    others are of its rate, whose ``pace`` is null without one."""

    weight: float
    most: float | None
    tokens: float = 0.0
    burst: float = 0.0
    pace: float | None = None
    is_back: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rows of lines say: of the tenants that have a row, the ``max_concurrency`` of the
    queues that have one, and of what types the best jobs are, with the newest versions of their
    payloads. Of resources in ``locked`` and of ``locked_tenants`` nothing can be counted now."""

    tenants: Mapping[str, TenantLimits]
    queues: Mapping[str, int]
    heads: Mapping[str, int]
    locked: Set[str]
    locked_tenants: Set[str] = frozenset()


@dataclass(slots=True)
class ResourceState:
    """The buckets of the resources and of the ``tenants`` that have a rate, the retry budgets, and
    the breakers that were changed before the resources were read."""

    buckets: dict[str, Bucket] = field(default_factory=dict)
    tenants: dict[str, Bucket] = field(default_factory=dict)
    budgets: RetryBudgets = field(default_factory=RetryBudgets)
    changes: list[Change] = field(default_factory=list)


def supply_of(
    lines: list[Line], limits: Limits, room: Mapping[str, int]
) -> tuple[Supply, ResourceState]:
    """What the gates of these lines have left."""
    gates = [line.gates for line in lines]
    keys = sorted({one.key for one in gates if one.key is not None})
    rows = {
        name: row if name not in limits.locked_tenants else TenantLimits(row.weight, 0)
        for name, row in limits.tenants.items()
    }
    limited = {name: row.most for name, row in rows.items() if row.most is not None}
    rated = [name for name, row in rows.items() if row.pace is not None]
    queues = sorted({line.queue for line in lines if line.gates.tenant is not None})
    full = list(limits.queues)
    needed = {"key": keys, "tenant": list(limited), "bursting": rated, "ready": queues}
    needed["queue"] = full
    asked = [TAKEN[kind] for kind in needed if needed[kind]]
    types = list(registry.versions())
    parameters = {
        "keys": keys,
        "tenants": list(limited),
        "rated": rated,
        "queues": queues,
        "types": types,
        "limited": full,
    }
    taken: dict[str, dict[str, int]] = {kind: {} for kind in needed}
    for kind, name, count in fetch("UNION ALL".join(asked), parameters) if asked else ():
        taken[kind][name] = count
    supply = Supply(keys=taken["key"])
    for queue, most in room.items():
        wanted = most * AHEAD if most >= MANY else most
        supply.room[queue] = wanted - taken["ready"].get(queue, 0)
    for name, limit in limited.items():
        supply.tenants[name] = limit - taken["tenant"].get(name, 0)
    for queue, most in limits.queues.items():
        supply.queues[queue] = most - taken["queue"].get(queue, 0)
    state = ResourceState()
    for name in rated:
        row = rows[name]
        left = row.burst - taken["bursting"].get(name, 0)
        bucket = Bucket.of(row.tokens, left, row.pace or inf, is_back=bool(row.is_back))
        state.tenants[name] = bucket
        supply.tenants[name] = min(supply.tenants.get(name, inf), floor(bucket.tokens))
    used = {name for one in gates for name in one.resources}
    if not used:
        return supply, state
    _count_resources(supply, state, limits.locked)
    if metered := sorted(used & supply.metered):
        among = {"names": metered, "queues": list(room), "types": types}
        for queue, count in fetch(READY_METERED, among):
            supply.room[queue] -= count
    return supply, state


def locked_rows() -> tuple[Set[str], Set[str]]:
    """The resources, and the tenants with a rate, whose rows other sessions have locked."""
    locked, tenants = ({name for (name,) in fetch(sql, {})} for sql in (LOCKED, LOCKED_TENANTS))
    return locked, tenants


def _count_resources(supply: Supply, state: ResourceState, locked: Set[str]) -> None:
    """Add what each resource has left, and note which ones have more jobs than their limit. Those
    in ``locked`` have nothing left if a start would have to be counted."""
    rows = fetch(RESOURCES, {})
    if any(row[1] for row in rows):
        breakers.set_back(locked)
        rows = fetch(RESOURCES, {})
    if any(row[7] for row in rows) and (changes := breakers.change_all(locked)):
        state.changes = changes
        rows = fetch(RESOURCES, {})
    hanging = breakers.hanging() if any(row[6] == BreakerState.HALF_OPEN for row in rows) else {}
    metered, changed = set(), []
    for name, _, most, used, paused, over_limit, breaker, has_breaker, *rate_and_retries in rows:
        tokens, held, pace, *retries = rate_and_retries
        budget, *recent = retries
        if name in locked:
            paused = paused or tokens is not None or budget is not None
            tokens = budget = None
        slots: float = inf if most is None else most - used
        if breaker == BreakerState.HALF_OPEN:
            slots = min(slots, PROBES - used + hanging.get(name, 0))
        if paused or breaker == BreakerState.OPEN:
            slots = 0
        if tokens is not None:
            bucket = state.buckets[name] = Bucket.of(tokens, held, pace)
            slots = min(slots, floor(bucket.tokens))
        supply.resources[name] = max(slots, 0)
        if budget is not None and budget < 1:
            state.budgets.left[name] = retries_allowed(budget, *recent)
        if tokens is not None or has_breaker or budget is not None:
            metered.add(name)
        if name not in locked and over_limit is not (most is not None and used > most):
            changed.append(name)
    supply.metered = frozenset(metered)
    if changed:
        execute(NOTE_OVER_LIMIT, {"names": changed})


def spend(resources: Mapping[str, float], tenants: Mapping[str, float]) -> None:
    """Take a token for each start from the rows of these names."""
    for statement, starts in ((SPEND, resources), (SPEND_OF_TENANTS, tenants)):
        if starts:
            execute(statement, {"names": list(starts), "starts": list(starts.values())})
