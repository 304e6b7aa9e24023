"""What gates cost: the drain of jobs that wait at them, and of the same jobs without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django_jobs.domain.gates import Gates
from django_jobs.models import Resource

from .database import NOOP, drained_per_second, empty, execute, settle_down
from .draining import drain
from .measuring import Figure, repeat
from .workers import run_worker

# The gates of a job follow from its number.
FILL = """
INSERT INTO django_jobs_job_live (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, max_attempts, max_crashes, headers, created_at,
    tenant, concurrency_key, resources, gates)
SELECT 'default', %(job_type)s, '{}', 1, 'blocked', 0,
    extract(epoch FROM clock_timestamp()) + n * 1e-6,
    clock_timestamp() + make_interval(secs => n * 1e-6), 5, 3, '{}', clock_timestamp(),
    replace(%(tenant)s, '#', one.number), replace(%(key)s, '#', one.number), %(resources)s::jsonb,
    replace(%(gates)s, '#', one.number)
FROM generate_series(0, %(count)s - 1) AS n, LATERAL (
    SELECT (CASE WHEN n < %(first)s THEN 0 ELSE n %% %(distinct)s END)::text AS number) AS one
"""


def fill_gated(count: int, gates: Gates, distinct: int = 1, first: int = 0) -> None:
    """``count`` blocked no-op jobs. A ``#`` in the tenant or the key is a number below
    ``distinct``; the ``first`` jobs have 0."""
    resources = "[" + ",".join(f'"{name}"' for name in gates.resources) + "]"
    execute(
        FILL,
        {
            "count": count,
            "job_type": NOOP,
            "tenant": gates.tenant,
            "key": gates.key,
            "resources": resources if gates.resources else None,
            "gates": gates.text,
            "distinct": distinct,
            "first": first,
        },
    )
    settle_down("django_jobs_job")


def drain_gated(count: int, gates: Gates, distinct: int = 1, first: int = 0) -> float:
    """Gated no-op jobs a second, by one process."""
    empty()
    fill_gated(count, gates, distinct, first)
    run_worker()
    return drained_per_second(count)


KINDS = {
    "20,000 keys of 1": (Gates(queue="default", key="#", limit=1), 20_000),
    "1,000 keys of 2": (Gates(queue="default", key="#", limit=2), 1_000),
    "10 keys of 50": (Gates(queue="default", key="#", limit=50), 10),
    "one resource of 100": (Gates(queue="default", resources=("benchmark",)), 1),
    "1,000 tenants": (Gates(tenant="#", queue="default"), 1_000),
}


def gates(times: int, scale: float) -> list[Figure]:
    """Drains of jobs with gates. Each of the 20,000 keys has two of them, at a small scale too."""
    Resource.objects.update_or_create(name="benchmark", defaults={"max_concurrency": 100})
    count = int(40_000 * scale)
    measures: list[Callable[[], float]] = [
        partial(drain_gated, count, kind, min(distinct, count // 2 or 1))
        for kind, distinct in KINDS.values()
    ]
    plain, *others = repeat(times, lambda: drain(count), *measures)
    return [
        Figure(f"drain of {count:,}, {name}", "jobs/s", values, plain, "no gates")
        for name, values in zip(KINDS, others, strict=True)
    ]
