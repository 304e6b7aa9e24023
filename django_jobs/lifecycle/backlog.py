"""The jobs of a queue that are ready or at their gates: their limit, their wait, their rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django.db import transaction
from django.utils import timezone

from ..domain.gates import Gates
from ..domain.pressure import Level, level_of
from ..exceptions import QueueFull
from ..models import Job, JobStatus
from ..models.database import execute, fetch, jobs_connection, repeat_conflicts
from ..models.queue import OnFull
from .gate_limits import (
    BEYOND,
    DROP_WAITING,
    Gate,
    Waiting,
    count_waiting,
    dropping_lowest,
    ends_of_queue,
    gated_up_to,
    waiting_at,
)
from .job_columns import NewJobs

T = TypeVar("T")

MOST_COUNTED = 100_000
"""The most that is counted in a queue without ``max_backlog``. If reached, it means "at least"."""


def ready_up_to(most: str, name: str = "queue.name") -> str:
    """An expression of a statement that reads ``django_jobs_queue``: the ready jobs of the queue
    with this ``name``, counted up to the expression ``most``.

    It reads the ready index up to there. The ORDER BY makes it so: for a mere LIMIT the planner may
    read the table and, for a queue without jobs, all of it.
    """
    return f"""(SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue = {name}
        ORDER BY job.rank, job.id LIMIT {most}) AS counted)"""


# The oldest ready job is at the head of its queue or, where priorities differ, expected among the
# first thousand. As numbers, because a time may be infinite, and bounded, because JSON has no
# infinity.
OLDEST_SECONDS = """(SELECT max(least(greatest(date_part('epoch', clock_timestamp())
        - date_part('epoch', head.available_at), 0), 1e9))
     FROM (
        SELECT job.available_at FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT 1000) AS head)"""

BACKLOG = f"""
SELECT queue.max_backlog,
    {ready_up_to("coalesce(queue.max_backlog, %(most)s)")},
    {gated_up_to("coalesce(queue.max_backlog, %(most)s)")},
    {OLDEST_SECONDS}, queue.paused_at IS NOT NULL
FROM django_jobs_queue AS queue
WHERE queue.name = %(queue)s
"""

COUNT = f"""
SELECT {ready_up_to("%(most)s", "%(queue)s::text")} + {gated_up_to("%(most)s", "%(queue)s::text")}
"""

# Reads the ready index, and that of the lines, from both ends: up to the limit and beyond it by
# ``most``, to count the jobs above the limit, then that many from the other end.
DROP_LOWEST = dropping_lowest(
    "",
    " + ".join(up_to(BEYOND, "%(queue)s::text") for up_to in (ready_up_to, gated_up_to)),
    """
    SELECT {} AS low, {} AS high""".format(*ends_of_queue("%(queue)s::text")),
    """
        (SELECT id, rank FROM django_jobs_job_live
         WHERE queue = %(queue)s AND status = 'ready'
         ORDER BY rank DESC, id DESC LIMIT (SELECT jobs FROM excess))
        UNION ALL""",
)
# A dropped job has done nothing, so a request may ask for it again within its ``unique_for``.
FREE_KEYS = """
DELETE FROM django_jobs_uniquekey WHERE id = ANY(ARRAY(
    SELECT id FROM django_jobs_uniquekey
    WHERE queue = %(queue)s AND key = ANY(%(keys)s::text[]) AND job_id = ANY(%(ids)s::bigint[])
    FOR UPDATE SKIP LOCKED))
"""

SPARE = 100
"""Jobs above the limit that one request drops besides as many as it adds: those of requests that
committed at the same time, or of a limit that was lowered. The rest is left to the next request."""

LIMITED = f"""
SELECT queue.name, queue.pressure, queue.max_backlog,
    {ready_up_to("coalesce(queue.max_backlog, %(most)s)")},
    {gated_up_to("coalesce(queue.max_backlog, %(most)s)")},
    {OLDEST_SECONDS}, queue.paused_at IS NOT NULL
FROM django_jobs_queue AS queue
WHERE queue.max_backlog IS NOT NULL OR queue.pressure <> 'ok'
ORDER BY queue.name
"""
LIMITED_RESOURCES = """
SELECT name, pressure, max_waiting FROM django_jobs_resource
WHERE max_waiting IS NOT NULL OR pressure <> 'ok' ORDER BY name
"""
ANY_LIMITED = """EXISTS (
    SELECT FROM django_jobs_queue WHERE max_backlog IS NOT NULL OR pressure <> 'ok')
OR EXISTS (
    SELECT FROM django_jobs_resource WHERE max_waiting IS NOT NULL OR pressure <> 'ok')"""

# Of several workers that see the same change, one writes it.
SET_LEVEL = {
    table: f"""
UPDATE django_jobs_{table} SET pressure = %(level)s
WHERE id = (
    SELECT id FROM django_jobs_{table}
    WHERE name = %(name)s AND pressure = %(previous)s
    FOR NO KEY UPDATE SKIP LOCKED)
"""
    for table in ("queue", "resource")
}

RATE_SECONDS = 300.0
"""The time whose runs give the rate, at most."""

SAMPLE = 500
"""Runs of that time that are read: 50 of a queue with a tenth, so its rate is known to 15 %."""

# The planner leaves out the partitions before ``day``, by the clock of this process. Of 120 days it
# took 21 ms to plan the others, which PostgreSQL leaves out when it has read its own clock.
LATELY = """finished_at >= %(day)s::timestamptz
          AND finished_at BETWEEN
              statement_timestamp() - make_interval(secs => %(seconds)s::float8)
              AND statement_timestamp()"""

# Runs have no index by time, so that a settle need not write it; their ids follow the time. First,
# the run of the period whose id is the lowest of those that are 1, 2, 4, 8, ... below the last one.
# A settle that was rolled back leaves a gap there, of which 200 ids are passed over. Then as many
# of the ids from there on as the sample has, evenly spread: the newest ones alone may be of one
# batch of one queue. Ids in gaps are counted too, as runs of no queue. Each LIMIT makes the planner
# look up an id after the other; without them it joined all runs of the day.
RATES = f"""
WITH last AS MATERIALIZED (
    SELECT pg_sequence_last_value('django_jobs_run_id_seq') AS id
), first AS MATERIALIZED (
    SELECT run.id, run.finished_at
    FROM last, generate_series(0, 40) AS step (power), LATERAL (
        SELECT id, finished_at FROM django_jobs_run
        WHERE id <= last.id - (1::bigint << step.power)
          AND id > last.id - (1::bigint << step.power) - 200
          AND {LATELY}
        ORDER BY id DESC LIMIT 1) AS run
    ORDER BY run.id LIMIT 1
), span AS MATERIALIZED (
    SELECT first.id AS first, last.id - first.id AS ids,
        least(last.id - first.id, %(sample)s) AS read,
        greatest(extract(epoch FROM statement_timestamp() - first.finished_at)::float8, 1)
            AS seconds
    FROM first, last
)
SELECT job.queue, count(*) * min(span.ids)::float8 / min(span.read) / min(span.seconds)
FROM span, generate_series(1, span.read) AS step (number), LATERAL (
    SELECT job_id FROM django_jobs_run
    WHERE id = span.first + span.ids * step.number / span.read AND outcome <> 'released'
      AND {LATELY}
    LIMIT 1) AS run,
LATERAL (
    SELECT queue FROM django_jobs_job_live WHERE id = run.job_id
    UNION ALL
    SELECT queue FROM django_jobs_job
    WHERE id = run.job_id AND status IN ('succeeded', 'cancelled') AND {LATELY}
    LIMIT 1) AS job
GROUP BY job.queue
"""


class Backlog(NamedTuple):
    """Jobs of a queue that are ready, and at their gates, each up to its limit."""

    max_backlog: int | None
    ready: int
    gated: int
    oldest_seconds: float | None
    is_paused: bool

    @property
    def level(self) -> Level:
        return level_of(self.ready + self.gated, self.max_backlog)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why jobs were dropped, and when each was, by id."""

    reasons: dict[int, str] = field(default_factory=dict)
    finished_at: dict[int, datetime] = field(default_factory=dict)


def demand_room(new: NewJobs, count: int) -> None:
    """Raise :class:`QueueFull` if the queue refuses ``count`` more jobs that are ready or wait at
    their gates. What others enqueue at the same time is not counted."""
    if new.max_backlog is None or drops_lowest(new):
        return
    ((held,),) = fetch(COUNT, {"queue": new.queue, "most": new.max_backlog})
    room = new.max_backlog - held
    if room <= 0:
        raise QueueFull(
            f"{new.job_type}: queue {new.queue!r} is full: its ready jobs, and those at their "
            f"gates, have reached its max_backlog of {new.max_backlog}"
        )
    if count > room:
        raise QueueFull(
            f"{new.job_type}: queue {new.queue!r} has room for {room} of {count} jobs, ready or at "
            f"their gates; its max_backlog is {new.max_backlog}"
        )


def demand_room_at_gates(asked: Iterable[tuple[NewJobs, Gates | None]]) -> None:
    """Raise :class:`QueueFull` if a gate of these new jobs refuses them, as :func:`demand_room`."""
    refusing = [(new, gates) for new, gates in asked if not drops_lowest(new)]
    for gate, most, added, counted in count_waiting(refusing):
        where, room = f"{refusing[0][0].job_type}: {gate.kind} {gate.name!r}", most - counted
        if room <= 0:
            raise QueueFull(f"{where} is full: its max_waiting of {most} is reached")
        if added > room:
            raise QueueFull(
                f"{where} has room for {room} of {added} waiting jobs; its max_waiting is {most}"
            )


def drops_lowest(new: NewJobs) -> bool:
    """Whether the queue drops its lowest job for a better one when it is full."""
    return new.on_full == OnFull.DROP_LOWEST


def drop_lowest(new: NewJobs, count: int) -> Dropped:
    """Cancel the lowest jobs above the limit of the queue, after ``count`` were added to it in this
    transaction. These may be among them. A step of a workflow is dead instead.

    Runs in the caller's transaction, so that the dropped jobs stay if the new ones do not come.
    """
    if new.max_backlog is None:
        return Dropped()
    parameters = {"queue": new.queue, "limit": new.max_backlog, "most": count + SPARE}
    return _drop(DROP_LOWEST, parameters, f"queue {new.queue}")


def drop_above_limits(new: NewJobs, gates: Sequence[Gates | None]) -> Dropped:
    """:func:`drop_lowest`, and the same with those that wait at the gates of the new jobs."""
    dropped = drop_lowest(new, len(gates))
    for full in count_waiting(((new, one) for one in gates), beyond=1):
        if full.counted > full.most:
            more = _drop_waiting(full)
            dropped.reasons.update(more.reasons)
            dropped.finished_at.update(more.finished_at)
    return dropped


def _drop_waiting(full: Waiting) -> Dropped:
    resource, low, high = full.gate.ends
    parameters = {"resource": resource, "low": low, "high": high, "limit": full.most}
    return _drop(DROP_WAITING, {**parameters, "most": full.added + SPARE}, str(full.gate))


@repeat_conflicts
def _drop(statement: str, parameters: dict[str, Any], full: str) -> Dropped:
    from .opening import follow_dropped

    reason = f"dropped: {full} was full"
    with transaction.atomic(using=jobs_connection().alias):
        rows = fetch(statement, {**parameters, "reason": reason})
        follow_dropped((id_, run, skipped) for id_, _, _, run, _, skipped in rows)
        free_keys((queue, key, id_) for id_, _, key, _, queue, _ in rows)
    finished_at = {id_: finished_at for id_, finished_at, *_ in rows}
    return Dropped(dict.fromkeys(finished_at, reason), finished_at)


def free_keys(dropped: Iterable[tuple[str, str | None, int]]) -> None:
    """Free the keys of dropped jobs, each with its queue and its key."""
    keyed = [(queue, key, id_) for queue, key, id_ in dropped if key is not None]
    for queue in {queue for queue, _, _ in keyed}:
        keys, ids = zip(*((key, id_) for of, key, id_ in keyed if of == queue), strict=True)
        execute(FREE_KEYS, {"queue": queue, "keys": list(keys), "ids": list(ids)})


def within_limits(
    new: NewJobs, gates: Sequence[Gates | None], insert: Callable[[], T]
) -> tuple[T, Dropped]:
    """Call ``insert``, which adds a job with each of these gates, some with a limit. Returns what
    it returned, and the jobs that were dropped."""
    if not drops_lowest(new):
        # What is full refuses others too, which need no room yet.
        demand_room(new, 1 if new.is_delayed else len(gates))
        demand_room_at_gates((new, one) for one in gates)
        return insert(), Dropped()
    with transaction.atomic(using=jobs_connection().alias):
        return insert(), drop_above_limits(new, gates)


def insert_one(
    new: NewJobs, gates: Gates | None, insert: Callable[[], Job], is_duplicate: Callable[[], bool]
) -> Job:
    """Insert one job :func:`within_limits`; then it may be dropped itself. A job whose key another
    one holds needs no room."""
    try:
        job, dropped = within_limits(new, [gates], insert)
    except QueueFull:
        if not is_duplicate():
            raise
        with transaction.atomic(using=jobs_connection().alias):
            job = insert()
            if not job.deduplicated:  # the other one runs, or has ended since
                raise
        return job
    if job.pk in dropped.finished_at:
        job.status, job.reason = JobStatus.CANCELLED, dropped.reasons[job.pk]
        job.finished_at = dropped.finished_at[job.pk]
    return job


def read_backlog(queue: str) -> Backlog | None:
    """The backlog of the queue; None if it has no row."""
    rows = fetch(BACKLOG, {"queue": queue, "most": MOST_COUNTED})
    return Backlog(*rows[0]) if rows else None


def limited_queues() -> list[tuple[str, Level, Backlog]]:
    """The queues with a ``max_backlog``, or whose level is from the time when they had one: names,
    levels at the last look, and backlogs."""
    rows = fetch(LIMITED, {"most": MOST_COUNTED})
    return [(name, level, Backlog(*found)) for name, level, *found in rows]


def limited_resources() -> list[tuple[str, Level, Level]]:
    """The same of the resources with a ``max_waiting``: names, levels at the last look and now."""
    rows = fetch(LIMITED_RESOURCES, {})
    gates = {Gate("resource", name): most or MOST_COUNTED for name, _, most in rows}
    counts = waiting_at(gates).values() if gates else ()
    return [
        (name, previous, level_of(waiting, most))
        for (name, previous, most), waiting in zip(rows, counts, strict=True)
    ]


def set_level(table: str, name: str, previous: Level, level: Level) -> bool:
    """Store the level of a row of ``queue`` or ``resource``. False if it is not ``previous`` any
    more, or the row is locked: the next look finds what is left to do."""
    return execute(SET_LEVEL[table], {"name": name, "previous": previous, "level": level}) > 0


def rates() -> dict[str, float]:
    """The attempts that ended per second, of each queue with one in the last five minutes.
    Estimated from a sample of their runs, of the whole time or of more than half of it."""
    day = timezone.now() - timedelta(days=1)
    return dict(fetch(RATES, {"seconds": RATE_SECONDS, "sample": SAMPLE, "day": day}))
