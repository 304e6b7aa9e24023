"""Fire schedules: write the tick, its job and the next due time in one transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from ...conf import conf
from ...domain.schedules import TickState
from ...models import Schedule
from ...models.database import execute, fetch
from ...models.schedule import ScheduleQuerySet
from ...models.timestamps import DistantTime
from ..job_columns import COMMON_COLUMNS, NewJobs, listed
from ..notifying import notify_after_commit

SCHEDULES = ":schedules"
"""Sent by NOTIFY in place of a queue's name: schedules were changed."""

# Reads the head of each partial index, so a million schedules cost no more: those that will not
# come due are in none of them. min() and not EXISTS, for which the planner would read the table
# from its beginning. Not restricted to known job types: that would step over a million schedules of
# another service at each look.
HORIZON = """
SELECT
    (SELECT date_part('epoch', min(next_due_at)) - date_part('epoch', clock_timestamp())
     FROM django_jobs_schedule
     WHERE enabled AND paused_at IS NULL AND error = ''),
    (SELECT date_part('epoch', min(next_due_at)) - date_part('epoch', clock_timestamp())
     FROM django_jobs_schedule
     WHERE enabled AND paused_at IS NULL AND error = ''
       AND next_due_at > statement_timestamp()),
    (SELECT min(id) FROM django_jobs_schedule WHERE stale) IS NOT NULL,
    (SELECT min(schedule_id) FROM django_jobs_job
     WHERE schedule_id IS NOT NULL AND status = 'waiting') IS NOT NULL
"""

LIVE_JOBS = """
SELECT schedule_id, id, status = 'waiting' FROM django_jobs_job
WHERE schedule_id = ANY(%(schedules)s::bigint[])
  AND status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
ORDER BY id
"""

# The status of the last ``count`` ended jobs of each schedule, newest first. Leaves out jobs from
# before the operator's resume, and backfills, which do not show how the schedule fares today. A job
# that its retention has deleted may have succeeded, so it ends a series of dead ones.
LAST_ENDS = """
SELECT input.schedule, ended.status
FROM json_to_recordset(%(rows)s::json) AS input (schedule bigint, since timestamptz, count bigint),
    LATERAL (
        SELECT coalesce(job.status, 'deleted') AS status
        FROM django_jobs_tick AS tick LEFT JOIN django_jobs_job AS job ON job.id = tick.job_id
        WHERE tick.schedule_id = input.schedule
          AND tick.outcome = 'fired' AND tick.backfill_id IS NULL
          AND (job.id IS NULL OR job.status IN ('succeeded', 'dead', 'cancelled'))
          AND tick.created_at > coalesce(input.since, '-infinity')
        ORDER BY tick.due_at DESC
        LIMIT input.count
    ) AS ended
"""

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
    greatest(extract(epoch FROM clock.now - input.due)::float8, 0), input.backfill, clock.now
FROM clock, json_to_recordset(%(ticks)s::json) AS input (
    schedule bigint, due timestamptz, outcome text, reason text, backfill bigint)
ORDER BY input.schedule, input.due
ON CONFLICT (schedule_id, due_at) DO UPDATE
    SET outcome = excluded.outcome, reason = excluded.reason, job_id = excluded.job_id,
        late_seconds = excluded.late_seconds, backfill_id = excluded.backfill_id
    WHERE tick.outcome <> 'fired' AND excluded.backfill_id IS NOT NULL
RETURNING schedule_id, due_at, job_id
"""

# The rank of a late due time counts from now, so that its job overtakes none that waits. The types
# of the columns are those of the table.
SCHEDULED = {
    **{name: f"job.{name}" for name in COMMON_COLUMNS},
    "id": "job.id",
    "payload": "job.payload",
    "status": "CASE WHEN input.waits THEN 'waiting' WHEN start.at > clock.now THEN 'scheduled' "
    "ELSE 'ready' END",
    "rank": "date_part('epoch', start.at) - job.priority * input.weight",
    "available_at": "start.at",
    "expires_at": "start.at + make_interval(secs => input.max_age)",
    "created_at": "clock.now",
    "idempotency_key": "job.idempotency_key",
    "schedule_id": "job.schedule_id",
    "scheduled_for": "job.scheduled_for",
}
INSERT_JOBS = f"""
WITH clock AS MATERIALIZED (
    SELECT statement_timestamp() AS now
)
INSERT INTO django_jobs_job (
    {listed(SCHEDULED)})
SELECT
    {listed(SCHEDULED.values())}
FROM clock, json_to_recordset(%(jobs)s::json) AS input (
    job json, waits boolean, weight float8, delay float8, max_age float8),
    LATERAL json_populate_record(NULL::django_jobs_job, input.job) AS job,
    LATERAL (SELECT greatest(job.scheduled_for + make_interval(secs => input.delay), clock.now)
             AS at) AS start
ORDER BY job.id
"""

ADVANCE = """
UPDATE django_jobs_schedule AS schedule
SET next_due_at = input.next_due, last_due_at = coalesce(input.last_due, schedule.last_due_at),
    stale = false
FROM json_to_recordset(%(rows)s::json) AS input (
    schedule bigint, next_due timestamptz, last_due timestamptz)
WHERE schedule.id = input.schedule
"""

DATABASE_TIME: dict[str, Any] = {"now": Now()}
"""The annotation that sets ``Schedule.now``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """What schedules need next.

    ``next_due_in`` is the seconds to the earliest due time, negative if that has passed.
    ``behind_in`` is the seconds to the first one still to come: due schedules may be locked, or of
    job types unknown to this process. Each is None without one. ``stale`` is true if rules have
    changed, ``waiting`` if jobs wait for the one before them.
    """

    next_due_in: float | None
    behind_in: float | None
    stale: bool
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTick:
    """A due time and its outcome, with ``new`` and ``payload`` (JSON text) for the job if it fires.

    ``delay`` is in seconds after the due time. ``waits`` holds the job until the one before it has
    ended. ``counts`` is false for a job that later due times do not count as one of the schedule's.
    """

    schedule: int
    due: datetime
    outcome: TickState = TickState.FIRED
    reason: str = ""
    new: NewJobs | None = None
    payload: str = "{}"
    delay: float = 0.0
    waits: bool = False
    counts: bool = True
    backfill: int | None = None


def horizon() -> Horizon:
    """Look up what schedules need next, in one statement."""
    ((next_due_in, behind_in, stale, waiting),) = fetch(HORIZON, {})
    return Horizon(next_due_in=next_due_in, behind_in=behind_in, stale=stale, waiting=waiting)


def take_due(job_types: Mapping[str, int], limit: int) -> list[int]:
    """Lock up to ``limit`` due schedules until the transaction ends; return their ids, the newest
    due time first, so that schedules that are on time do not wait behind those missed in an outage.
    ``job_types`` maps the known names to the newest payload version that each reads.

    Skips rows that are locked, rows whose rule has changed and is not yet re-armed, and payloads
    newer than this process can read.
    """
    readable = Q(payload_version=1)
    for name, version in job_types.items():
        if version > 1:
            readable |= Q(job_type=name, payload_version__lte=version)
    due = Schedule.objects.armed().filter(next_due_at__lte=Now(), job_type__in=list(job_types))
    return _locked(due.filter(readable, stale=False).order_by("-next_due_at"), limit)


def take_stale(limit: int) -> list[int]:
    """Lock up to ``limit`` schedules whose rule has changed until the transaction ends; return
    their ids. Skips rows that are locked."""
    return _locked(Schedule.objects.filter(stale=True).order_by("id"), limit)


def read(ids: Collection[int]) -> list[Schedule]:
    """These schedules in the order of their ids, each with the database's time as ``now``. Raises
    for a row with a value that Python cannot read, such as a number of 5,000 digits or a start at
    infinity."""
    schedules = list(_rows(ids).annotate(**DATABASE_TIME))
    for schedule in schedules:
        for name in ("starts_at", "ends_at", "next_due_at"):
            if isinstance(at := getattr(schedule, name), DistantTime):
                raise ValueError(f"{name} is {at.text}, which is no date")
    return schedules


def lock(ids: Iterable[int]) -> list[Schedule]:
    """Lock these schedules, waiting for other sessions' locks, and return them as :func:`read`
    does."""
    wanted = list(ids)
    list(_rows(wanted).select_for_update(no_key=True).values_list("pk"))
    return read(wanted)


def live_jobs(schedules: Collection[int]) -> dict[int, list[tuple[int, bool]]]:
    """``(id, whether it waits for the one before)`` of each live job, by schedule, in order of
    id."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for schedule, job, waits in fetch(LIVE_JOBS, {"schedules": list(schedules)}):
        found.setdefault(schedule, []).append((job, waits))
    return found


def last_ends(schedules: Iterable[Schedule]) -> dict[int, list[str]]:
    """The statuses of the last ended jobs since the schedule was last resumed, newest first, by
    schedule. At most ``pause_after_dead`` of each; schedules without that number are left out."""
    rows = [
        {"schedule": one.pk, "since": _text(one.resumed_at), "count": one.pause_after_dead}
        for one in schedules
        if one.pause_after_dead
    ]
    found: dict[int, list[str]] = {}
    for schedule, status in fetch(LAST_ENDS, {"rows": json.dumps(rows)}) if rows else ():
        found.setdefault(schedule, []).append(status)
    return found


def write_ticks(ticks: Iterable[NewTick]) -> list[tuple[NewTick, int]]:
    """Write ticks, and jobs for those that fire; return these, each with the id of its job.

    A due time that has a tick makes no second job; a backfill makes the job of one that was
    skipped. Notifies the queues after commit.
    """
    by_due_time = {(tick.schedule, tick.due): tick for tick in ticks}
    if not by_due_time:
        return []
    rows = fetch(
        INSERT_TICKS, {"ticks": json.dumps([_tick(tick) for tick in by_due_time.values()])}
    )
    made = [(by_due_time[schedule, due], job) for schedule, due, job in rows if job is not None]
    if not made:
        return []
    execute(INSERT_JOBS, {"jobs": json.dumps(list(_jobs(made)), default=float)})
    for queue in {tick.new.queue for tick, _ in made if tick.new is not None}:
        notify_after_commit(queue)
    return made


def advance(moves: Mapping[int, tuple[datetime | None, datetime | None]]) -> None:
    """Write ``{schedule: (next due time, last due time)}`` and clear ``stale``. A last due time of
    None keeps the stored one."""
    rows = [
        {"schedule": schedule, "next_due": _text(next_due), "last_due": _text(last_due)}
        for schedule, (next_due, last_due) in moves.items()
    ]
    if rows:
        execute(ADVANCE, {"rows": json.dumps(rows)})


def _rows(ids: Iterable[int]) -> ScheduleQuerySet:
    found = Schedule.objects.using(conf().database).filter(pk__in=ids)
    return found.order_by("id")


def _locked(rows: ScheduleQuerySet, limit: int) -> list[int]:
    locked = rows.using(conf().database).select_for_update(skip_locked=True, no_key=True)
    return list(locked.values_list("pk", flat=True)[:limit])


def _tick(tick: NewTick) -> dict[str, Any]:
    return {
        "schedule": tick.schedule,
        "due": _text(tick.due),
        "outcome": tick.outcome.value,
        "reason": tick.reason[:300],
        "backfill": tick.backfill,
    }


def _jobs(made: Iterable[tuple[NewTick, int]]) -> Iterator[dict[str, Any]]:
    for tick, job in made:
        assert tick.new is not None
        due = _text(tick.due)
        columns = {
            **tick.new.values(),
            "id": job,
            "payload": json.loads(tick.payload),
            "idempotency_key": f"schedule/{tick.schedule}/{due}",
            "schedule_id": tick.schedule if tick.counts else None,
            "scheduled_for": due,
        }
        yield {
            "job": columns,
            "weight": tick.new.weight,
            "max_age": tick.new.max_age,
            "delay": tick.delay,
            "waits": tick.waits,
        }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
