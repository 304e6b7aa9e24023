"""Look up which schedules are due, lock them, and read what decides about them. Stop those that
cannot fire, or whose jobs die, and start the next job of those that run one at a time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from ...conf import conf
from ...models import Schedule
from ...models.database import fetch, fetch_locking, fetch_named
from ...models.fields import DistantTime, TimestampNow
from ...models.querysets import ScheduleQuerySet
from ...models.tick import with_changes
from ..job_columns import AT_THE_GATES
from ..notifying import notify_after_commit

# Reads the head of each partial index, so a million schedules cost no more: those that will not
# come due are in none of them. min() and not EXISTS, for which the planner would read the table
# from its beginning. Not restricted to known job types: that would step over a million schedules of
# another service at each look.
_NEXT = """(SELECT min(next_due_at) FROM django_jobs_schedule
     WHERE enabled AND paused_at IS NULL AND error = '')"""
_STALE = "(SELECT min(id) FROM django_jobs_schedule WHERE stale) IS NOT NULL"
_WAITING = """(SELECT min(schedule_id) FROM django_jobs_job_live
     WHERE schedule_id IS NOT NULL AND status = 'waiting' AND awaits IS NULL) IS NOT NULL"""
HORIZON = f"""
SELECT
    date_part('epoch', {_NEXT}) - date_part('epoch', clock_timestamp()) AS next_due_in,
    (SELECT date_part('epoch', min(next_due_at)) - date_part('epoch', clock_timestamp())
     FROM django_jobs_schedule
     WHERE enabled AND paused_at IS NULL AND error = ''
       AND next_due_at > statement_timestamp()) AS behind_in,
    {_STALE} AS stale,
    {_WAITING} AS waiting
"""

LIVE_JOBS = """
SELECT schedule_id, id, status = 'waiting' AND awaits IS NULL FROM django_jobs_job_live
WHERE schedule_id = ANY(%(schedules)s::bigint[])
  AND status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
ORDER BY id
"""

_ENDED = """
FROM django_jobs_tick AS tick LEFT JOIN django_jobs_job AS job ON job.id = tick.job_id
WHERE tick.schedule_id = input.schedule
  AND tick.outcome = 'fired' AND tick.backfill_id IS NULL
  AND (job.id IS NULL OR job.status IN ('succeeded', 'dead', 'cancelled'))
  AND tick.created_at > coalesce(input.since, '-infinity')
"""
# The status of the last ``count`` ended jobs of each schedule, newest first. Leaves out jobs from
# before the operator's resume, and backfills, which do not show how the schedule fares today. A job
# that its retention has deleted may have succeeded, so it ends a series of dead ones. A due time
# that was moved to an earlier one has its tick before it comes; at most 366 are to come.
LAST_ENDS = f"""
SELECT input.schedule, ended.status
FROM json_to_recordset(%(rows)s::json) AS input (schedule bigint, since timestamptz, count bigint),
    LATERAL (
        SELECT coalesce(status, 'deleted') AS status FROM (
            (SELECT job.status, tick.created_at, tick.due_at {_ENDED}
             AND tick.due_at <= statement_timestamp()
             ORDER BY tick.due_at DESC LIMIT input.count)
            UNION ALL
            (SELECT job.status, tick.created_at, tick.due_at {_ENDED}
             AND tick.due_at > statement_timestamp())
        ) AS made
        ORDER BY created_at DESC, due_at DESC
        LIMIT input.count
    ) AS ended
"""


def as_read() -> dict[str, Any]:
    """The annotations that set ``Schedule.now`` and the exceptions of its rule."""
    return {"now": TimestampNow(), **with_changes()}


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


def horizon() -> Horizon:
    """Look up what schedules need next, in one statement."""
    (row,) = fetch_named(HORIZON, {})
    return Horizon(**row)


def any_within(seconds: float) -> str:
    """The condition, in SQL, under which schedules need something within ``seconds``."""
    soon = f"statement_timestamp() + make_interval(secs => {float(seconds)})"
    return f"({_NEXT} < {soon} OR {_STALE} OR {_WAITING})"


def take_due(job_types: Mapping[str, int], limit: int, *, shuffled: bool = False) -> list[int]:
    """Lock up to ``limit`` due schedules until the transaction ends; return their ids, the newest
    due time first, so that schedules that are on time do not wait behind those missed in an outage.
    ``shuffled``: in any order. ``job_types`` maps the known names to the newest payload version
    that each reads.

    Skips rows that are locked, rows whose rule has changed and is not yet re-armed, and payloads
    newer than this process can read.
    """
    readable = Q(payload_version=1)
    for name, version in job_types.items():
        if version > 1:
            readable |= Q(job_type=name, payload_version__lte=version)
    due = Schedule.objects.armed().filter(next_due_at__lte=Now(), job_type__in=list(job_types))
    due = due.filter(readable, stale=False)
    return _locked(due.order_by("?" if shuffled else "-next_due_at"), limit)


def take_armed(ids: Collection[int]) -> list[int]:
    """Lock those of these schedules that can be due until the transaction ends; return their ids.
    Skips rows that are locked, and those whose rule has changed."""
    armed = Schedule.objects.armed().filter(pk__in=ids, stale=False)
    return _locked(armed.order_by("id"), len(ids))


def in_zones(after: int, limit: int) -> list[Schedule]:
    """Up to ``limit`` schedules with a time zone that are to come due, or have ended by their
    bound, in the order of their ids from behind ``after``. They are not locked."""
    armed = Schedule.objects.using(conf().database).armed().filter(pk__gt=after, stale=False)
    armed = armed.exclude(timezone="UTC").filter(
        Q(next_due_at__gt=Now()) | Q(next_due_at=None, ends_at__gt=Now())
    )
    # A payload may be one that Python cannot read.
    return list(armed.defer("payload").annotate(**as_read()).order_by("id")[:limit])


def take_stale(limit: int, *, shuffled: bool = False) -> list[int]:
    """Lock up to ``limit`` schedules with a changed rule; return their ids. Skips locked rows."""
    return _locked(Schedule.objects.filter(stale=True).order_by("?" if shuffled else "id"), limit)


def read(ids: Collection[int]) -> list[Schedule]:
    """These schedules in the order of their ids, each with its exceptions and with the database's
    time as ``now``. Raises for a row with a value that Python cannot read, such as a number of
    5,000 digits or a start at infinity."""
    schedules = list(_rows(ids).annotate(**as_read()))
    for schedule in schedules:
        for name in ("starts_at", "ends_at", "next_due_at"):
            if isinstance(at := getattr(schedule, name), DistantTime):
                raise ValueError(f"{name} is {at.text}, which is not a date")
    return schedules


def lock(ids: Iterable[int]) -> list[Schedule]:
    """Lock these schedules, waiting for other sessions, and return them as :func:`read` does."""
    wanted = list(ids)
    list(_rows(wanted).select_for_update(no_key=True).values_list("pk"))
    return read(wanted)


def live_jobs(schedules: Collection[int]) -> dict[int, list[tuple[int, bool]]]:
    """``(id, whether it waits for the one before)`` of each live job, by schedule, by id."""
    by_schedule: dict[int, list[tuple[int, bool]]] = {}
    for schedule, job, waits in fetch(LIVE_JOBS, {"schedules": list(schedules)}):
        by_schedule.setdefault(schedule, []).append((job, waits))
    return by_schedule


def last_ends(schedules: Iterable[Schedule]) -> dict[int, list[str]]:
    """The statuses of the last ended jobs since the schedule was last resumed, newest first, by
    schedule. At most ``pause_after_dead`` of each; schedules without that number are left out."""
    rows = [
        {"schedule": schedule.pk, "since": schedule.resumed_at, "count": schedule.pause_after_dead}
        for schedule in schedules
        if schedule.pause_after_dead
    ]
    by_schedule: dict[int, list[str]] = {}
    if not rows:
        return by_schedule
    for schedule, status in fetch(LAST_ENDS, {"rows": json.dumps(rows, default=str)}):
        by_schedule.setdefault(schedule, []).append(status)
    return by_schedule


def _rows(ids: Iterable[int]) -> ScheduleQuerySet:
    schedules = Schedule.objects.using(conf().database).filter(pk__in=ids)
    return schedules.order_by("id")


def _locked(rows: ScheduleQuerySet, limit: int | None = None) -> list[int]:
    locked = rows.using(conf().database).select_for_update(skip_locked=True, no_key=True)
    return list(locked.values_list("pk", flat=True)[:limit])


def mark_error(schedule: int, error: str) -> str:
    """Store ``error`` on a schedule and return its name. It does not fire until it is cleared."""
    return _stop(schedule, error=error[:2_000])


def pause_of_itself(schedule: int, reason: str) -> str:
    """Pause a schedule whose jobs keep dying; return its name."""
    return _stop(schedule, paused_at=Now(), paused_reason=reason[:300])


def retry_errors(job_types: Sequence[str]) -> int:
    """Clear the errors of the schedules of these job types, because a process that has just started
    may have code that can fire them. Skips locked rows. Return how many were cleared."""
    with transaction.atomic(using=conf().database):
        rows = Schedule.objects.exclude(error="").filter(job_type__in=job_types)
        return _rows(_locked(rows)).update(error="")


def _stop(schedule: int, **values: Any) -> str:
    rows = Schedule.objects.using(conf().database).filter(pk=schedule)
    rows.update(**values, next_due_at=None, stale=False)
    return rows.values_list("name", flat=True)[0]


UNDER_WAY = """live.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
              AND (live.status <> 'waiting' OR live.awaits IS NOT NULL)"""
"""A job that waits for a signal has begun: the next one of its schedule waits for its end."""


def _start(which: str) -> str:
    """The part of a statement that starts waiting jobs. They keep their jitter, and the time to
    which they were moved. The rank counts from now, so that they overtake none that waits."""
    return f"""UPDATE django_jobs_job_live AS job
SET status = CASE WHEN job.available_at > clock.now THEN 'scheduled' ELSE {AT_THE_GATES} END,
    available_at = greatest(job.available_at, clock.now),
    rank = job.rank + greatest(
        date_part('epoch', clock.now) - date_part('epoch', job.available_at), 0)
FROM (SELECT clock_timestamp() AS now OFFSET 0) AS clock
WHERE job.id = ANY(ARRAY(SELECT id FROM {which}))"""


# A schedule runs one job at a time. Locks each schedule that has waiting jobs and none under way,
# as firing does; the next statement checks again under the lock.
LOCK_WAITING = f"""
SELECT schedule.id FROM django_jobs_schedule AS schedule
WHERE schedule.id = ANY(ARRAY(
    SELECT DISTINCT schedule_id FROM django_jobs_job_live AS waiting
    WHERE schedule_id IS NOT NULL AND status = 'waiting' AND awaits IS NULL
      AND NOT EXISTS (
        SELECT 1 FROM django_jobs_job_live AS live
        WHERE live.schedule_id = waiting.schedule_id
          AND {UNDER_WAY})))
ORDER BY schedule.id
FOR NO KEY UPDATE SKIP LOCKED
"""
# Skips a job that an operation has locked until the next look: locks are taken in another order
# here, so waiting could deadlock.
START_NEXT_WAITING = f"""
WITH next AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE status = 'waiting' AND id = ANY(ARRAY(
        SELECT (SELECT min(one.id) FROM django_jobs_job_live AS one
                WHERE one.schedule_id = waiting.schedule_id AND one.status = 'waiting'
                  AND one.awaits IS NULL)
        FROM unnest(%(schedules)s::bigint[]) AS waiting (schedule_id)
        WHERE NOT EXISTS (
            SELECT 1 FROM django_jobs_job_live AS live
            WHERE live.schedule_id = waiting.schedule_id
              AND {UNDER_WAY})))
    FOR NO KEY UPDATE SKIP LOCKED
)
{_start("next")}
RETURNING job.queue
"""
# Nothing else would start the jobs of a schedule that was deleted.
START_ORPHANS = f"""
WITH orphans AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE schedule_id IS NOT NULL AND status = 'waiting' AND awaits IS NULL
      AND NOT EXISTS (
        SELECT 1 FROM django_jobs_schedule WHERE id = django_jobs_job_live.schedule_id)
    FOR NO KEY UPDATE SKIP LOCKED
)
{_start("orphans")}
RETURNING job.queue
"""


def start_next_waiting() -> int:
    """Start the next waiting job of each schedule that has none under way; return how many started.

    Call it in a transaction: the schedules stay locked until that ends. Notifies the queues after
    commit.
    """
    schedules = [id_ for (id_,) in fetch(LOCK_WAITING, {})]
    queues = (
        [queue for (queue,) in fetch_locking(START_NEXT_WAITING, {"schedules": schedules})]
        if schedules
        else []
    )
    queues += [queue for (queue,) in fetch_locking(START_ORPHANS, {})]
    for queue in set(queues):
        notify_after_commit(queue)
    return len(queues)
