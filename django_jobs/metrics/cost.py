"""Which job types use most."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.database import fetch
from .forecast import COVERED, JOB_OF_RUN, MOST_RUNS

MOST_TYPES = 1_000

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
    max(ended.max_rss_kb), sum(ended.queries), sum(ended.query_seconds), max(ended.seconds),
    percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ended.seconds),
    covered.seconds < 3600 AND (SELECT count(*) FROM newest) >= %(most)s
FROM covered CROSS JOIN ended CROSS JOIN {JOB_OF_RUN}
GROUP BY covered.seconds, job.job_type
ORDER BY sum(ended.cpu_seconds) DESC NULLS LAST, sum(ended.seconds) DESC, job.job_type
LIMIT %(most_types)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCost:
    """What the runs of one job type used together. ``seconds`` is how long they ran,
    ``max_seconds`` how long the longest did and ``p95_seconds`` at most 95 % of them, and
    ``max_rss_kb`` is of the largest. None is what none of them measured."""

    job_type: str
    runs: int
    seconds: float
    cpu_seconds: float | None
    max_rss_kb: int | None
    queries: int | None
    query_seconds: float | None
    max_seconds: float
    p50_seconds: float
    p95_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The job types by CPU time, and then by time, in the last ``seconds``: an hour, or what the
    newest 20,000 runs cover, if they are ``cut``. At most 1,000."""

    seconds: float
    types: tuple[TypeCost, ...]
    cut: bool = False


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
            max_seconds=longest,
            p50_seconds=p50,
            p95_seconds=p95,
        )
        for (
            *(_, job_type, runs, seconds, cpu_seconds, max_rss_kb, queries, query_seconds, longest),
            (p50, p95),
            _,
        ) in rows
    )
    seconds, cut = (rows[0][0], rows[0][-1]) if rows else (3600.0, False)
    return Cost(seconds=seconds, types=types, cut=cut)
