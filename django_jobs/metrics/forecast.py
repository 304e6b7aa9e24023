"""When the backlog of each queue will be gone, how long a deploy will wait, and how many threads
and slots for async handlers each queue needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from math import ceil

from .. import registry
from ..domain.histograms import BOUNDS, BUCKETS, Histogram
from ..domain.pressure import drain_seconds
from ..lifecycle.backlog import MOST_COUNTED
from ..lifecycle.backlog_samples import Past, past
from ..lifecycle.run_totals import HOUR
from ..models.database import database_time, fetch, fetch_named
from ..models.worker import IS_ALIVE

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
          FROM (SELECT id, job_type, claimed_at, worker_id FROM django_jobs_job_live
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


HEADROOM = 1.2
"""Threads for each one that is busy on average. Without any, each burst of jobs would wait."""

MOST_RUNS = 20_000
"""The newest runs that are read: 0.1 s, for any number of runs in the last hour."""

# How long a time the newest runs cover, which the oldest of them says.
COVERED = """
    SELECT greatest(1, least(3600, extract(epoch FROM clock_timestamp() - CASE
        WHEN count(*) < %(most)s THEN min(coalesce(started_at, finished_at))
        ELSE min(finished_at) END)))::float8 AS seconds
    FROM newest
"""

# Runs have no queue and no type. Their jobs are found by primary key: they are live, or ended after
# the run and so in the newest partitions. The second hour there is for clocks and long
# transactions.
JOB_OF_RUN = """LATERAL (
    SELECT live.queue, live.job_type FROM django_jobs_job_live AS live WHERE live.id = ended.job_id
    UNION ALL
    SELECT past.queue, past.job_type FROM django_jobs_job_history AS past
    WHERE past.id = ended.job_id AND past.finished_at >= now() - interval '2 hours'
    LIMIT 1) AS job"""

# The newest runs by id, of all partitions, without a condition: with one on their time, PostgreSQL
# would read on through the runs of the day.
SIZING = f"""
WITH newest AS MATERIALIZED (
    SELECT job_id, started_at, finished_at FROM django_jobs_run ORDER BY id DESC LIMIT %(most)s
), covered AS ({COVERED}), ended AS MATERIALIZED (
    SELECT job_id, extract(epoch FROM finished_at - started_at)::float8 AS seconds
    FROM newest
    WHERE started_at IS NOT NULL AND finished_at >= now() - interval '1 hour'
)
SELECT covered.seconds, job.queue, job.job_type = ANY(%(async_types)s) AS on_loop, count(*),
    avg(ended.seconds), percentile_cont(0.95) WITHIN GROUP (ORDER BY ended.seconds),
    (SELECT max_concurrency FROM django_jobs_queue AS queue WHERE queue.name = job.queue)
FROM covered CROSS JOIN ended CROSS JOIN {JOB_OF_RUN}
GROUP BY covered.seconds, job.queue, on_loop
ORDER BY job.queue, on_loop
"""

# A worker without named pools has one, of all its threads. Pools share the slots of the loop by
# their threads.
SLOTS = f"""
SELECT queues, threads, async_slots, id FROM django_jobs_worker AS worker
WHERE pools = '[]' AND status = 'running' AND {IS_ALIVE}
UNION ALL
SELECT pool.queues, pool.threads, CASE WHEN worker.async_slots > 0
    THEN greatest(worker.async_slots * pool.threads / worker.threads, 1) ELSE 0 END,
    worker.id
FROM django_jobs_worker AS worker
CROSS JOIN LATERAL jsonb_to_recordset(worker.pools) AS pool (queues jsonb, threads integer)
WHERE worker.status = 'running' AND {IS_ALIVE}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSizing:
    """The load of one queue, of its plain handlers or of those ``on_loop``. ``rate`` is in runs per
    second, the times are those of the handlers.

    ``slots_needed`` is rate * mean time * 1.2: the threads, or slots of event loops, that are busy
    on average (Little's law), and a fifth more. ``slots`` counts those of the running workers that
    serve the queue; they may serve others too.
    """

    queue: str
    on_loop: bool
    runs: int
    rate: float
    mean_seconds: float
    p95_seconds: float
    slots_needed: float
    slots: int
    max_concurrency: int | None

    @property
    def need(self) -> str:
        return _slots(self.slots_needed, self.on_loop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The load of the queues that had runs in the last ``seconds``: an hour, or what the newest
    20,000 runs cover. ``threads`` and ``async_slots`` are those of all running workers."""

    seconds: float
    runs: int
    threads: int
    threads_needed: float
    async_slots: int
    async_slots_needed: float
    queues: tuple[QueueSizing, ...]

    @property
    def problems(self) -> list[str]:
        """What is too small, in sentences."""
        problems = []
        for name, of_queue in groupby(self.queues, lambda queue: queue.queue):
            kinds = list(of_queue)
            limit = kinds[0].max_concurrency
            if limit is not None and limit < sum(kind.slots_needed for kind in kinds):
                needs = " and ".join(kind.need for kind in kinds)
                problems.append(f"{name} needs {needs}, but may run only {limit} at a time.")
                continue
            problems += [
                f"{name} needs {kind.need}, and has {kind.slots or 'none'}."
                for kind in kinds
                if kind.slots < kind.slots_needed
            ]
        together = (
            (self.threads, self.threads_needed, False),
            (self.async_slots, self.async_slots_needed, True),
        )
        return problems or [
            f"All queues together need {_slots(needed, on_loop)}, and there are {slots}."
            for slots, needed, on_loop in together
            if slots < needed
        ]


def take_sizing(most_runs: int = MOST_RUNS) -> Sizing:
    """The load of each queue, from the newest ``most_runs`` runs of the last hour."""
    pools = [(json.loads(queues), slots) for queues, *slots, _ in fetch(SLOTS, {})]
    queues = []
    seconds = 3600.0
    parameters = {"most": most_runs, "async_types": registry.loop_types()}
    for seconds, queue, on_loop, runs, mean, p95, limit in fetch(SIZING, parameters):
        queues.append(
            QueueSizing(
                queue=queue,
                on_loop=on_loop,
                runs=runs,
                rate=runs / seconds,
                mean_seconds=mean,
                p95_seconds=p95,
                slots_needed=runs / seconds * mean * HEADROOM,
                slots=sum(slots[on_loop] for served, slots in pools if queue in served),
                max_concurrency=limit,
            )
        )
    return Sizing(
        seconds=seconds,
        runs=sum(queue.runs for queue in queues),
        threads=sum(threads for _, (threads, _) in pools),
        threads_needed=sum(queue.slots_needed for queue in queues if not queue.on_loop),
        async_slots=sum(slots for _, (_, slots) in pools),
        async_slots_needed=sum(queue.slots_needed for queue in queues if queue.on_loop),
        queues=tuple(queues),
    )


def _slots(number: float, on_loop: bool) -> str:
    name = "async slot" if on_loop else "thread"
    return f"1 {name}" if ceil(number) == 1 else f"{ceil(number)} {name}s"


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
SELECT job.job_type, count(*) AS runs, sum(ended.seconds) AS seconds,
    sum(ended.cpu_seconds) AS cpu_seconds, max(ended.max_rss_kb) AS max_rss_kb,
    sum(ended.queries) AS queries, sum(ended.query_seconds) AS query_seconds,
    max(ended.seconds) AS max_seconds, covered.seconds AS covered,
    percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ended.seconds) AS percentiles,
    covered.seconds < 3600 AND (SELECT count(*) FROM newest) >= %(most)s AS cut
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
    rows = fetch_named(COST, {"most": most_runs, "most_types": MOST_TYPES})
    covered, cut = 3600.0, False
    for row in rows:
        covered, cut = row.pop("covered"), row.pop("cut")
        row["p50_seconds"], row["p95_seconds"] = row.pop("percentiles")
    return Cost(seconds=covered, types=tuple(TypeCost(**row) for row in rows), cut=cut)
