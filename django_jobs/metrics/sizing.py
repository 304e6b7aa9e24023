"""How many threads, and slots for async handlers, each queue needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from math import ceil

from .. import registry
from ..models.database import fetch

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
SLOTS = """
SELECT queues, threads, async_slots, id FROM django_jobs_worker
WHERE pools = '[]' AND status = 'running' AND lease_expires_at >= clock_timestamp()
UNION ALL
SELECT pool.queues, pool.threads, CASE WHEN worker.async_slots > 0
    THEN greatest(worker.async_slots * pool.threads / worker.threads, 1) ELSE 0 END,
    worker.id
FROM django_jobs_worker AS worker
CROSS JOIN LATERAL jsonb_to_recordset(worker.pools) AS pool (queues jsonb, threads integer)
WHERE worker.status = 'running' AND worker.lease_expires_at >= clock_timestamp()
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
        """What it needs: ``5 threads``."""
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
