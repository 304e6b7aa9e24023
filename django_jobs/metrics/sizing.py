"""How many threads each queue needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil

from ..models.database import fetch

HEADROOM = 1.2
"""Threads for each one that is busy on average. Without any, each burst of jobs would wait."""

MOST_RUNS = 20_000
"""The newest runs that are read: 0.1 s, for any number of runs in the last hour."""

# The newest runs by id, of all partitions, without a condition: with one on their time, PostgreSQL
# would read on through the runs of the day. The oldest says how long a time they cover. Runs have
# no queue. Their jobs are found by primary key: they are live, or ended after the run and so in the
# newest partitions. The second hour there is for clocks and long transactions.
SIZING = """
WITH newest AS MATERIALIZED (
    SELECT job_id, started_at, finished_at FROM django_jobs_run ORDER BY id DESC LIMIT %(most)s
), covered AS (
    SELECT greatest(1, least(3600, extract(epoch FROM clock_timestamp() - CASE
        WHEN count(*) < %(most)s THEN min(coalesce(started_at, finished_at))
        ELSE min(finished_at) END)))::float8 AS seconds
    FROM newest
), ended AS MATERIALIZED (
    SELECT job_id, extract(epoch FROM finished_at - started_at)::float8 AS seconds
    FROM newest
    WHERE started_at IS NOT NULL AND finished_at >= now() - interval '1 hour'
)
SELECT covered.seconds, job.queue, count(*), avg(ended.seconds),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY ended.seconds),
    (SELECT max_concurrency FROM django_jobs_queue AS queue WHERE queue.name = job.queue)
FROM covered CROSS JOIN ended CROSS JOIN LATERAL (
    SELECT live.queue FROM django_jobs_job_live AS live WHERE live.id = ended.job_id
    UNION ALL
    SELECT past.queue FROM django_jobs_job_history AS past
    WHERE past.id = ended.job_id AND past.finished_at >= now() - interval '2 hours'
    LIMIT 1) AS job
GROUP BY covered.seconds, job.queue
ORDER BY job.queue
"""

# A worker without named pools has one, of all its threads.
THREADS = """
SELECT pool.queues, pool.threads
FROM django_jobs_worker AS worker CROSS JOIN LATERAL jsonb_to_recordset(
    CASE WHEN worker.pools <> '[]' THEN worker.pools ELSE jsonb_build_array(
        jsonb_build_object('queues', worker.queues, 'threads', worker.threads)) END
) AS pool (queues jsonb, threads integer)
WHERE worker.status = 'running' AND worker.lease_expires_at >= clock_timestamp()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSizing:
    """The load of one queue. ``rate`` is in runs per second, the times are those of its handlers.

    ``threads_needed`` is rate * mean time * 1.2: the threads that are busy on average (Little's
    law), and a fifth more. ``threads`` counts those of the running workers that serve the queue;
    they may serve others too.
    """

    queue: str
    runs: int
    rate: float
    mean_seconds: float
    p95_seconds: float
    threads_needed: float
    threads: int
    max_concurrency: int | None

    @property
    def problem(self) -> str | None:
        """What is too small for this queue, in a sentence; None if nothing is."""
        need = f"{self.queue} needs {_threads(self.threads_needed)}"
        if self.max_concurrency is not None and self.max_concurrency < self.threads_needed:
            return f"{need}, but may run only {self.max_concurrency} at a time."
        if self.threads < self.threads_needed:
            return f"{need}, and has {self.threads or 'none'}."
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The load of the queues that had runs in the last ``seconds``: an hour, or what the newest
    20,000 runs cover. ``threads`` are those of all running workers."""

    seconds: float
    runs: int
    threads: int
    threads_needed: float
    queues: tuple[QueueSizing, ...]

    @property
    def problems(self) -> list[str]:
        """What is too small, in sentences."""
        problems = [queue.problem for queue in self.queues if queue.problem is not None]
        if not problems and self.threads < self.threads_needed:
            need = _threads(self.threads_needed)
            problems.append(f"All queues together need {need}, and there are {self.threads}.")
        return problems


def take_sizing(most_runs: int = MOST_RUNS) -> Sizing:
    """The load of each queue, from the newest ``most_runs`` runs of the last hour."""
    pools = [(json.loads(queues), threads) for queues, threads in fetch(THREADS, {})]
    queues = []
    seconds = 3600.0
    for seconds, queue, runs, mean, p95, limit in fetch(SIZING, {"most": most_runs}):
        queues.append(
            QueueSizing(
                queue=queue,
                runs=runs,
                rate=runs / seconds,
                mean_seconds=mean,
                p95_seconds=p95,
                threads_needed=runs / seconds * mean * HEADROOM,
                threads=sum(threads for served, threads in pools if queue in served),
                max_concurrency=limit,
            )
        )
    return Sizing(
        seconds=seconds,
        runs=sum(queue.runs for queue in queues),
        threads=sum(threads for _, threads in pools),
        threads_needed=sum(queue.threads_needed for queue in queues),
        queues=tuple(queues),
    )


def _threads(number: float) -> str:
    return "1 thread" if ceil(number) == 1 else f"{ceil(number)} threads"
