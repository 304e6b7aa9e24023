"""Schedules with excluded dates, and those that end after a number of jobs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.api.schedules import request_of
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations import schedules as operations
from django_jobs.lifecycle.schedules.firing import write_ticks
from django_jobs.maintenance.schedules import COMPARE_SECONDS, Scheduling
from django_jobs.models import Job, Queue, Schedule, Tick
from django_jobs.models.querysets import ScheduleState
from tests.factories import (
    claim_ready,
    due_schedule,
    in_threads,
    look,
    overdue,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.schedules.test_firing import fired
from tests.maintenance.test_schedules import due_again

pytestmark = pytest.mark.django_db

ALLOW = {"overlap": "allow", "catch_up": "at_most", "catch_up_limit": 100}
"""Each missed due time makes a job."""


def outcomes(schedule: Schedule) -> list[str]:
    ticks = Tick.objects.filter(schedule=schedule).order_by("due_at")
    return list(ticks.values_list("outcome", flat=True))


def made(schedule: Schedule) -> tuple[int, str]:
    """The jobs that it made, and its state."""
    schedule.refresh_from_db()
    ((now,),) = run_sql("SELECT now()")
    assert Schedule.objects.in_state(schedule.state_at(now)).filter(pk=schedule.pk).exists()
    return schedule.jobs_made, schedule.state_at(now).value


# Excluded dates


def today() -> dt.date:
    ((day,),) = run_sql("SELECT (now() AT TIME ZONE 'UTC')::date")
    assert isinstance(day, dt.date)
    return day


def test_a_schedule_is_armed_for_the_end_of_an_excluded_date() -> None:
    days = [today() + dt.timedelta(days=passed) for passed in range(3)]
    schedule = Schedule.objects.create(
        name="hourly", job_type="app.noop", every=3600.0, excluded_dates=days
    )
    look()
    schedule.refresh_from_db()
    assert schedule.next_due_at == dt.datetime.combine(
        days[-1] + dt.timedelta(days=1), dt.time(), dt.UTC
    )
    Schedule.objects.update(excluded_dates=[])
    look()
    schedule.refresh_from_db()
    assert schedule.next_due_at is not None
    assert schedule.next_due_at.date() <= days[1]


def test_missed_due_times_of_an_excluded_date_make_neither_job_nor_tick() -> None:
    yesterday = today() - dt.timedelta(days=1)
    schedule = overdue(72, excluded_dates=[yesterday], **ALLOW)
    look()
    due_times = set(Job.objects.values_list("scheduled_for__date", flat=True))
    assert yesterday not in due_times
    assert today() - dt.timedelta(days=2) in due_times
    assert Tick.objects.filter(schedule=schedule).count() == Job.objects.count()


def test_a_backfill_leaves_out_excluded_dates() -> None:
    first = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    days = [dt.date(2026, 3, 1), dt.date(2026, 3, 3)]
    schedule = due_schedule(starts_at=None, excluded_dates=days, max_jobs=1)
    found = operations.backfill_times(schedule, first, first + dt.timedelta(days=4))
    assert {due.day for due in found} == {2, 4, 5}
    assert len(found) == 24 + 24 + 1


def test_dates_that_python_cannot_represent_exclude_nothing() -> None:
    schedule = due_schedule()
    dates = "{infinity,2001-12-26,NULL,-infinity,10000-01-01,0044-03-15 BC,2001-12-25}"
    run_sql("UPDATE django_jobs_schedule SET excluded_dates = %s::date[]", [dates])
    schedule.refresh_from_db()
    assert schedule.excluded_dates == [dt.date(2001, 12, 25), dt.date(2001, 12, 26)]
    look()
    assert outcomes(schedule) == ["fired"]


# A maximum number of jobs


def test_a_schedule_ends_after_its_last_job() -> None:
    schedule = due_schedule(max_jobs=2, overlap="allow")
    look()
    assert made(schedule) == (1, ScheduleState.ON)
    due_again(schedule)
    look()
    assert made(schedule) == (2, ScheduleState.ENDED)
    assert schedule.next_due_at is None
    assert Scheduling().look() == COMPARE_SECONDS
    assert Job.objects.count() == 2


def test_once_is_a_schedule_of_one_job() -> None:
    ((at,),) = run_sql("SELECT date_trunc('minute', now())")
    # No second due time is missed if a minute ends in this test.
    cron = f"{at.minute} {at.hour} {at.day} {at.month} *"
    schedule = due_schedule(cron=cron, every=None, max_jobs=1)
    run_sql("UPDATE django_jobs_schedule SET next_due_at = %s, starts_at = NULL", [at])
    look()
    assert made(schedule) == (1, ScheduleState.ENDED)
    assert outcomes(schedule) == ["fired"]


def test_without_a_maximum_the_jobs_are_counted_too() -> None:
    schedule = overdue(3.1, **ALLOW)
    look()
    assert made(schedule) == (4, ScheduleState.ON)


def test_of_several_missed_due_times_only_as_many_fire_as_jobs_are_left() -> None:
    schedule = overdue(9.1, max_jobs=3, **ALLOW)
    first = schedule.next_due_at
    look()
    assert outcomes(schedule) == ["fired"] * 3
    assert made(schedule) == (3, ScheduleState.ENDED)
    assert first is not None
    assert schedule.last_due_at == first + dt.timedelta(hours=2)


def test_a_skipped_due_time_does_not_count() -> None:
    schedule = overdue(3.1, max_jobs=2, overlap="skip", catch_up="at_most", catch_up_limit=4)
    look()
    assert outcomes(schedule) == ["fired", *["skipped_overlap"] * 3]
    assert made(schedule) == (1, ScheduleState.ON)
    assert end_all() == 1
    due_again(schedule)
    look()
    assert outcomes(schedule)[-1] == "fired"
    assert made(schedule) == (2, ScheduleState.ENDED)


def end_all() -> int:
    """End the jobs that are ready; return how many."""
    return len([settle_one(job, Succeeded()) for job in claim_ready(register_worker())])


def test_what_replaces_a_live_job_counts_once() -> None:
    schedule = overdue(3.1, max_jobs=2, overlap="cancel", catch_up="at_most", catch_up_limit=4)
    look()
    assert outcomes(schedule) == [*["skipped_overlap"] * 3, "fired"]
    assert made(schedule) == (1, ScheduleState.ON)


def test_a_full_queue_suppresses_a_due_time_and_does_not_count_it() -> None:
    Queue.objects.filter(name="default").update(max_backlog=0)
    schedule = due_schedule(max_jobs=1)
    look()
    assert outcomes(schedule) == ["suppressed"]
    assert made(schedule) == (0, ScheduleState.ON)


def test_a_due_time_that_has_a_tick_makes_no_job_and_is_not_counted() -> None:
    """The database's clock was set back."""
    schedule = overdue(2.1, max_jobs=2, **ALLOW)
    assert schedule.next_due_at is not None
    write_ticks([fired(schedule, schedule.next_due_at)])
    look()
    assert made(schedule) == (2, ScheduleState.ENDED)
    assert outcomes(schedule) == ["fired"] * 3


def test_run_now_and_a_backfill_do_not_count() -> None:
    schedule = due_schedule(max_jobs=1, overlap="allow")
    assert schedule.starts_at is not None
    begin = schedule.starts_at - dt.timedelta(hours=5)
    run_sql("UPDATE django_jobs_schedule SET starts_at = %s", [begin])
    operations.run_now([schedule.pk], request_of)
    operations.backfill(schedule, begin, begin + dt.timedelta(hours=2), request_of)
    assert made(schedule) == (0, ScheduleState.ON)
    look()
    assert made(schedule) == (1, ScheduleState.ENDED)
    operations.run_now([schedule.pk], request_of)
    assert made(schedule) == (1, ScheduleState.ENDED)
    assert Job.objects.count() == 6


@pytest.mark.parametrize("change", [{"max_jobs": 3}, {"max_jobs": None}, {"jobs_made": 0}])
def test_a_larger_maximum_starts_it_again(change: dict[str, Any]) -> None:
    schedule = due_schedule(max_jobs=1)
    look()
    assert made(schedule) == (1, ScheduleState.ENDED)
    for off_and_on in ({"paused_at": dt.datetime.now(dt.UTC)}, {"paused_at": None}):
        Schedule.objects.update(**off_and_on)
        look()
    assert made(schedule) == (1, ScheduleState.ENDED)
    Schedule.objects.update(**change)
    look()
    assert made(schedule)[1] == ScheduleState.ON
    assert schedule.next_due_at is not None


def test_a_smaller_maximum_ends_it_at_the_next_look() -> None:
    schedule = overdue(2.1, **ALLOW)
    look()
    schedule.refresh_from_db()
    schedule.max_jobs = 2
    schedule.save()
    look()
    assert made(schedule) == (3, ScheduleState.ENDED)
    # SQL that does not set stale.
    due_again(schedule)
    look()
    assert made(schedule) == (3, ScheduleState.ENDED)
    assert Job.objects.count() == 3


def test_a_row_that_was_read_before_a_job_was_made_loses_no_count() -> None:
    schedule = due_schedule(max_jobs=5)
    read_before = Schedule.objects.get()
    look()
    read_before.queue = "bulk"
    read_before.save()
    assert made(schedule)[0] == 1
    assert schedule.queue == "bulk"


def test_counting_takes_no_further_statement() -> None:
    def statements(**fields: Any) -> int:
        schedule = due_schedule(**fields)
        with CaptureQueriesContext(connection) as queries:
            scheduling.look()
        schedule.delete()
        return len(queries)

    scheduling = Scheduling()
    statements()
    assert statements(max_jobs=1) == statements(max_jobs=9) == statements()


@pytest.mark.django_db(transaction=True)
def test_many_workers_make_as_many_jobs_as_are_left() -> None:
    schedules = [due_schedule(name=f"tick {number}", max_jobs=7) for number in range(4)]
    Schedule.objects.update(**ALLOW, stale=False)
    run_sql("UPDATE django_jobs_schedule SET next_due_at = next_due_at - interval '5 h',"
            " starts_at = starts_at - interval '5 h'")  # fmt: skip

    def work(number: int) -> None:
        scheduling = Scheduling()
        for _ in range(8):
            scheduling.look()
            due_again(schedules[number])

    in_threads(4, work)
    look()
    for schedule in schedules:
        assert made(schedule) == (7, ScheduleState.ENDED)
    by_schedule = Job.objects.values_list("schedule_id", flat=True)
    assert sorted(by_schedule) == sorted([schedule.pk for schedule in schedules] * 7)


@pytest.mark.django_db(transaction=True)
def test_a_maximum_that_is_raised_while_workers_fire_is_reached_exactly() -> None:
    schedule = due_schedule(every=1.0, max_jobs=1, **ALLOW)
    run_sql("UPDATE django_jobs_schedule SET next_due_at = next_due_at - interval '1 h',"
            " starts_at = starts_at - interval '1 h'")  # fmt: skip

    def work(number: int) -> None:
        for step in range(10):
            if number:
                Scheduling().look()
            else:
                Schedule.objects.filter(pk=schedule.pk).update(max_jobs=step + 5)

    in_threads(3, work)
    look()
    jobs, state = made(schedule)
    assert jobs == Job.objects.count() <= 14
    assert (state == ScheduleState.ENDED) == (jobs >= 14)
