"""A worker's row: registered at boot, renewed by the heartbeat, ended at exit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .database import execute, fetch

REGISTER = """
INSERT INTO django_jobs_worker (name, host, pid, queues, threads, code_version, job_types,
    versions, status, started_at, heartbeat_at, lease_expires_at, stop_reason)
SELECT %(name)s, %(host)s, %(pid)s, %(queues)s::jsonb, %(threads)s, %(code_version)s,
    %(job_types)s::jsonb, %(versions)s::jsonb, 'running', now, now,
    now + make_interval(secs => %(lease)s::float8), ''
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
RETURNING id
"""

# A worker that was declared lost is not renewed: its jobs are on their way to others.
RENEW = """
UPDATE django_jobs_worker AS worker
SET heartbeat_at = clock_timestamp(),
    schedules_seen_at = coalesce(
        clock_timestamp() - make_interval(secs => %(looked_ago)s::float8),
        worker.schedules_seen_at),
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s::float8)
WHERE worker.id = ANY(%(workers)s::bigint[]) AND worker.status IN ('running', 'draining')
RETURNING worker.id, worker.drain_requested_at IS NOT NULL
"""

CANCELS = """
SELECT worker_id, id FROM django_jobs_job
WHERE status = 'running' AND worker_id = ANY(%(workers)s::bigint[])
  AND cancel_requested_at IS NOT NULL
"""

MARK_DRAINING = """
UPDATE django_jobs_worker SET status = 'draining'
WHERE id = ANY(%(workers)s::bigint[]) AND status = 'running'
"""

END = """
UPDATE django_jobs_worker
SET status = %(status)s, stopped_at = clock_timestamp(), stop_reason = %(reason)s
WHERE id = %(worker)s AND status IN ('running', 'draining')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What one boot of a worker process says of itself. ``job_types`` are those it has handlers
    for, with the newest version of a payload that each reads; ``lease`` is in seconds."""

    name: str
    host: str
    pid: int
    queues: Sequence[str]
    threads: int
    job_types: Mapping[str, int]
    code_version: str = ""
    lease: float


def register(boot: Boot) -> int:
    """Insert the row of a worker that has just booted; return its id."""
    rows = fetch(
        REGISTER,
        {
            "name": boot.name[:200],
            "host": boot.host[:200],
            "pid": boot.pid,
            "queues": json.dumps(list(boot.queues)),
            "threads": boot.threads,
            "code_version": boot.code_version[:100],
            "job_types": json.dumps(sorted(boot.job_types)),
            "versions": json.dumps({name: v for name, v in boot.job_types.items() if v > 1}),
            "lease": boot.lease,
        },
    )
    return int(rows[0][0])


def renew(workers: Sequence[int], lease: float, looked_ago: float | None = None) -> dict[int, bool]:
    """Extend the lease of each worker by ``lease`` seconds from now, and note how many seconds ago
    their process looked at the schedules.

    Returns the workers that are still known as alive, and whether each was asked to drain. One
    that is missing has lost its lease, and all the jobs it held with it.
    """
    return dict(fetch(RENEW, {"workers": list(workers), "lease": lease, "looked_ago": looked_ago}))


def cancels_asked(workers: Sequence[int]) -> list[tuple[int, int]]:
    """(worker, job) for each running job of ``workers`` that somebody asked to cancel."""
    return [(worker, job) for worker, job in fetch(CANCELS, {"workers": list(workers)})]


def mark_draining(workers: Sequence[int]) -> None:
    """Show the workers as draining. They go on holding and renewing what they run."""
    execute(MARK_DRAINING, {"workers": list(workers)})


def end(worker: int, *, status: str = "stopped", reason: str = "") -> bool:
    """Close a worker's row. False if it was already closed."""
    return execute(END, {"worker": worker, "status": status, "reason": reason[:300]}) > 0
