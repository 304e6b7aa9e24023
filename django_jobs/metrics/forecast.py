"""When the backlog of each queue will be gone, and how long a deploy will wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..domain.forecast import drain_seconds
from ..domain.histograms import BOUNDS, BUCKETS, Histogram
from ..lifecycle.backlog import MOST_COUNTED
from ..lifecycle.backlog_samples import Past, past
from ..lifecycle.run_totals import HOUR
from ..models.database import database_time, fetch

LONGEST = 10 * 365 * 86_400.0
MOST_RUNNING = 10_000
"""Running jobs that are examined."""

UNKNOWN = (None, BOUNDS[-1])
"""Percentiles of a type without runs, and of one whose runs are above the last bound."""

SUMS = ", ".join(f"sum(runtime_buckets[{place}])" for place in range(1, BUCKETS + 1))
# Runtimes of the last day, of the types that run now, and how long the youngest job of each runs.
# The totals of that day are read once, and not for each type. A worker runs as many jobs as it has
# slots, those that it claimed first. The others are prefetched: a drain gives them back.
RUNNING = f"""
WITH running AS MATERIALIZED (
    SELECT job_type, count(*) AS jobs, date_part('epoch', now() - max(claimed_at)) AS seconds
    FROM (SELECT job_type, claimed_at, worker_id,
              row_number() OVER (PARTITION BY worker_id ORDER BY claimed_at, id) AS place
          FROM (SELECT id, job_type, claimed_at, worker_id FROM django_jobs_job
                WHERE status = 'running' ORDER BY worker_id LIMIT %(most)s) AS first) AS job
    LEFT JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
    WHERE job.place <= coalesce(worker.threads + worker.async_slots, job.place)
    GROUP BY job_type
), total AS MATERIALIZED (
    SELECT job_type, ARRAY[{SUMS}] AS buckets FROM django_jobs_runtotal
    WHERE period = {HOUR} AND began_at >= date_bin('1 hour', now() - interval '1 day', 'epoch')
      AND job_type = ANY(ARRAY(SELECT job_type FROM running))
    GROUP BY job_type
)
SELECT running.jobs, greatest(running.seconds, 0),
    array_to_json(coalesce(total.buckets, array_fill(0, ARRAY[{BUCKETS}])))::text
FROM running LEFT JOIN total USING (job_type)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueForecast:
    """One queue with its rates in the last five minutes, in jobs per second. They are None while
    they are not known: in a pause and in the first minute after it, without a sample of that time,
    and if no worker has counted new runs for a minute. From 100,000 ready jobs on they, and
    ``ready``, are those of the last sample, which a worker counts once a minute.

    ``drain_seconds`` is how long it takes until its ready jobs, and those that arrive meanwhile,
    are claimed; None if they do not become fewer, or the rates are not known. ``drained_at`` is
    that moment. ``error_ratio`` is the median of how far the forecasts of the last six hours were
    off, as a share of the time that it took; ``forecasts`` is their number. Those of five minutes
    or more that came true or are overdue are judged.
    """

    queue: str
    ready: int
    arrived_per_second: float | None = None
    claimed_per_second: float | None = None
    ended_per_second: float | None = None
    drain_seconds: float | None = None
    drained_at: str | None = None
    forecasts: int = 0
    error_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """All queues. ``deploy_seconds`` is how long the running jobs will take if each ends by the
    95th percentile of its type. ``unknown`` of them are of types without runs in the last day, or
    whose percentile is above an hour, where the buckets end: they may take longer."""

    queues: tuple[QueueForecast, ...] = ()
    deploy_seconds: float = 0.0
    running: int = 0
    unknown: int = 0


def take_forecast(ready: Mapping[str, int]) -> Forecast:
    """The forecast for queues with so many ready jobs, by name."""
    known, now = past(), database_time()
    queues = tuple(_forecast(queue, jobs, known.get(queue), now) for queue, jobs in ready.items())
    running = [
        (jobs, max((percentile or 0.0) - seconds, 0.0), percentile in UNKNOWN)
        for jobs, seconds, buckets in fetch(RUNNING, {"most": MOST_RUNNING})
        for percentile in [Histogram(tuple(json.loads(buckets))).percentile(0.95)]
    ]
    return Forecast(
        queues=queues,
        deploy_seconds=max((rest for _, rest, _ in running), default=0.0),
        running=sum(jobs for jobs, _, _ in running),
        unknown=sum(jobs for jobs, _, is_unknown in running if is_unknown),
    )


def _forecast(queue: str, ready: int, known: Past | None, now: datetime) -> QueueForecast:
    counted = ready if ready < MOST_COUNTED else None
    rates = known.rates(counted) if known else None
    if known and counted is None and rates:
        ready = known.last_ready or ready
    seconds = known.drain_seconds(counted) if known else drain_seconds(ready, None)
    drained_at = None if seconds is None else now + timedelta(seconds=min(seconds, LONGEST))
    return QueueForecast(
        queue=queue,
        ready=ready,
        arrived_per_second=rates.arrived if rates else None,
        claimed_per_second=rates.claimed if rates else None,
        ended_per_second=rates.ended if rates else None,
        drain_seconds=seconds,
        drained_at=drained_at.isoformat(timespec="seconds") if drained_at else None,
        forecasts=known.forecasts if known else 0,
        error_ratio=known.error_ratio if known else None,
    )
