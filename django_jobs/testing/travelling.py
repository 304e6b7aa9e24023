"""Lets time pass in a test: what the tables hold becomes older.

The database's clock decides what is due, and cannot be set. Where a time of a row is compared with
the clock, an hour has passed once the row is an hour older.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import cache

from django.apps import apps
from django.db import models, transaction
from django.db.models import Max, Min, Q, QuerySet

from .. import registry
from ..conf import conf
from ..domain.numbers import LONGEST_AGE, NEVER, Duration, as_seconds
from ..lifecycle.promoting import peek
from ..lifecycle.schedules import due
from ..lifecycle.waits import SIGNAL_KEY, SLEEP_KEY
from ..maintenance import schedules as maintenance
from ..models import Backfill, Job, Schedule, ScheduleException, Tick, Worker
from ..models.database import database_time, execute, fetch, jobs_connection

STAYS: dict[type[models.Model], Collection[str] | None] = {
    **dict.fromkeys((Schedule, ScheduleException, Tick, Backfill)),
    Job: ["scheduled_for"],
    Worker: None,
}
"""Columns that are on the calendar on which the test travels, or all of a table; and the leases of
workers, which renew them."""

SHORTEST_STEP = 0.001
"""Seconds."""

TRAVELLED = "SELECT coalesce(nullif(current_setting('django_jobs.travelled', true), ''), '0')"
TRAVEL = "SELECT set_config('django_jobs.travelled', %(seconds)s, %(local)s)"

AGE_WAITS = f"""
UPDATE django_jobs_receipt SET answer = jsonb_set(answer, '{{until}}', to_jsonb(
    (answer ->> 'until')::timestamptz - make_interval(secs => %(seconds)s)))
WHERE (starts_with(key, '{SLEEP_KEY}') OR starts_with(key, '{SIGNAL_KEY}'))
  AND (answer ->> 'until') IS NOT NULL
"""
AGE_JOBS = """
UPDATE {table} SET available_at = available_at - make_interval(secs => %(seconds)s),
    expires_at = expires_at - make_interval(secs => %(seconds)s),
    retry_until = retry_until - make_interval(secs => %(seconds)s), rank = rank - %(seconds)s
WHERE id > %(after)s AND scheduled_for IS NOT NULL
"""


def travel(
    seconds: Duration | None = None,
    *,
    to: datetime | None = None,
    schedules: bool | Collection[str] = False,
) -> datetime:
    """Let ``seconds`` pass (a number or a timedelta), or the time until ``to``. Return what time it
    is then.

    Jobs that become due, such as retries and those whose sleep or wait is over, run in the next
    :func:`run_jobs`. Schedules that are rows of the test fire as if no worker had looked meanwhile:
    their ``catch_up`` decides about more than one due time. Of the schedules that are declared in
    code fire those that are named in ``schedules``, or all if it is True.

    Does not change Python's clock.
    """
    with transaction.atomic(using=conf().database):
        before, now = travelled(), _now()
        passed = _passed(seconds, to, now)
        then = now + timedelta(seconds=passed)
        _fire(_meant(schedules), now, then, before)
        _age(passed)
    # In a transaction the setting ends with it, as the rows do.
    is_local = jobs_connection().in_atomic_block
    fetch(TRAVEL, {"seconds": str(before + passed), "local": is_local})
    return then


class Journey:
    """Goes from one due time to the next, up to its end."""

    def __init__(self, until: datetime | timedelta) -> None:
        now, self._is_over = travel(0), False  # arms the schedules
        if isinstance(until, timedelta):
            until = now + timedelta(seconds=_passed(until, None, now))
        _passed(None, until, now)
        self._end = until

    def go_on(self) -> bool:
        """Go to the next due time, or to the end. Returns False if that was done before."""
        if self._is_over:
            return False
        left = (self._end - _now()).total_seconds()
        due = _next_due_in()
        self._is_over = due > left
        travel(max(min(due, left), SHORTEST_STEP))
        return True


def _now() -> datetime:
    return database_time() + timedelta(seconds=travelled())


def _next_due_in() -> float:
    """The seconds until a job is due or a schedule of the test."""
    schedule = _armed(_meant(False)).aggregate(due=Min("next_due_at"))["due"]
    in_seconds = NEVER if schedule is None else (schedule - _now()).total_seconds()
    job = peek([]).next_due_in
    return min(in_seconds, NEVER if job is None else job)


def travelled() -> float:
    """The seconds that have passed in this test by :func:`travel`."""
    return float(fetch(TRAVELLED, {})[0][0])


def return_to_now() -> None:
    """Forget :func:`travel` at the end of a test without a transaction, which flushes its rows."""
    if not jobs_connection().in_atomic_block:
        fetch(TRAVEL, {"seconds": "0", "local": False})


def _passed(seconds: Duration | None, to: datetime | None, now: datetime) -> float:
    if (seconds is None) == (to is None):
        raise TypeError("travel() takes seconds, or to=")
    if to is not None and not isinstance(to, datetime):
        raise TypeError(f"travel(to=) takes a datetime, not {to!r}")
    if to is not None and to.tzinfo is None:
        raise ValueError("travel(to=): the datetime has no time zone")
    passed = as_seconds(seconds) if to is None else (to - now).total_seconds()
    if passed is None:
        raise TypeError(f"travel() takes a number of seconds or a timedelta, not {seconds!r}")
    if passed > LONGEST_AGE:
        raise ValueError(f"travel() takes at most {LONGEST_AGE:,.0f} seconds, not {passed:,.0f}")
    if passed < 0:
        raise ValueError(f"travel() goes forward only; it is {now}, and that is {-passed} s ago")
    return passed


def _age(seconds: float) -> None:
    for table, columns in _times():
        aged = ", ".join(
            f"{name} = {name} - make_interval(secs => %(seconds)s)" for name in columns
        )
        if table == Job._meta.db_table:
            aged += ", rank = rank - %(seconds)s"
        execute(f"UPDATE {table} SET {aged}", {"seconds": seconds})
    execute(AGE_WAITS, {"seconds": seconds})


@cache
def _times() -> list[tuple[str, list[str]]]:
    tables = []
    for model in apps.get_app_config("django_jobs").get_models():
        stays = STAYS.get(model, ())
        if stays is None or model._meta.proxy:
            continue
        columns = [
            str(field.column)
            for field in model._meta.concrete_fields
            if isinstance(field, models.DateTimeField) and field.column not in stays
        ]
        if columns:
            tables.append((model._meta.db_table, columns))
    return tables


def _meant(schedules: bool | Collection[str]) -> Q:
    if schedules is True:
        return Q()
    names = {schedules} if isinstance(schedules, str) else set(schedules or ())
    if unknown := names - registry.schedules().keys():
        raise ValueError(f"travel(schedules=): no schedule is named {', '.join(sorted(unknown))}")
    return Q(declared=False) | Q(name__in=names)


def _fire(meant: Q, now: datetime, then: datetime, before: float) -> None:
    armed = _armed(meant)
    # What was due before is not the test's, which may be run on any day.
    overdue = armed.filter(Q(stale=True) | Q(next_due_at__lte=now) | Q(next_due_at=None))
    maintenance.arm(_at(overdue.values_list("pk", flat=True), now))
    jobs = Job.objects.using(conf().database)
    last = jobs.aggregate(last=Max("id"))["last"] or 0
    while ids := armed.filter(next_due_at__lte=then).values_list("pk", flat=True)[
        : maintenance.BATCH
    ]:
        maintenance.fire(_at(ids, then))
    execute(AGE_JOBS.format(table=Job._meta.db_table), {"seconds": before, "after": last})


def _armed(meant: Q) -> QuerySet[Schedule]:
    armed = Schedule.objects.using(conf().database).armed().filter(meant)
    return armed.filter(job_type__in=registry.versions())


def _at(ids: Iterable[int], now: datetime) -> list[Schedule]:
    schedules = due.lock(ids)
    for schedule in schedules:
        schedule.now = now
    return schedules
