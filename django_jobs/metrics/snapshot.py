"""Queues, workers, schedules and limits now. Each statement is bounded on millions of rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..domain.pressure import Level, level_of
from ..lifecycle.backlog import MOST_COUNTED, OLDEST_SECONDS, ready_up_to
from ..lifecycle.gate_limits import ends_of_queue, gated_up_to
from ..models.database import fetch_named
from .forecast import Forecast, take_forecast
from .limits import ResourceSnapshot, TenantSnapshot, take_limits
from .schedules import MAX_LAG, SchedulesSnapshot, problem_of_schedules, take_schedules
from .slo import SloSnapshot, take_objectives
from .unclaimable import (
    MOST_LOOKED_AT,
    QuarantineSnapshot,
    UnknownTypeBacklog,
    UnreadVersion,
    capped,
    take_quarantines,
    take_unclaimable,
)

Rows = Sequence[Mapping[str, Any]]

# Steps from one queue to the next in two indexes, so that queues whose row was deleted are found.
QUEUES = f"""
WITH RECURSIVE found AS (
    (SELECT queue FROM django_jobs_job_live WHERE status = 'ready' ORDER BY queue, rank, id LIMIT 1)
    UNION ALL
    SELECT next.queue FROM found CROSS JOIN LATERAL (
        SELECT job.queue FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue > found.queue
        ORDER BY job.queue, job.rank, job.id LIMIT 1) AS next
), at_gates AS (
    (SELECT queue, gates FROM django_jobs_job_live WHERE status = 'blocked' AND gates IS NOT NULL
     ORDER BY gates, rank, id LIMIT 1)
    UNION ALL
    SELECT next.* FROM at_gates AS line CROSS JOIN LATERAL (
        SELECT job.queue, job.gates FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL
          AND job.gates > greatest(line.gates, {ends_of_queue("line.queue")[1]})
        ORDER BY job.gates, job.rank, job.id LIMIT 1) AS next
)
SELECT queue.name, line.name IS NULL AS gone, line.paused_at IS NOT NULL AS paused,
    coalesce(line.paused_reason, '') AS paused_reason, coalesce(line.paused_by, '') AS paused_by,
    extract(epoch FROM clock_timestamp() - line.paused_at)::float8 AS paused_seconds,
    line.max_concurrency, line.max_backlog,
    {ready_up_to("greatest(line.max_backlog, %(most)s)")} AS ready,
    {gated_up_to("greatest(line.max_backlog, %(most)s)")} AS gated,
    {OLDEST_SECONDS} AS oldest_ready_seconds
FROM (
    SELECT name FROM django_jobs_queue
    UNION SELECT queue FROM found UNION SELECT queue FROM at_gates) AS queue
LEFT JOIN django_jobs_queue AS line ON line.name = queue.name
ORDER BY queue.name
"""

# A worker makes scheduled jobs ready within a poll after they are due. A due time may be infinite,
# and JSON has no infinity.
OTHER_COUNTS = """
SELECT 'scheduled' AS status, queue, count(*) AS jobs, nullif(least(greatest(
    date_part('epoch', clock_timestamp()) - date_part('epoch', min(available_at)), 0), 1e9), 0)
    AS more
FROM (
    SELECT queue, available_at FROM django_jobs_job_live WHERE status = 'scheduled'
    ORDER BY available_at LIMIT %(most)s
) AS scheduled GROUP BY queue
UNION ALL
SELECT 'running', queue, count(*), count(*) FILTER (
    WHERE place > coalesce(worker.threads + worker.async_slots, place))::float8
FROM (
    SELECT queue, worker_id,
        row_number() OVER (PARTITION BY worker_id ORDER BY claimed_at, id) AS place
    FROM (SELECT id, queue, worker_id, claimed_at FROM django_jobs_job_live WHERE status = 'running'
          ORDER BY worker_id LIMIT %(most)s) AS first
) AS running LEFT JOIN django_jobs_worker AS worker ON worker.id = running.worker_id
GROUP BY queue
UNION ALL
SELECT 'dead', queue, count(*), NULL FROM (
    SELECT queue FROM django_jobs_job_live WHERE status = 'dead'
    ORDER BY id LIMIT %(most)s
) AS dead GROUP BY queue
"""

WORKERS = """
SELECT worker.id, worker.name, worker.host, worker.pid, worker.status, worker.queues,
    worker.threads, worker.async_slots, worker.pools, worker.code_version,
    extract(epoch FROM clock_timestamp() - worker.heartbeat_at)::float8 AS heartbeat_seconds,
    extract(epoch FROM worker.lease_expires_at - clock_timestamp())::float8 AS lease_seconds,
    (SELECT count(*) FROM django_jobs_job_live AS job
     WHERE job.status = 'running' AND job.worker_id = worker.id) AS claimed
FROM django_jobs_worker AS worker
WHERE worker.status IN ('running', 'draining')
ORDER BY worker.name, worker.started_at, worker.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """One queue. If it is ``gone``, it has jobs and no row, so no worker claims them. Counts stop
    at 100,000. ``gated`` jobs wait at their gates. ``oldest_ready_seconds`` is how long its oldest
    ready job has been due, and ``overdue_scheduled_seconds`` its oldest scheduled one that no
    worker has made ready; None without one. ``pressure`` is its level, ``"ok"``, ``"high"`` or
    ``"full"``; None without a ``max_backlog``. ``prefetched`` of the ``running`` jobs have not
    begun: their workers have no slot for them yet. ``paused_seconds`` is None if it is not paused.
    ``paused_by`` is empty then, and also if it was paused by code."""

    name: str
    gone: bool = False
    paused: bool = False
    paused_reason: str = ""
    paused_by: str = ""
    paused_seconds: float | None = None
    max_concurrency: int | None = None
    max_backlog: int | None = None
    pressure: Level | None = None
    ready: int = 0
    gated: int = 0
    scheduled: int = 0
    running: int = 0
    prefetched: int = 0
    dead: int = 0
    oldest_ready_seconds: float | None = None
    overdue_scheduled_seconds: float | None = None

    @property
    def waiting(self) -> int:
        """The jobs that wait for a worker, or at their gates."""
        return self.ready + self.gated

    @property
    def oldest_due_seconds(self) -> float | None:
        """How long its oldest job has been due, ready or not; None without one."""
        known = (self.oldest_ready_seconds, self.overdue_scheduled_seconds)
        return max((seconds for seconds in known if seconds is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """One worker that has not ended. ``heartbeat_seconds`` is the age of its last heartbeat.
    ``lease_seconds`` is what is left of its lease, negative after it. ``claimed`` counts the jobs
    that it runs or has prefetched. ``pools`` has the queues and threads of each named pool."""

    id: int
    name: str
    host: str
    pid: int
    status: str
    queues: tuple[str, ...]
    threads: int
    async_slots: int
    pools: tuple[dict[str, Any], ...]
    code_version: str
    heartbeat_seconds: float
    lease_seconds: float
    claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All queues, all living workers, all schedules and the first 1,000 quarantines, resources and
    tenants. ``unknown_job_types`` and ``unread_versions`` are empty while no worker lives."""

    queues: tuple[QueueSnapshot, ...] = field(default=())
    workers: tuple[WorkerSnapshot, ...] = field(default=())
    unknown_job_types: tuple[UnknownTypeBacklog, ...] = field(default=())
    unread_versions: tuple[UnreadVersion, ...] = field(default=())
    quarantines: tuple[QuarantineSnapshot, ...] = field(default=())
    schedules: SchedulesSnapshot = field(default=SchedulesSnapshot())
    resources: tuple[ResourceSnapshot, ...] = field(default=())
    tenants: tuple[TenantSnapshot, ...] = field(default=())
    objectives: tuple[SloSnapshot, ...] = field(default=())
    forecast: Forecast = field(default=Forecast())

    @property
    def unclaimable(self) -> int:
        """The jobs that no live worker can run, ready or at their gates, as far as counted."""
        return (
            sum(queue.waiting for queue in (*unserved_queues(self), *lost_queues(self)))
            + sum(unknown.ready for unknown in self.unknown_job_types)
            + sum(unread.ready for unread in self.unread_versions)
        )


def snapshot_of(queues: Rows, others: Rows, workers: Rows) -> Snapshot:
    """What the rows of ``QUEUES``, ``OTHER_COUNTS`` and ``WORKERS`` say. A queue that has jobs but
    no row, because the row was deleted, is included."""
    counts: dict[str, dict[str, Any]] = {}
    for row in others:
        of_queue = counts.setdefault(row["queue"], {})
        of_queue[row["status"]] = row["jobs"]
        if row["status"] == "scheduled":
            of_queue["overdue_scheduled_seconds"] = row["more"]
        elif row["status"] == "running":
            of_queue["prefetched"] = int(row["more"])
    known = [QueueSnapshot(**_with_pressure(row), **counts.pop(row["name"], {})) for row in queues]
    known += [QueueSnapshot(name=name, gone=True, **counts[name]) for name in sorted(counts)]
    return Snapshot(
        queues=tuple(known),
        workers=tuple(
            WorkerSnapshot(
                **{**row, **{key: tuple(json.loads(row[key])) for key in ("queues", "pools")}}
            )
            for row in workers
        ),
    )


def take_snapshot() -> Snapshot:
    """Read all of it in fifteen statements."""
    counted = {"most": MOST_COUNTED}
    of_queues = snapshot_of(
        fetch_named(QUEUES, counted), fetch_named(OTHER_COUNTS, counted), fetch_named(WORKERS, {})
    )
    unknown, unread = take_unclaimable()
    resources, tenants = take_limits()
    return replace(
        of_queues,
        unknown_job_types=unknown,
        unread_versions=unread,
        quarantines=take_quarantines(),
        schedules=take_schedules(),
        resources=resources,
        tenants=tenants,
        objectives=take_objectives(),
        forecast=take_forecast({queue.name: queue.ready for queue in of_queues.queues}),
    )


def _with_pressure(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its level. Its jobs were counted up to ``max_backlog``."""
    limit, counts = row["max_backlog"], {name: row[name] for name in ("ready", "gated")}
    level = None if limit is None else level_of(sum(counts.values()), limit)
    shown = {name: min(count, MOST_COUNTED) for name, count in counts.items()}
    return {**row, "pressure": level, **shown}


MOST_NAMED = 3
"""Kinds of stuck jobs that :func:`problem` names."""


def problem(snapshot: Snapshot, *, max_lag: float = MAX_LAG, schedules: bool = True) -> str | None:
    """The problems in one line; None if there is none.

    ``schedules`` is False if no schedules are fired here. ``max_lag`` is in seconds.
    """
    if not live_workers(snapshot):
        return "no worker is alive"
    stuck = stuck_jobs(snapshot)
    problems = stuck[:MOST_NAMED]
    if len(stuck) > MOST_NAMED:
        problems.append(
            f"and {len(stuck) - MOST_NAMED} more kinds of jobs that no live worker can run"
        )
    if schedules and (late := problem_of_schedules(snapshot.schedules, max_lag)):
        problems.append(late)
    return "; ".join(problems) or None


def live_workers(snapshot: Snapshot) -> list[WorkerSnapshot]:
    """Those whose lease is not over. The others start nothing, and their jobs go to others."""
    return [worker for worker in snapshot.workers if worker.lease_seconds >= 0]


def stuck_jobs(snapshot: Snapshot) -> list[str]:
    """A line for each kind of jobs that no live worker can run; those of an unknown type or version
    are ready, or blocked at their gates. Empty if no worker is alive: then all jobs are stuck for
    that reason."""
    if not live_workers(snapshot):
        return []
    # Behind the first jobs of a longer queue may be more of each kind.
    most = 0 if any(queue.ready > MOST_LOOKED_AT for queue in snapshot.queues) else MOST_LOOKED_AT
    return [
        *(
            f"{_jobs(queue.waiting)} in a queue without a row, which no worker claims: {queue.name}"
            for queue in lost_queues(snapshot)
        ),
        *(
            f"{_jobs(queue.waiting)} in a queue no running worker serves: {queue.name}"
            for queue in unserved_queues(snapshot)
        ),
        *(
            f"{_jobs(unknown.ready, most=most)} of a type no live worker of its queue knows: "
            f"{unknown.job_type}"
            for unknown in snapshot.unknown_job_types
        ),
        *(
            f"{_jobs(unread.ready, most=most)} of a newer version than any live worker of its "
            f"queue reads: {unread.job_type}, version {unread.version}"
            for unread in snapshot.unread_versions
        ),
    ]


def unserved_queues(snapshot: Snapshot) -> list[QueueSnapshot]:
    """The queues in which jobs wait and that no worker serves. One that drains takes no more of
    them, and a pause is the reason of a paused queue."""
    running = (worker for worker in live_workers(snapshot) if worker.status == "running")
    served = {name for worker in running for name in worker.queues}
    return [
        queue
        for queue in snapshot.queues
        if queue.waiting and not (queue.gone or queue.paused or queue.name in served)
    ]


def lost_queues(snapshot: Snapshot) -> list[QueueSnapshot]:
    """The queues in which jobs wait and whose row was deleted."""
    return [queue for queue in snapshot.queues if queue.waiting and queue.gone]


def _jobs(count: int, *, most: int = MOST_COUNTED) -> str:
    number = capped(count, most)
    return f"{number} {'job' if number == '1' else 'jobs'}"
