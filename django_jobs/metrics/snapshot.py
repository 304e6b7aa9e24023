"""One look at all queues and workers. Every statement is bounded, also on millions of jobs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..lifecycle.database import fetch

MOST_COUNTED = 100_000
"""Jobs counted per number; a number that says so many means "at least"."""

# Each count reads a partial index up to the bound: the order is asked for to that end, because for
# a mere limit the planner may read the table and, in a queue without jobs, all of it. The head of
# a queue is where its oldest job stands, or within the first thousand where priorities differ.
QUEUES = """
SELECT queue.name, queue.paused_at IS NOT NULL, queue.paused_reason, queue.max_concurrency,
    (SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT %(most)s) AS counted),
    (SELECT extract(epoch FROM clock_timestamp() - min(head.available_at))::float8 FROM (
        SELECT job.available_at FROM django_jobs_job AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT 1000) AS head)
FROM django_jobs_queue AS queue
ORDER BY queue.name
"""

OTHER_COUNTS = """
SELECT 'scheduled', queue, count(*) FROM (
    SELECT queue FROM django_jobs_job WHERE status = 'scheduled'
    ORDER BY available_at LIMIT %(most)s
) AS scheduled GROUP BY queue
UNION ALL
SELECT 'running', queue, count(*) FROM (
    SELECT queue FROM django_jobs_job WHERE status = 'running'
    ORDER BY worker_id LIMIT %(most)s
) AS running GROUP BY queue
UNION ALL
SELECT 'dead', queue, count(*) FROM (
    SELECT queue FROM django_jobs_job WHERE status = 'dead'
    ORDER BY id LIMIT %(most)s
) AS dead GROUP BY queue
"""

WORKERS = """
SELECT worker.id, worker.name, worker.host, worker.pid, worker.status, worker.queues,
    worker.threads, worker.code_version,
    extract(epoch FROM clock_timestamp() - worker.heartbeat_at)::float8,
    extract(epoch FROM worker.lease_expires_at - clock_timestamp())::float8,
    (SELECT count(*) FROM django_jobs_job AS job
     WHERE job.status = 'running' AND job.worker_id = worker.id)
FROM django_jobs_worker AS worker
WHERE worker.status IN ('running', 'draining')
ORDER BY worker.name, worker.id
"""

# Claims pass over what their worker does not know, so such jobs come to stand at the head.
UNKNOWN = """
SELECT seen.job_type, seen.ready FROM (
    SELECT head.job_type, count(*) AS ready
    FROM django_jobs_queue AS queue CROSS JOIN LATERAL (
        SELECT job.job_type FROM django_jobs_job AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT %(most)s) AS head
    GROUP BY head.job_type) AS seen
WHERE EXISTS (
    SELECT 1 FROM django_jobs_worker AS worker WHERE worker.status IN ('running', 'draining'))
  AND NOT EXISTS (
    SELECT 1 FROM django_jobs_worker AS worker
    WHERE worker.status IN ('running', 'draining')
      AND worker.job_types @> to_jsonb(seen.job_type))
ORDER BY seen.ready DESC, seen.job_type
LIMIT 100
"""
MOST_LOOKED_AT = 5_000
"""Jobs per queue that are looked at for their type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """One queue. Counts stop at 100,000. ``oldest_ready_seconds`` is None where none is ready."""

    name: str
    paused: bool = False
    paused_reason: str = ""
    max_concurrency: int | None = None
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    dead: int = 0
    oldest_ready_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """One worker that has not ended. ``lease_seconds`` is negative once its lease ran out; ``held``
    counts the jobs it runs or has fetched to run."""

    id: int
    name: str
    host: str
    pid: int
    status: str
    queues: tuple[str, ...]
    threads: int
    code_version: str
    heartbeat_seconds: float
    lease_seconds: float
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownJobType:
    """Ready jobs of a type that no living worker knows. ``ready`` counts them among the first
    5,000 of each queue."""

    job_type: str
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All queues and all living workers. ``unknown_job_types`` is empty while no worker lives."""

    queues: tuple[QueueSnapshot, ...] = field(default=())
    workers: tuple[WorkerSnapshot, ...] = field(default=())
    unknown_job_types: tuple[UnknownJobType, ...] = field(default=())


def take_snapshot() -> Snapshot:
    """Read the queues and workers as they are now, in four statements.

    A queue that has jobs but no row, because somebody deleted it, is listed too.
    """
    counts: dict[str, dict[str, Any]] = {}
    for status, queue, count in fetch(OTHER_COUNTS, {"most": MOST_COUNTED}):
        counts.setdefault(queue, {})[status] = count
    queues = [
        QueueSnapshot(
            name=name,
            paused=paused,
            paused_reason=reason,
            max_concurrency=limit,
            ready=ready,
            oldest_ready_seconds=oldest,
            **counts.pop(name, {}),
        )
        for name, paused, reason, limit, ready, oldest in fetch(QUEUES, {"most": MOST_COUNTED})
    ]
    queues += [QueueSnapshot(name=name, **counts[name]) for name in sorted(counts)]
    unknown = fetch(UNKNOWN, {"most": MOST_LOOKED_AT})
    return Snapshot(
        queues=tuple(queues),
        workers=tuple(map(_worker, fetch(WORKERS, {}))),
        unknown_job_types=tuple(
            UnknownJobType(job_type=name, ready=ready) for name, ready in unknown
        ),
    )


def _worker(row: tuple[Any, ...]) -> WorkerSnapshot:
    id_, name, host, pid, status, queues, threads, code_version, heartbeat, lease, held = row
    return WorkerSnapshot(
        id=id_,
        name=name,
        host=host,
        pid=pid,
        status=status,
        queues=tuple(json.loads(queues)),
        threads=threads,
        code_version=code_version,
        heartbeat_seconds=heartbeat,
        lease_seconds=lease,
        held=held,
    )
