"""Operations on schedules. Each checks the actor's permission again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Unpack

from django.db import transaction
from django.db.models.functions import Now
from django.utils.translation import gettext_noop

from ...conf import conf
from ...domain.due_times import MOST_MOVED_OF_TICKS, made_of
from ...domain.policies import EPOCH, TickState, in_utc
from ...domain.schedules import INSTANT
from ...exceptions import OperationRefused
from ...models import Backfill, Schedule, Tick
from ...models.database import database_time, fetch
from ...models.querysets import ScheduleQuerySet
from ..notifying import SCHEDULES, notify_after_commit
from ..schedules.due import lock
from ..schedules.firing import JobRequest, NewTick, write_ticks
from . import OperationResult
from .jobs import Actor, Pause, cancel, demand, fields_of, name_of, signed

MOST_BACKFILLED = 10_000
"""The most jobs of one backfill."""
FORM_DIGITS = 8
"""Of the number of a form, as many as the reason of a tick keeps."""
SAME_FORM = timedelta(hours=1)
"""For how long a form makes no other job of its schedule."""
TICKS = 10_000
"""Ticks that one statement deletes."""

RUN_NOW = "run now by"
"""The begin of the reason of a tick that is at no due time."""

Request = Callable[..., JobRequest]
"""Returns what a schedule enqueues, or would with another payload. Raises as an enqueue does."""

LIVE_OF_BACKFILL = """
SELECT job.id FROM django_jobs_job_live AS job
WHERE job.id = ANY(ARRAY(
    SELECT job_id FROM django_jobs_tick WHERE backfill_id = %(backfill)s AND job_id IS NOT NULL))
  AND job.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
"""

# Each page begins behind the last: the rows that this transaction deleted are still in the index.
DELETE_TICKS = """
WITH page AS MATERIALIZED (
    SELECT id, due_at FROM django_jobs_tick
    WHERE schedule_id = %(schedule)s AND due_at > %(after)s::timestamptz
    ORDER BY due_at
    LIMIT %(page)s
), deleted AS (
    DELETE FROM django_jobs_tick WHERE id = ANY(ARRAY(SELECT id FROM page))
)
SELECT max(due_at)::text FROM page
"""


def changed() -> None:
    """Notify the workers, after the transaction, that schedules were changed."""
    notify_after_commit(SCHEDULES)


def pause(ids: Iterable[int], **given: Unpack[Pause]) -> list[str]:
    """Stop firing these schedules until they are resumed. Jobs that exist are not affected. Returns
    the names of those it paused."""
    fields = fields_of(given, "django_jobs.pause_schedule")
    pause = {f"paused_{name}": value for name, value in fields.items()}
    rows = Schedule.objects.using(conf().database).filter(pk__in=list(ids), paused_at=None)
    return _update(rows, paused_at=Now(), next_due_at=None, **pause)


def resume(ids: Iterable[int], *, actor: Actor = None, ended: bool = False) -> list[str]:
    """Fire these schedules again, from now on; of ``ended``, those whose pause is over. Due times
    during the pause, or while there was an error, are not made up for. Clears any error. Returns
    the names of those it resumed."""
    demand(actor, "django_jobs.pause_schedule")
    rows = Schedule.objects.using(conf().database).filter(pk__in=list(ids))
    rows = rows.exclude(paused_at=None, error="")
    if ended:
        rows = rows.filter(paused_until__lte=Now())
    return _update(
        rows,
        **{"paused_at": None, "paused_reason": "", "paused_by": "", "paused_until": None},
        **{"error": "", "resumed_at": Now()},
    )


def delete(schedule: Schedule, *, actor: Actor = None) -> None:
    """Delete a schedule with its ticks and backfills, in one transaction; the ticks in pages, which
    are not read. Its jobs stay."""
    demand(actor, "django_jobs.delete_schedule")
    alias = conf().database
    with transaction.atomic(using=alias):
        after: str | None = "-infinity"
        while after is not None:
            page = {"schedule": schedule.pk, "after": after, "page": TICKS}
            ((after,),) = fetch(DELETE_TICKS, page)
        schedule.delete(using=alias)
        changed()


def run_now(
    ids: Iterable[int],
    request: Request,
    *,
    payload: Mapping[str, Any] | None = None,
    actor: Actor = None,
    by: str = "",
    form: str = "",
) -> list[int]:
    """Make a job of each schedule at once, regardless of its rule and overlap policy, with its own
    payload or with this one. Returns the ids of the jobs. A schedule that made a job for the same
    ``form`` in the last hour makes no other. Raises what an enqueue raises; then no job is made."""
    demand(actor, "django_jobs.run_schedule")
    given = () if payload is None else (payload,)
    reason = f"{RUN_NOW} {name_of(actor) or by or 'the command line'}"
    if given:
        reason += ", with other arguments"
    if form:
        reason += f", form {form[:FORM_DIGITS]}"
    with transaction.atomic(using=conf().database):
        ticks = []
        for schedule in lock(ids):
            if form and _has_run(schedule, reason):
                continue
            ticks.append(
                NewTick(
                    schedule=schedule.pk,
                    due=schedule.now,
                    reason=reason,
                    request=request(schedule, *given),
                )
            )
        return [job for _, job in write_ticks(ticks)]


def _has_run(schedule: Schedule, reason: str) -> bool:
    ticks = Tick.objects.using(conf().database).filter(schedule=schedule, reason=reason[:300])
    return ticks.filter(due_at__gt=schedule.now - SAME_FORM).exists()


def backfill_times(schedule: Schedule, begin: datetime, end: datetime) -> list[datetime]:
    """The due times from ``begin`` to ``end``, both included, that made no job.

    Raises ``OperationRefused`` for times without a time zone, for a range that is empty or not over
    yet, or begins too early, and for more than 10,000 due times; ``ValueError`` for a broken rule.
    """
    if begin.utcoffset() is None or end.utcoffset() is None:
        raise OperationRefused(gettext_noop("both times of the range need a time zone"))
    begin, end = in_utc(begin), in_utc(end)
    now = database_time()
    if end > now:
        raise OperationRefused(gettext_noop("the range of a backfill must be in the past"))
    if begin.year < EPOCH.year:
        raise OperationRefused(f"the range must begin in {EPOCH.year} or later")
    if end < begin:
        raise OperationRefused(gettext_noop("the range ends before it begins"))
    rule = replace(schedule.rule, changes=())
    margin = MOST_MOVED_OF_TICKS if rule.depends_on_tables else timedelta()
    first, last = begin - margin, end + margin
    due_times = rule.due_times(first - INSTANT)
    due = list(islice(takewhile(lambda moment: moment <= last, due_times), 2 * MOST_BACKFILLED))
    ticks = Tick.objects.using(conf().database).filter(schedule=schedule, outcome="fired")
    fired: Iterable[datetime] = ()
    if len(due) < 2 * MOST_BACKFILLED:
        if margin:
            ticks = ticks.exclude(reason__startswith=RUN_NOW)
        fired = ticks.filter(due_at__range=(first, last)).values_list("due_at", flat=True)
    made = made_of(due, fired) if margin else set(fired)
    missing = [moment for moment in due if moment not in made and begin <= moment <= end]
    if len(missing) > MOST_BACKFILLED:
        raise OperationRefused(f"more than {MOST_BACKFILLED:,} due times; divide the range")
    return missing


def backfill(
    schedule: Schedule,
    begin: datetime,
    end: datetime,
    request: Request,
    *,
    actor: Actor = None,
    by: str = "",
) -> Backfill:
    """Make a job for each due time of the range that made none, all at once and in the order of
    their due times. The jobs may run side by side, and the overlap policy does not count them.

    Raises ``OperationRefused`` if the schedule was deleted, and what :func:`backfill_times` and an
    enqueue raise; then no job is made.
    """
    demand(actor, "django_jobs.backfill_schedule")
    alias = conf().database
    with transaction.atomic(using=alias):
        locked = next(iter(lock([schedule.pk])), None)
        if locked is None:
            raise OperationRefused(gettext_noop("the schedule was deleted"))
        due = backfill_times(locked, begin, end)
        asked = request(locked)
        row = Backfill.objects.using(alias).create(
            schedule=locked, begins_at=begin, ends_at=end, requested_by=(name_of(actor) or by)[:200]
        )
        made = write_ticks(
            NewTick(
                schedule=locked.pk,
                due=moment,
                reason=f"backfill {row.pk}",
                request=asked,
                counts=False,
                backfill=row.pk,
            )
            for moment in due
        )
        row.job_count = len(made)
        row.save(using=alias, update_fields=["job_count"])
    return row


def cancel_backfill(row: Backfill, *, actor: Actor = None, by: str = "") -> OperationResult:
    """Cancel the live jobs of a backfill: at once if they are not running; otherwise the cancel is
    requested. The due times of jobs that never ran can be backfilled again."""
    demand(actor, "django_jobs.backfill_schedule")
    reason = signed(f"backfill {row.pk} cancelled", name_of(actor) or by, "")
    alias = conf().database
    with transaction.atomic(using=alias):
        ids = [id_ for (id_,) in fetch(LIVE_OF_BACKFILL, {"backfill": row.pk})]
        report = cancel(ids, reason=reason)
        never_ran = set(report.done) - set(report.asked)
        ticks = Tick.objects.using(alias).filter(backfill=row.pk, job__in=never_ran)
        ticks.update(outcome=TickState.SUPPRESSED, reason=reason[:300])
        rows = Backfill.objects.using(alias).filter(pk=row.pk, cancelled_at=None)
        rows.update(cancelled_at=Now())
    return report


def _update(rows: ScheduleQuerySet, **values: Any) -> list[str]:
    with transaction.atomic(using=conf().database):
        names = dict(rows.select_for_update(no_key=True).order_by("id").values_list("id", "name"))
        Schedule.objects.using(conf().database).filter(pk__in=names).update(**values)
        changed()
    return sorted(names.values())
