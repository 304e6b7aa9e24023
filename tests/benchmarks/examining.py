"""How long a scrape, the forecast and each examination of ``jobdoctor`` take beside many jobs and
runs.

At full size it needs 6 GB and some minutes. It runs only if it is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from django_jobs import registry
from django_jobs.doctor.examination import EXAMINATIONS, Examination, diagnose
from django_jobs.doctor.findings import NotExamined
from django_jobs.domain.histograms import BUCKETS
from django_jobs.lifecycle.backlog import MOST_COUNTED
from django_jobs.lifecycle.backlog_samples import ready_jobs
from django_jobs.lifecycle.history import RUNS as RUN_TABLE
from django_jobs.lifecycle.workers import WorkerInfo, register
from django_jobs.metrics.exposition import render
from django_jobs.metrics.forecast import take_forecast
from django_jobs.metrics.gauges import read_gauges
from django_jobs.models import Queue

from .database import drop_past_days, empty, execute, fetch, settle_down
from .measuring import Figure, progress, repeat
from .month import ATTACH, MAKE

JOBS, RUNS, QUEUES, TYPES, WORKERS = 1_000_000, 10_000_000, 100, 40, 200
DAYS = 30
"""Full days before this one that have runs."""

# A hundred queues, of which the first has half of the ready jobs; a line of a hundred thousand jobs
# behind one key, and one of one job behind each other key; steps whose steps before them are not
# stored, as they stay out of the workflows' check.
FILL = """
INSERT INTO django_jobs_job_live (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, max_attempts, max_crashes, headers, created_at, gates, concurrency_key, worker_id,
    claimed_at)
SELECT 'queue-' || CASE WHEN %(status)s = 'ready' AND n %% 2 = 0 THEN 0 ELSE n %% %(queues)s END,
    (%(types)s::text[])[1 + n %% %(type_count)s], '{"first": 1}', 1,
    %(status)s, 0, n, now() + make_interval(secs => n), 5, 3, '{}', now(),
    CASE WHEN %(keyed)s THEN format('["default",[],null,"%%s",1,"wait"]', k.key) END,
    CASE WHEN %(keyed)s THEN k.key END,
    %(worker)s, CASE WHEN %(worker)s IS NOT NULL THEN now() - interval '1 hour' END
FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT CASE WHEN n %% 2 = 0 THEN 'one' ELSE 'key-' || n END AS key) AS k
"""
# Run n of all ends at the n-th part of the 30 days before this one, and of it up to now.
FILL_RUNS = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    started_at, finished_at, error_type, error_message, traceback, fingerprint)
SELECT n, 1, 'succeeded', 1, ended, ended, ended, ended, '', '', '', ''
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
    LATERAL (SELECT date_trunc('day', now(), 'UTC') - %(days)s * interval '1 day' AS began) AS span,
    LATERAL (SELECT began + (now() - began) * (n::float8 / %(runs)s) AS ended) AS run
"""
# Each of the 200 pairs of queue and job type since the beginning, and in each minute of an hour.
FILL_TOTALS = """
INSERT INTO django_jobs_runtotal (period, began_at, queue, job_type, outcome, runs,
    slo_runs, slo_met, waiting_buckets, waiting_seconds, start_lag_buckets, start_lag_seconds,
    runtime_buckets, runtime_seconds, gate_buckets, gate_seconds)
SELECT period, began_at, 'queue-' || n %% %(queues)s,
    (%(types)s::text[])[1 + n %% %(type_count)s], outcome, 100, 0, 0,
    counts, 1, counts, 1, counts, 1, counts, 1
FROM generate_series(1, %(pairs)s) AS n, unnest(ARRAY['succeeded', 'failed']) AS outcome,
    (SELECT array_fill(10, ARRAY[%(buckets)s]) AS counts) AS counted,
    (SELECT 0 AS period, '-infinity'::timestamptz AS began_at
     UNION ALL SELECT 60, date_bin('1 minute', now(), 'epoch') - make_interval(mins => minute)
     FROM generate_series(1, 60) AS minute
     UNION ALL SELECT 3600, date_bin('1 hour', now(), 'epoch') - make_interval(hours => hour)
     FROM generate_series(1, 48) AS hour) AS span
"""
FILL_SAMPLES = """
INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs, drain_seconds)
SELECT 'queue-' || n, now() - make_interval(mins => minute),
    CASE n WHEN 0 THEN %(largest)s::bigint ELSE 2000 END + minute, 2, 100, 600
FROM generate_series(0, %(queues)s - 1) AS n, generate_series(1, 360) AS minute
"""
SUMMED = ("django_jobs_runtotal", "django_jobs_backlogsample")
STALE = "UPDATE django_jobs_storedmetrics SET taken_at = '-infinity'"
PER_STATEMENT = 1_000_000


def examinations(times: int, scale: float) -> list[Figure]:
    """A figure for a scrape that takes the numbers and one that reads the stored ones, for the
    forecast and a sample for it, for each examination, and for all of them together."""
    _fill(scale)
    _scrape()  # its first statement makes the row of the stored numbers
    ready = {f"queue-{number}": 2_000 for number in range(QUEUES)} | {"queue-0": MOST_COUNTED}
    taken, stored, text, forecast, sample = repeat(
        times,
        _scrape,
        partial(_timed, read_gauges),
        partial(_timed, render, "application/openmetrics-text; version=1.0.0"),
        partial(_timed, take_forecast, ready),
        partial(_timed, ready_jobs, 0.0),
    )
    figures = [
        Figure("scrape that takes the numbers", "ms", taken, better="less", bar="< 50"),
        Figure("scrape of stored numbers", "ms", stored, better="less"),
        Figure("scrape of stored numbers, with its text", "ms", text, better="less"),
        Figure("forecast", "ms", forecast, better="less", bar="< 50"),
        Figure("sample of all backlogs, once a minute", "ms", sample, better="less"),
    ]
    for number, one in enumerate(EXAMINATIONS):
        progress.step(f"{number + 1} of {len(EXAMINATIONS)}")
        figures.append(_figure(one.examine.__name__, [one], times))
    figures.append(_figure("all examinations", EXAMINATIONS, times, bar=""))
    _empty()
    return figures


def _timed(call: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - begun) * 1000


def _scrape() -> float:
    execute(STALE)
    return _timed(read_gauges)


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


def _empty() -> None:
    empty()
    execute(f"TRUNCATE {', '.join(SUMMED)}")


def _fill(scale: float) -> None:
    _empty()
    drop_past_days()
    info = WorkerInfo(
        name="bench",
        host="bench",
        pid=1,
        queues=[f"queue-{number}" for number in range(QUEUES)],
        threads=8,
        job_types=registry.versions(),
        lease=3_600.0,
    )
    worker, *_ = [register(info) for _ in range(WORKERS)]
    queues = [Queue(name=f"queue-{number}") for number in range(QUEUES)]
    Queue.objects.bulk_create(queues, ignore_conflicts=True)
    shares = {"ready": 0.4, "scheduled": 0.2, "blocked": 0.2, "dead": 0.1, "waiting": 0.1}
    types = registry.names()[:TYPES]
    known = {"queues": QUEUES, "types": types, "type_count": len(types)}
    values = {**known, "keyed": False, "worker": None}
    for status, share in shares.items():
        count = max(int(JOBS * share * scale), 1)
        keyed = status == "blocked"
        execute(FILL, {**values, "status": status, "keyed": keyed, "count": count})
    running = {"status": "running", "keyed": True, "worker": worker, "count": 200}
    execute(FILL, {**values, **running})
    runs = int(RUNS * scale)
    _make_days()
    for first in range(1, runs + 1, PER_STATEMENT):
        last = min(first + PER_STATEMENT - 1, runs)
        execute(FILL_RUNS, {"first": first, "last": last, "runs": runs, "days": DAYS})
    execute(FILL_TOTALS, {**known, "pairs": max(int(200 * scale), 1), "buckets": BUCKETS})
    largest = int(JOBS * shares["ready"] * scale / 2)
    execute(FILL_SAMPLES, {"queues": max(int(QUEUES * scale), 1), "largest": largest})
    settle_down("django_jobs_job", "django_jobs_run", "django_jobs_worker", *SUMMED)
    ((jobs,),) = fetch("SELECT count(*) FROM django_jobs_job")
    ((runs, leaves),) = fetch("SELECT count(*), count(DISTINCT tableoid) FROM django_jobs_run")
    progress.emit(f"{jobs:,} jobs, {runs:,} runs in {leaves} partitions")


def _make_days() -> None:
    """The partitions of runs of the days before this one. Workers make those to come only."""
    today = datetime.now(UTC).date()
    for day in (today - timedelta(days=ago) for ago in range(1, DAYS + 1)):
        named = {
            "leaf": f"{RUN_TABLE.prefix}{day:%Y%m%d}",
            "table": RUN_TABLE.name,
            "default": RUN_TABLE.default,
            "start": f"{day} 00:00:00+00",
            "end": f"{day + timedelta(days=1)} 00:00:00+00",
            "also": "",
        }
        execute(MAKE.format(**named))
        execute(ATTACH.format(**named))
