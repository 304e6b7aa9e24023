"""What is due is looked up and locked, and what decides about it is read."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction

from django_jobs.lifecycle.schedules import due
from django_jobs.lifecycle.schedules.firing import advance, write_ticks
from django_jobs.models import Job
from tests.factories import due_schedule, in_threads, run_sql
from tests.moments import moment

from .test_firing import NOON, fired

pytestmark = pytest.mark.django_db


def test_the_horizon_has_the_next_due_time_and_the_first_to_come() -> None:
    assert due.horizon().next_due_in is None
    due_schedule(-100, name="later")
    sooner = due_schedule(-50, name="sooner", job_type="app.add")
    off = due_schedule(90, name="off")
    run_sql("UPDATE django_jobs_schedule SET enabled = false WHERE id = %s", [off.pk])
    with moment() as now:
        seen = due.horizon()
    assert seen.next_due_in in now.until(sooner.next_due_at)
    assert seen.behind_in in now.until(sooner.next_due_at)
    assert (seen.stale, seen.waiting) == (False, False)
    run_sql("UPDATE django_jobs_schedule SET stale = true WHERE id = %s", [off.pk])
    assert due.horizon().stale
    late = due_schedule(60, name="due", job_type="elsewhere.only")
    with moment() as now:
        seen = due.horizon()
    assert seen.next_due_in in now.until(late.next_due_at)
    assert seen.behind_in in now.until(sooner.next_due_at)


def test_a_job_that_does_not_count_is_not_seen_among_the_live() -> None:
    schedule = due_schedule()
    ((_, first),) = write_ticks([fired(schedule, counts=False)])
    ((_, second),) = write_ticks([fired(schedule, NOON + dt.timedelta(1), waits=True)])
    assert due.live_jobs([schedule.pk]) == {schedule.pk: [(second, True)]}
    assert Job.objects.get(pk=first).status == "ready"
    assert due.live_jobs([]) == {}


@pytest.mark.django_db(transaction=True)
def test_two_that_read_due_schedules_at_once_get_different_ones() -> None:
    due_ids = [due_schedule(name=f"s{number}").pk for number in range(40)]

    def take(number: int) -> list[int]:
        with transaction.atomic():
            taken = due.take_due({"app.noop": 1}, 20)
            advance(dict.fromkeys(taken, (None, None)), {})
            return taken

    taken = [id_ for ids in in_threads(4, take) for id_ in ids]
    assert sorted(taken) == due_ids
