"""Which job types use most."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.database import fetch
from .forecast import COVERED, JOB_OF_RUN, MOST_RUNS

MOST_TYPES = 20

# As the sizing: the newest runs by id, and their jobs by primary key.
COST = f"""
WITH newest AS MATERIALIZED (
    SELECT job_id, started_at, finished_at, cpu_seconds, max_rss_kb, queries, query_seconds
    FROM django_jobs_run ORDER BY id DESC LIMIT %(most)s
), covered AS ({COVERED}), ended AS MATERIALIZED (
    SELECT *, extract(epoch FROM finished_at - started_at)::float8 AS seconds
    FROM newest
    WHERE started_at IS NOT NULL AND finished_at >= now() - interval '1 hour'
)
SELECT covered.seconds, job.job_type, count(*), sum(ended.seconds), sum(ended.cpu_seconds),
    max(ended.max_rss_kb), sum(ended.queries), sum(ended.query_seconds)
FROM covered CROSS JOIN ended CROSS JOIN {JOB_OF_RUN}
GROUP BY covered.seconds, job.job_type
ORDER BY sum(ended.cpu_seconds) DESC NULLS LAST, sum(ended.seconds) DESC, job.job_type
LIMIT %(most_types)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCost:
    """What the runs of one job type used together. ``seconds`` is how long they ran, and
    ``max_rss_kb`` is of the largest. None is what none of them measured."""

    job_type: str
    runs: int
    seconds: float
    cpu_seconds: float | None
    max_rss_kb: int | None
    queries: int | None
    query_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The 20 job types that used most CPU time, and then time, in the last ``seconds``: an hour, or
    what the newest 20,000 runs cover."""

    seconds: float
    types: tuple[TypeCost, ...]


def take_cost(most_runs: int = MOST_RUNS) -> Cost:
    """What the newest ``most_runs`` runs of the last hour used, by job type."""
    rows = fetch(COST, {"most": most_runs, "most_types": MOST_TYPES})
    types = tuple(
        TypeCost(
            job_type=job_type,
            runs=runs,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            max_rss_kb=max_rss_kb,
            queries=queries,
            query_seconds=query_seconds,
        )
        for _, job_type, runs, seconds, cpu_seconds, max_rss_kb, queries, query_seconds in rows
    )
    return Cost(seconds=rows[0][0] if rows else 3600.0, types=types)
