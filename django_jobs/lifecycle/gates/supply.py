"""What the gates have left: counted from the jobs that are ready or running, and by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, inf

from ...domain.admission import Line, Supply
from ...domain.breaker import PROBES, BreakerState
from ...models.database import execute, fetch
from . import breakers

AHEAD, MANY = 3, 100
"""A worker of quick jobs, which has room for ``MANY``, gets ``AHEAD`` times its room admitted: to
look at the lines costs as much as to admit a hundred jobs."""

# Only those that lines need are asked: to plan the four of them takes 0.9 ms, and one 0.3.
TAKEN = {
    "key": """
SELECT 'key', concurrency_key, count(*) FROM django_jobs_job_live
WHERE concurrency_key IS NOT NULL AND status IN ('ready', 'running')
  AND concurrency_key = ANY(%(keys)s::text[])
GROUP BY concurrency_key
""",
    "resource": """
SELECT 'resource', resource.name, count(*)
FROM django_jobs_job_live AS job, jsonb_array_elements_text(job.resources) AS resource (name)
WHERE job.resources IS NOT NULL AND job.status IN ('ready', 'running')
GROUP BY resource.name
""",
    "tenant": """
SELECT 'tenant', tenant, count(*) FROM django_jobs_job_live
WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND tenant = ANY(%(tenants)s::text[])
GROUP BY tenant
""",
    "ready": """
SELECT 'ready', queue, count(*) FROM django_jobs_job_live
WHERE tenant IS NOT NULL AND status IN ('ready', 'running') AND status = 'ready'
  AND queue = ANY(%(queues)s::text[])
GROUP BY queue
""",
}
"""What is taken of the gates, and by queue, the jobs with a tenant that are ready."""

# By the database's clock.
TOKENS = """least(
        coalesce(burst, ceil(rate)),
        coalesce(tokens, burst, ceil(rate))
        + rate / rate_seconds * greatest(
            date_part('epoch', statement_timestamp() - refilled_at), 0))"""
RESOURCES = f"""
SELECT name, max_concurrency, paused_at IS NOT NULL, breaker_state,
    breaker_failures IS NOT NULL OR breaker_state <> 'closed' OR retry_budget IS NOT NULL,
    over_limit, {TOKENS},
    rate / rate_seconds
FROM django_jobs_resource
"""
TENANTS = """
SELECT name, weight, max_concurrency, paused_at IS NOT NULL FROM django_jobs_tenant
WHERE name = ANY(%(names)s::text[])
"""

# Refills once more: if the tokens that came in during the admission were lost, 50/s would be 45/s.
SPEND = f"""
UPDATE django_jobs_resource AS resource
SET tokens = {TOKENS} - input.starts, refilled_at = statement_timestamp()
FROM unnest(%(names)s::text[], %(starts)s::float8[]) AS input (name, starts)
WHERE resource.name = input.name
"""
NOTE_OVER_LIMIT = """
UPDATE django_jobs_resource SET over_limit = NOT over_limit WHERE name = ANY(%(names)s::text[])
"""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tokens of a rate, and how many come in a second."""

    tokens: float
    pace: float


def supply_of(
    lines: list[Line], room: Mapping[str, int]
) -> tuple[Supply, dict[str, float], dict[str, Bucket]]:
    """What the gates of these lines have left, the weights of their tenants, and the buckets of the
    resources that have a rate."""
    gates = [line.gates for line in lines]
    tenants = sorted({one.tenant for one in gates if one.tenant is not None})
    uses_resources = any(one.resources for one in gates)
    rows = fetch(TENANTS, {"names": tenants}) if tenants else []
    keys = sorted({one.key for one in gates if one.key is not None})
    limited = [name for name, _, limit, _ in rows if limit is not None]
    queues = sorted({line.queue for line in lines if line.gates.tenant is not None})
    needed = {"key": keys, "resource": uses_resources, "tenant": limited, "ready": queues}
    asked = [TAKEN[kind] for kind in needed if needed[kind]]
    parameters = {"keys": keys, "tenants": limited, "queues": queues}
    taken: dict[str, dict[str, int]] = {kind: {} for kind in needed}
    for kind, name, count in fetch("UNION ALL".join(asked), parameters) if asked else ():
        taken[kind][name] = count
    supply = Supply(keys=taken["key"])
    for queue, most in room.items():
        wanted = most * AHEAD if most >= MANY else most
        supply.room[queue] = wanted - taken["ready"].get(queue, 0)
    buckets = _count_resources(supply, taken["resource"]) if uses_resources else {}
    weights: dict[str, float] = {}
    for name, weight, limit, paused in rows:
        weights[name] = weight
        if paused or limit is not None:
            supply.tenants[name] = 0 if paused else limit - taken["tenant"].get(name, 0)
    return supply, weights, buckets


def _count_resources(supply: Supply, taken: Mapping[str, int]) -> dict[str, Bucket]:
    """Add what each resource has left, and note which ones have more jobs than their limit. Returns
    the buckets of those with a rate."""
    buckets: dict[str, Bucket] = {}
    metered, changed = set(), []
    rows = fetch(RESOURCES, {})
    hanging = breakers.hanging() if any(row[3] == BreakerState.HALF_OPEN for row in rows) else {}
    for name, most, paused, breaker, is_metered, over_limit, tokens, pace in rows:
        used = taken.get(name, 0)
        slots: float = inf if most is None else most - used
        if breaker == BreakerState.HALF_OPEN:
            slots = min(slots, PROBES - used + hanging.get(name, 0))
        if paused or breaker == BreakerState.OPEN:
            slots = 0
        if tokens is not None:
            buckets[name] = Bucket(tokens, pace)
            slots = min(slots, floor(tokens))
        supply.resources[name] = max(slots, 0)
        if tokens is not None or is_metered:
            metered.add(name)
        if over_limit is not (most is not None and used > most):
            changed.append(name)
    supply.metered = frozenset(metered)
    if changed:
        execute(NOTE_OVER_LIMIT, {"names": changed})
    return buckets


def spend(starts: Mapping[str, float]) -> None:
    """Take a token for each start from the resources of these names."""
    execute(SPEND, {"names": list(starts), "starts": list(starts.values())})
