"""What a person asks of schedules. Each operation checks the actor's permission again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from ...conf import conf
from ...domain.schedules import EPOCH, TickState
from ...exceptions import OperationRefused
from ...models import Backfill, Schedule, Tick
from ...models.database import database_time, fetch
from ...models.schedule import ScheduleQuerySet
from ..enqueueing import NewJobs
from ..notifying import notify_after_commit
from ..schedules.firing import SCHEDULES, NewTick, lock, write_ticks
from .jobs import Actor, OperationResult, cancel, demand, name_of

MOST_BACKFILLED = 10_000
"""Jobs of one backfill."""

Request = Callable[[Schedule], tuple[NewJobs, str]]
"""What the jobs of a schedule have in common, and their payload as JSON text."""

LIVE_OF_BACKFILL = """
SELECT job.id FROM django_jobs_job AS job
WHERE job.id = ANY(ARRAY(
    SELECT job_id FROM django_jobs_tick WHERE backfill_id = %(backfill)s AND job_id IS NOT NULL))
  AND job.status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
"""


def changed() -> None:
    """Tell the workers, after the transaction, that schedules were changed."""
    notify_after_commit(SCHEDULES)


def pause(ids: Iterable[int], *, actor: Actor = None, reason: str = "") -> list[str]:
    """Fire these schedules no more until they are resumed; jobs that exist go on. Returns the
    names of those it paused. Raises ``PermissionDenied`` if ``actor`` may not."""
    demand(actor, "django_jobs.pause_schedule")
    by = name_of(actor)
    why = (reason or (f"paused by {by}" if by else "paused"))[:300]
    rows = Schedule.objects.using(conf().database).filter(pk__in=list(ids), paused_at=None)
    return _update(rows, paused_at=Now(), paused_reason=why, next_due_at=None)


def resume(ids: Iterable[int], *, actor: Actor = None) -> list[str]:
    """Fire these schedules again, from now on: what came due during the pause, or while they were
    in error, is not made up for. Returns the names of those it resumed."""
    demand(actor, "django_jobs.pause_schedule")
    rows = Schedule.objects.using(conf().database).filter(pk__in=list(ids))
    rows = rows.exclude(paused_at=None, error="")
    return _update(rows, paused_at=None, paused_reason="", error="", resumed_at=Now())


def run_now(
    ids: Iterable[int], request: Request, *, actor: Actor = None, by: str = ""
) -> list[int]:
    """Make a job of each schedule at once, whatever its rule and its overlap policy say; returns
    the ids of the jobs. Without an actor, ``by`` is who asked. Raises what an enqueue raises; then
    none is made."""
    demand(actor, "django_jobs.run_schedule")
    by = name_of(actor) or by or "the command line"
    with transaction.atomic(using=conf().database):
        ticks = []
        for schedule in lock(ids):
            new, payload = request(schedule)
            ticks.append(
                NewTick(
                    schedule=schedule.pk,
                    due=schedule.now,
                    reason=f"run now by {by}",
                    new=new,
                    payload=payload,
                )
            )
        return [job for _, job in write_ticks(ticks)]


def backfill_times(schedule: Schedule, begin: datetime, end: datetime) -> list[datetime]:
    """The due times from ``begin`` to ``end``, both included, that made no job.

    Raises ``OperationRefused`` for a range that is empty or not over yet, and for more than 10,000;
    ``ValueError`` for a broken rule.
    """
    if begin.utcoffset() is None or end.utcoffset() is None:
        raise OperationRefused("the range needs times with a time zone")
    now = database_time()
    if end > now:
        raise OperationRefused("a backfill is of the past; its end is still to come")
    if begin.year < EPOCH.year:
        raise OperationRefused(f"a backfill begins in {EPOCH.year} at the earliest")
    if end < begin:
        raise OperationRefused("the range ends before it begins")
    found = schedule.rule.due_times(begin - timedelta(microseconds=1))
    due = list(islice(takewhile(lambda moment: moment <= end, found), 2 * MOST_BACKFILLED))
    ticks = Tick.objects.using(conf().database).filter(schedule=schedule, outcome="fired")
    fired: set[datetime] = set()
    if len(due) < 2 * MOST_BACKFILLED:
        fired.update(ticks.filter(due_at__range=(begin, end)).values_list("due_at", flat=True))
    missing = [moment for moment in due if moment not in fired]
    if len(missing) > MOST_BACKFILLED:
        raise OperationRefused(
            f"more than {MOST_BACKFILLED:,} due times; take the range in several parts"
        )
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
    """Make a job for each due time of the range that made none, all at once, in the order of their
    due times. They run side by side, and the schedule's overlap policy does not see them. Without
    an actor, ``by`` is who asked.

    Raises what :func:`backfill_times` and an enqueue raise; then none is made.
    """
    demand(actor, "django_jobs.backfill_schedule")
    alias = conf().database
    with transaction.atomic(using=alias):
        locked = next(iter(lock([schedule.pk])), None)
        if locked is None:
            raise OperationRefused("the schedule was deleted")
        due = backfill_times(locked, begin, end)
        new, payload = request(locked)
        row = Backfill.objects.using(alias).create(
            schedule=locked, begins_at=begin, ends_at=end, asked_by=(name_of(actor) or by)[:200]
        )
        made = write_ticks(
            NewTick(
                schedule=locked.pk,
                due=moment,
                reason=f"backfill {row.pk}",
                new=new,
                payload=payload,
                counts=False,
                backfill=row.pk,
            )
            for moment in due
        )
        row.jobs = len(made)
        row.save(using=alias, update_fields=["jobs"])
    return row


def cancel_backfill(row: Backfill, *, actor: Actor = None, by: str = "") -> OperationResult:
    """Cancel what is left of a backfill: at once what does not run, asked for what does. The due
    times of the first can be backfilled again. Without an actor, ``by`` is who asked."""
    demand(actor, "django_jobs.backfill_schedule")
    by = name_of(actor) or by
    reason = f"backfill {row.pk} cancelled" + (f" by {by}" if by else "")
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
