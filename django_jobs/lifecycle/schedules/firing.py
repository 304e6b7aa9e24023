"""Fire schedules: write ticks, their jobs and the next due times in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ...domain.gates import Gates
from ...domain.policies import TickState
from ...models.database import execute, fetch
from ..backlog import drop_above_limits, drops_lowest
from ..bulk_insert import insert, rows_dropped
from ..job_columns import AT_THE_GATES, COMMON_COLUMNS, GATE_COLUMNS, NewJobs, gate_values
from ..notifying import notify_after_commit

# The unique pair (schedule, due time) decides which of several writers made the tick. A backfill
# replaces the tick of a due time that was skipped, never of one that was fired. The tick keeps its
# created_at, so that ids still follow it.
INSERT_TICKS = """
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now,
           pg_get_serial_sequence('django_jobs_job', 'id')::regclass AS ids
)
INSERT INTO django_jobs_tick AS tick (schedule_id, due_at, outcome, reason, job_id, late_seconds,
    backfill_id, created_at)
SELECT input.schedule, input.due, input.outcome, input.reason,
    CASE WHEN input.outcome = 'fired' THEN nextval(clock.ids) END,
    greatest(extract(epoch FROM clock.now - coalesce(input.moved_to, input.due))::float8, 0),
    input.backfill, clock.now
FROM clock, json_to_recordset(%(ticks)s::json) AS input (
    schedule bigint, due timestamptz, outcome text, reason text, backfill bigint,
    moved_to timestamptz)
ORDER BY input.schedule, input.due
ON CONFLICT (schedule_id, due_at) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, job_id = excluded.job_id,
        late_seconds = excluded.late_seconds, backfill_id = excluded.backfill_id
    WHERE tick.outcome <> 'fired' AND excluded.backfill_id IS NOT NULL
RETURNING schedule_id, due_at, job_id
"""

# Of those that returned no row: others wrote them before, or a trigger dropped them.
MISSING_TICKS = """
SELECT count(*) FROM json_to_recordset(%(ticks)s::json) AS input (
    schedule bigint, due timestamptz, backfill bigint)
WHERE NOT EXISTS (
    SELECT FROM django_jobs_tick AS tick
    WHERE tick.schedule_id = input.schedule AND tick.due_at = input.due
      AND (tick.outcome = 'fired' OR input.backfill IS NULL))
"""

# The rank of a late due time counts from now, so that its job overtakes none that waits. The types
# of the columns are those of the table.
SCHEDULED = {
    **{name: f"job.{name}" for name in (*COMMON_COLUMNS, *GATE_COLUMNS)},
    "id": "job.id",
    "payload": "job.payload",
    "status": "CASE WHEN input.waits THEN 'waiting' WHEN start.at > clock.now THEN 'scheduled' "
    f"ELSE {AT_THE_GATES} END",
    "rank": "date_part('epoch', start.at) - job.priority * input.weight",
    "available_at": "start.at",
    "expires_at": "start.at + make_interval(secs => input.max_age)",
    "created_at": "clock.now",
    "idempotency_key": "job.idempotency_key",
    "schedule_id": "job.schedule_id",
    "scheduled_for": "job.scheduled_for",
}
JOBS = """FROM clock, json_to_recordset(%(jobs)s::json) AS input (
    job json, waits boolean, weight float8, delay float8, max_age float8, moved_to timestamptz),
    LATERAL json_populate_record(NULL::django_jobs_job, input.job) AS job,
    LATERAL (SELECT greatest(coalesce(input.moved_to, job.scheduled_for)
             + make_interval(secs => input.delay), clock.now) AS at) AS start
ORDER BY job.id"""
INSERT_JOBS = f"""
WITH clock AS MATERIALIZED (
    SELECT statement_timestamp() AS now
)
{insert(SCHEDULED, JOBS)}
"""

ADVANCE = """
UPDATE django_jobs_schedule AS schedule
SET next_due_at = CASE WHEN schedule.jobs_made + input.made >= schedule.max_jobs THEN NULL
                       ELSE input.next_due END,
    last_due_at = coalesce(input.last_due, schedule.last_due_at),
    jobs_made = schedule.jobs_made + input.made,
    stale = false
FROM json_to_recordset(%(rows)s::json) AS input (
    schedule bigint, next_due timestamptz, last_due timestamptz, made integer)
WHERE schedule.id = input.schedule
"""


class JobRequest(NamedTuple):
    """What a schedule enqueues. ``payload`` is JSON text."""

    new: NewJobs
    payload: str
    gates: Gates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTick:
    """A due time and its outcome, with the ``request`` for its job if it fires.

    ``delay`` is in seconds after the due time, or after ``moved_to``. ``waits`` holds the job until
    the one before it has ended. ``counts`` is false for a job that later due times do not count as
    one of the schedule's.
    """

    schedule: int
    due: datetime
    outcome: TickState = TickState.FIRED
    reason: str = ""
    moved_to: datetime | None = None
    request: JobRequest | None = None
    delay: float = 0.0
    waits: bool = False
    counts: bool = True
    backfill: int | None = None


def write_ticks(ticks: Iterable[NewTick]) -> list[tuple[NewTick, int]]:
    """Write ticks, and jobs for those that fire; return these, each with the id of its job.

    A due time that has a tick makes no second job; a backfill makes the job of one that was
    skipped. Notifies the queues after commit. Raises
    :class:`~django_jobs.lifecycle.bulk_insert.RowsDropped`.
    """
    by_due_time = {(tick.schedule, tick.due): tick for tick in ticks}
    if not by_due_time:
        return []
    parameters = {"ticks": json.dumps([_tick(tick) for tick in by_due_time.values()])}
    rows = fetch(INSERT_TICKS, parameters)
    if len(rows) < len(by_due_time):
        ((missing,),) = fetch(MISSING_TICKS, parameters)
        if missing:
            raise rows_dropped(missing, "django_jobs_tick")
    made = [(by_due_time[schedule, due], job) for schedule, due, job in rows if job is not None]
    if not made:
        return []
    written = execute(INSERT_JOBS, {"jobs": json.dumps(list(_jobs(made)), default=float)})
    if written < len(made):
        raise rows_dropped(len(made) - written)
    by_queue: dict[str, list[JobRequest]] = {}
    for tick, _ in made:
        if tick.request:
            by_queue.setdefault(tick.request.new.queue, []).append(tick.request)
    for queue, requests in by_queue.items():
        new = requests[0].new
        if drops_lowest(new):
            drop_above_limits(new, [one.gates for one in requests])
        notify_after_commit(queue)
    return made


def advance(
    moves: Mapping[int, tuple[datetime | None, datetime | None]], made: Mapping[int, int]
) -> None:
    """Write ``{schedule: (next due time, last due time)}``, add the numbers of jobs made, and clear
    ``stale``. A last due time of None keeps the stored one. A schedule that has made its maximum
    number of jobs has no next due time."""
    rows = [
        {
            "schedule": schedule,
            "next_due": _text(next_due),
            "last_due": _text(last_due),
            "made": made.get(schedule, 0),
        }
        for schedule, (next_due, last_due) in moves.items()
    ]
    if rows:
        execute(ADVANCE, {"rows": json.dumps(rows)})


def _tick(tick: NewTick) -> dict[str, Any]:
    return {
        "schedule": tick.schedule,
        "due": _text(tick.due),
        "outcome": tick.outcome.value,
        "reason": tick.reason[:300],
        "backfill": tick.backfill,
        "moved_to": _text(tick.moved_to),
    }


def _jobs(made: Iterable[tuple[NewTick, int]]) -> Iterator[dict[str, Any]]:
    for tick, job in made:
        assert tick.request is not None
        new, payload, gates = tick.request
        due = _text(tick.due)
        columns = {
            **new.columns,
            **dict(new.decoded()),
            **gate_values(gates),
            "id": job,
            "payload": json.loads(payload),
            "idempotency_key": f"schedule/{tick.schedule}/{due}",
            "schedule_id": tick.schedule if tick.counts else None,
            "scheduled_for": due,
        }
        if gates is not None:
            columns["resources"] = gates.resources or None
        yield {
            "job": columns,
            "weight": new.weight,
            "max_age": new.max_age,
            "delay": tick.delay,
            "waits": tick.waits,
            "moved_to": _text(tick.moved_to),
        }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
