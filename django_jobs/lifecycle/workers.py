"""A worker's row: registered at boot, renewed by the heartbeat, ended at exit."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ..models.database import execute, fetch
from .progress import UNANSWERED

FIRST_ID, LAST_ID = 10**15, 2**53 - 1
"""A worker's id is random. A sequence that starts again (``flush``, ``TRUNCATE ... RESTART
IDENTITY``, a restored backup) would give a new worker the id of a live one, and each would settle
the other's jobs. JSON and JavaScript keep sixteen digits exactly. Ids that older releases took from
the sequence are below."""

REGISTER = """
INSERT INTO django_jobs_worker (id, name, host, pid, queues, threads, async_slots, pools,
    code_version, supervisor_pid, job_types, payload_versions, status, started_at, heartbeat_at,
    lease_expires_at, stop_reason)
SELECT %(id)s, %(name)s, %(host)s, %(pid)s, %(queues)s::jsonb, %(threads)s, %(async_slots)s,
    %(pools)s::jsonb, %(code_version)s, %(supervisor_pid)s, %(job_types)s::jsonb,
    %(versions)s::jsonb, 'running', now, now, now + make_interval(secs => %(lease)s::float8), ''
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
ON CONFLICT (id) DO NOTHING
RETURNING id
"""

_CANCELLED = """FROM django_jobs_job_live
WHERE status = 'running' AND cancel_requested_at IS NOT NULL"""

# Does not renew a worker that was declared lost: others are taking over its jobs. Does not renew a
# row whose last heartbeat is older than the one its process knows: a backup was restored, or a
# standby promoted, that lacks what the worker has done since. The heartbeat of the row may be
# newer, because the answer to a renewal may have been lost. Skips a locked row, so that its lock
# does not keep the other workers of the tree from being renewed.
RENEW = f"""
WITH known AS MATERIALIZED (
    SELECT worker.id, asked.claim_failures, asked.rss_mb, asked.started_jobs,
        asked.ended_runs, asked.failed_runs, asked.listens
    FROM unnest(%(workers)s::bigint[], %(known)s::timestamptz[], %(failures)s::bigint[],
            %(rss)s::integer[], %(started)s::jsonb[], %(runs)s::bigint[], %(failed)s::bigint[],
            %(listens)s::boolean[])
        AS asked (id, heartbeat_at, claim_failures, rss_mb, started_jobs, ended_runs,
            failed_runs, listens)
    JOIN django_jobs_worker AS worker ON worker.id = asked.id
    WHERE worker.status IN ('running', 'draining')
      AND (asked.heartbeat_at IS NULL OR worker.heartbeat_at >= asked.heartbeat_at)
), free AS MATERIALIZED (
    SELECT id FROM django_jobs_worker
    WHERE id IN (SELECT id FROM known) AND status IN ('running', 'draining')
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE django_jobs_worker AS worker
    SET heartbeat_at = clock_timestamp(),
        schedules_seen_at = coalesce(
            clock_timestamp() - make_interval(secs => %(looked_ago)s::float8),
            worker.schedules_seen_at),
        lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s::float8),
        claim_failures = coalesce(known.claim_failures, worker.claim_failures),
        rss_mb = known.rss_mb, started_jobs = known.started_jobs, listens = known.listens,
        ended_runs = coalesce(known.ended_runs, worker.ended_runs),
        failed_runs = coalesce(known.failed_runs, worker.failed_runs),
        clock_skew = coalesce(%(clock_skew)s::float8, worker.clock_skew)
    FROM free JOIN known USING (id) WHERE worker.id = free.id
    RETURNING worker.id, worker.drain_requested_at IS NOT NULL AS drains, worker.heartbeat_at
)
SELECT known.id, coalesce(renewed.drains, false), renewed.heartbeat_at,
    EXISTS (SELECT {_CANCELLED} AND worker_id = known.id),
    EXISTS (SELECT {UNANSWERED} AND worker_id = known.id),
    EXISTS (SELECT FROM django_jobs_job_live WHERE status = 'running' AND worker_id = known.id)
FROM known LEFT JOIN renewed ON renewed.id = known.id
"""

CANCELS = f"""
SELECT worker_id, id, force_requested_at IS NOT NULL {_CANCELLED}
  AND worker_id = ANY(%(workers)s::bigint[])
"""

# Like a renewal, these wait for no lock. A row that could not be closed is declared lost when its
# lease runs out.
SERVE = """
UPDATE django_jobs_worker SET queues = %(queues)s::jsonb
WHERE id IN (
    SELECT id FROM django_jobs_worker
    WHERE id = %(worker)s AND status IN ('running', 'draining')
    FOR NO KEY UPDATE SKIP LOCKED)
"""

MARK_DRAINING = """
UPDATE django_jobs_worker SET status = 'draining', draining_at = clock_timestamp()
WHERE id IN (
    SELECT id FROM django_jobs_worker
    WHERE id = ANY(%(workers)s::bigint[]) AND status = 'running'
    FOR NO KEY UPDATE SKIP LOCKED)
"""

END = """
UPDATE django_jobs_worker
SET status = %(status)s, stopped_at = clock_timestamp(),
    stop_reason = coalesce(nullif(%(reason)s, ''), stop_reason)
WHERE id IN (
    SELECT id FROM django_jobs_worker
    WHERE id = %(worker)s AND status IN ('running', 'draining')
    FOR NO KEY UPDATE SKIP LOCKED)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The registration of one run of a worker process. ``pools`` are the queues and the number of
    threads of each named pool. ``job_types`` maps the names it has handlers for to the newest
    payload version that each reads. ``lease`` is in seconds."""

    name: str
    host: str
    pid: int
    queues: Sequence[str]
    threads: int
    async_slots: int = 0
    pools: Sequence[tuple[Sequence[str], int]] = ()
    job_types: Mapping[str, int]
    code_version: str = ""
    supervisor_pid: int | None = None
    lease: float


MOST_STARTED = 200
"""Started jobs of a process that are written with its heartbeat."""


class Load(NamedTuple):
    """What a worker uses and runs. ``started`` has the id of each started job, how many seconds ago
    it began, and the memory in MB of its process if it is isolated; of more than ``MOST_STARTED``
    jobs, those of the oldest. ``runs`` counts the attempts that it has ended, and ``failed`` those
    that failed or ran out of time. ``listens`` is whether it receives notifications."""

    rss_mb: int
    started: Sequence[tuple[int, float, int | None]] = ()
    runs: int = 0
    failed: int = 0
    listens: bool = True


NO_BEATS: Mapping[int, datetime] = {}
NO_FAILURES: Mapping[int, int] = {}
NO_LOADS: Mapping[int, Load] = {}


class Renewal(NamedTuple):
    """A worker that is alive by its row. ``heartbeat_at`` is None if the row was locked and so was
    not renewed. ``cancel_asked`` and ``inspection_asked``: :func:`cancels_asked` and
    :func:`progress.asked` have something for it. ``holds_jobs``: some are claimed by it."""

    drain_requested: bool
    heartbeat_at: datetime | None
    cancel_asked: bool
    inspection_asked: bool
    holds_jobs: bool


def register(info: WorkerInfo) -> int:
    """Insert the row of a worker that has booted. Return its id, which no worker ever had."""
    row = {
        "name": info.name[:200],
        "host": info.host[:200],
        "pid": info.pid,
        "queues": json.dumps(list(info.queues)),
        "threads": info.threads,
        "async_slots": info.async_slots,
        "pools": json.dumps(
            [{"queues": list(queues), "threads": threads} for queues, threads in info.pools]
        ),
        "code_version": info.code_version[:100],
        "supervisor_pid": info.supervisor_pid,
        "job_types": json.dumps(sorted(info.job_types)),
        "versions": json.dumps({name: v for name, v in info.job_types.items() if v > 1}),
        "lease": info.lease,
    }
    while True:
        id_ = FIRST_ID + secrets.randbelow(LAST_ID - FIRST_ID + 1)
        if fetch(REGISTER, {**row, "id": id_}):
            return id_


def renew(
    workers: Sequence[int],
    lease: float,
    looked_ago: float | None = None,
    beats: Mapping[int, datetime] = NO_BEATS,
    claim_failures: Mapping[int, int] = NO_FAILURES,
    loads: Mapping[int, Load] = NO_LOADS,
    clock_skew: float | None = None,
) -> dict[int, Renewal]:
    """Extend the lease of each worker by ``lease`` seconds from now. ``looked_ago`` is how many
    seconds ago their process looked at the schedules, None to keep what is stored.

    ``beats`` has the last heartbeat known to be written, for workers that have one, and
    ``claim_failures`` how many rounds of claims failed, which is kept for the others. ``loads`` is
    what they use and run now; it is unknown for the others. ``clock_skew`` is how far the clock of
    their host is ahead of the database's; what is stored is kept if it is None. Returns the workers
    that are alive, including those whose row was locked. A worker that is missing has lost its
    lease and all its claimed jobs.
    """
    known = [loads.get(worker) for worker in workers]
    rows = fetch(
        RENEW,
        {
            "workers": list(workers),
            "known": [beats.get(worker) for worker in workers],
            "failures": [claim_failures.get(worker) for worker in workers],
            "rss": [load and load.rss_mb for load in known],
            "started": [load and json.dumps(load.started) for load in known],
            "runs": [load and load.runs for load in known],
            "failed": [load and load.failed for load in known],
            "listens": [load and load.listens for load in known],
            "lease": lease,
            "looked_ago": looked_ago,
            "clock_skew": clock_skew,
        },
    )
    return {worker: Renewal(*renewal) for worker, *renewal in rows}


def cancels_asked(workers: Sequence[int]) -> list[tuple[int, int, bool]]:
    """``(worker, job, by force)`` for each running job of ``workers`` that is to be cancelled."""
    rows = fetch(CANCELS, {"workers": list(workers)})
    return [(worker, job, force) for worker, job, force in rows]


def serve(worker: int, queues: Sequence[str]) -> bool:
    """Show that the worker serves these queues now. False if its row is locked or has ended."""
    return execute(SERVE, {"worker": worker, "queues": json.dumps(list(queues))}) > 0


def mark_draining(workers: Sequence[int]) -> None:
    """Mark running workers as draining. They keep and renew the jobs they run."""
    execute(MARK_DRAINING, {"workers": list(workers)})


def end(worker: int, *, status: str = "stopped", reason: str = "") -> bool:
    """End a worker's row. An empty reason keeps that of the request to drain. False if it has ended
    already or another session has locked it."""
    return execute(END, {"worker": worker, "status": status, "reason": reason[:300]}) > 0
