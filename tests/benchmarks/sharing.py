"""How tenants share a queue, and how exactly a fleet keeps a rate."""

from __future__ import annotations

import time
from functools import partial

from django_jobs.domain.gates import Gates
from django_jobs.models import Resource
from tests.chaos.gates import most_excess

from .database import empty, execute, fetch, until
from .gating import fill_gated
from .measuring import Figure, percentile, turns
from .workers import running_worker

EACH = 100
"""Jobs of each tenant but the large one."""

NO_OTHER_WAITS = """
SELECT NOT EXISTS (
    SELECT 1 FROM django_jobs_job_live
    WHERE status = 'blocked' AND gates IS NOT NULL AND gates > %s)
"""
STARTS = """
SELECT job.tenant = '0', extract(epoch FROM run.claimed_at - first.at)::float8
FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = run.job_id,
    (SELECT min(claimed_at) AS at FROM django_jobs_run) AS first
ORDER BY run.claimed_at
"""
CLAIMS = """
SELECT extract(epoch FROM claimed_at)::float8 FROM (
    SELECT claimed_at FROM django_jobs_run
    UNION ALL SELECT claimed_at FROM django_jobs_job_live WHERE status = 'running'
) AS run ORDER BY claimed_at
"""
RATE, BURST = 50.0, 5


def fairness(times: int, scale: float) -> list[Figure]:
    """1,000 tenants, of which one has a million jobs before the others. Its partner is an ideal
    fair share at the same speed: one job of each tenant after the other."""
    tenants, large = max(int(1_000 * scale), 10), int(1_000_000 * scale)
    waits, ideals = [], []
    for _ in turns(times):
        empty()
        gates = Gates(tenant="#", queue="default")
        fill_gated(large + tenants * EACH, gates, tenants, large)
        line_of_large = gates.text.replace("#", "0")
        with running_worker():
            until(partial(_is_true, NO_OTHER_WAITS, line_of_large))
        starts = fetch(STARTS)
        others = [at for is_large, at in starts if not is_large]
        begun = sum(at <= others[-1] for _, at in starts)
        speed = begun / others[-1]
        waits.append(percentile(others, 0.95))
        ideals.append(EACH * tenants * 0.95 / speed)
    return [
        Figure(f"wait p95 of {tenants - 1:,} tenants, behind {large:,} jobs of another", "s",
               waits, ideals, "an ideal fair share", "less"),
    ]  # fmt: skip


def _is_true(sql: str, parameter: str) -> bool:
    return bool(fetch(sql, [parameter])[0][0])


def rate(times: int, scale: float) -> list[Figure]:
    """50/s for a minute, by four processes."""
    seconds = max(60 * scale, 3.0)
    paces, excesses = [], []
    resource = Resource.objects.create(name="paced", rate=RATE, burst=BURST)
    for _ in turns(times):
        empty()
        fill_gated(int(RATE * seconds * 2), Gates(queue="default", resources=(resource.name,)))
        execute("UPDATE django_jobs_resource SET tokens = NULL, refilled_at = NULL")
        with running_worker(processes=4):
            time.sleep(seconds)
        starts = [at for (at,) in fetch(CLAIMS)]
        paces.append((len(starts) - BURST) / (starts[-1] - starts[0]))
        excesses.append(most_excess(starts, RATE, BURST))
    resource.delete()
    return [
        Figure(f"starts at {RATE:g}/s by four processes for {seconds:g} s", "jobs/s", paces,
               bar="49 to 51"),
        Figure("starts in any window beyond burst + rate", "jobs", excesses, better="less",
               bar="0"),
    ]  # fmt: skip
