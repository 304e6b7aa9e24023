"""How long each examination of ``jobdoctor`` takes beside many jobs and runs.

At full size it needs 6 GB and some minutes. It runs only if it is named.
"""

from __future__ import annotations

import time
from functools import partial

from django_jobs import registry
from django_jobs.doctor.examination import EXAMINATIONS, Examination, diagnose
from django_jobs.doctor.findings import NotExamined
from django_jobs.lifecycle.workers import WorkerInfo, register
from django_jobs.models import Queue

from .database import empty, execute, fetch, settle_down
from .measuring import Figure, progress, repeat

JOBS, RUNS, QUEUES = 1_000_000, 10_000_000, 100

# A hundred queues; a line of a hundred thousand jobs behind one key, and one of one job behind each
# other key; steps whose steps before them are not stored, as they stay out of the workflows' check.
FILL = """
INSERT INTO django_jobs_job_live (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, max_attempts, max_crashes, headers, created_at, gates, concurrency_key, worker_id,
    claimed_at)
SELECT 'queue-' || n %% %(queues)s, 'app.add', '{"first": 1}', 1, %(status)s, 0, n,
    now() + make_interval(secs => n), 5, 3, '{}', now(),
    CASE WHEN %(keyed)s THEN format('[null,null,"%%s",1,"wait",[]]', k.key) END,
    CASE WHEN %(keyed)s THEN k.key END,
    %(worker)s, CASE WHEN %(worker)s IS NOT NULL THEN now() - interval '1 hour' END
FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT CASE WHEN n %% 2 = 0 THEN 'one' ELSE 'key-' || n END AS key) AS k
"""
FILL_RUNS = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    started_at, finished_at, error_type, error_message, traceback, fingerprint)
SELECT n, 1, 'succeeded', 1, now(), now(), now(), now(), '', '', '', ''
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
PER_STATEMENT = 1_000_000


def examinations(times: int, scale: float) -> list[Figure]:
    """A figure for each examination, and one for all together."""
    _fill(scale)
    figures = []
    for number, one in enumerate(EXAMINATIONS):
        progress.step(f"{number + 1} of {len(EXAMINATIONS)}")
        figures.append(_figure(one.examine.__name__, [one], times))
    figures.append(_figure("all examinations", EXAMINATIONS, times, bar=""))
    empty()
    return figures


def _figure(
    name: str, examined: tuple[Examination, ...] | list[Examination], times: int, bar: str = "< 50"
) -> Figure:
    (values,) = repeat(times, partial(_milliseconds, examined))
    return Figure(f"doctor, {name}", "ms", values, better="less", bar=bar)


def _milliseconds(examined: tuple[Examination, ...] | list[Examination]) -> float:
    begun = time.perf_counter()
    missing: tuple[NotExamined, ...] = diagnose(examined).not_examined
    took = (time.perf_counter() - begun) * 1000
    if missing:
        progress.emit(f"not examined: {missing}")
    return took


def _fill(scale: float) -> None:
    empty()
    worker = register(
        WorkerInfo(
            name="bench",
            host="bench",
            pid=1,
            queues=[f"queue-{number}" for number in range(QUEUES)],
            threads=8,
            job_types=registry.versions(),
            lease=3_600.0,
        )
    )
    queues = [Queue(name=f"queue-{number}") for number in range(QUEUES)]
    Queue.objects.bulk_create(queues, ignore_conflicts=True)
    shares = {"ready": 0.4, "scheduled": 0.2, "blocked": 0.2, "dead": 0.1, "waiting": 0.1}
    values = {"queues": QUEUES, "keyed": False, "worker": None}
    for status, share in shares.items():
        count = max(int(JOBS * share * scale), 1)
        keyed = status == "blocked"
        execute(FILL, {**values, "status": status, "keyed": keyed, "count": count})
    running = {"status": "running", "keyed": True, "worker": worker, "count": 200}
    execute(FILL, {**values, **running})
    runs = int(RUNS * scale)
    for first in range(1, runs + 1, PER_STATEMENT):
        last = min(first + PER_STATEMENT - 1, runs)
        execute(FILL_RUNS, {"first": first, "last": last})
    settle_down("django_jobs_job", "django_jobs_run", "django_jobs_worker")
    ((jobs, runs),) = fetch(
        "SELECT (SELECT count(*) FROM django_jobs_job), (SELECT count(*) FROM django_jobs_run)"
    )
    progress.emit(f"{jobs:,} jobs, {runs:,} runs")
