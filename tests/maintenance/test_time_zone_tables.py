"""Schedules whose next due times were computed with other time zone tables."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.maintenance import schedules as maintenance
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.models import Schedule, Tick
from tests.factories import due_schedule, look, run_sql
from tests.zones import TOWN, tables

pytestmark = pytest.mark.django_db

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
NEW_YEAR = dt.datetime(2099, 1, 1, 7, tzinfo=dt.UTC)


def town(name: str = "invoices", **fields: Any) -> Schedule:
    """At 07:00 on the first of a month, in a town; not yet looked at."""
    rule = {"cron": "0 7 1 * *", "timezone": TOWN, "starts_at": NEW_YEAR - DAY}
    fields = {"job_type": "app.noop", **rule, **fields}
    return Schedule.objects.create(name=name, **fields)


def next_due(schedule: Schedule) -> dt.datetime | None:
    schedule.refresh_from_db()
    return schedule.next_due_at


@pytest.mark.parametrize("minutes", [2, 60, 180])
def test_a_worker_brings_forward_what_is_earlier_by_its_tables(
    minutes: int, tmp_path: Path
) -> None:
    ahead = dt.timedelta(minutes=minutes)
    with tables(tmp_path / "old", dt.timedelta()):
        schedule = town()
        look()
        assert next_due(schedule) == NEW_YEAR
    with tables(tmp_path / "new", ahead):
        look()
        assert next_due(schedule) == NEW_YEAR - ahead
    with tables(tmp_path / "old", dt.timedelta()):
        look()
        assert next_due(schedule) == NEW_YEAR - ahead, "it is corrected when it is due"


def test_it_compares_all_schedules_at_the_start_and_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BATCH", 2)
    with tables(tmp_path / "old", dt.timedelta()):
        rows = [town(f"{number}") for number in range(5)]
        look()
    Schedule.objects.filter(pk=rows[0].pk).update(job_type="elsewhere.only", stale=False)
    unreadable = "('{\"n\": ' || repeat('9', 5000) || '}')::jsonb"
    run_sql(f"UPDATE django_jobs_schedule SET payload = {unreadable} WHERE id = %s", [rows[1].pk])
    with tables(tmp_path / "new", HOUR):
        scheduling = Scheduling()
        while scheduling.look() == 0.0:
            pass
        assert {next_due(row) for row in (rows[0], *rows[2:])} == {NEW_YEAR - HOUR}
        Schedule.objects.filter(pk=rows[4].pk).update(next_due_at=NEW_YEAR, stale=False)
        scheduling.look()
        assert next_due(rows[4]) == NEW_YEAR
        scheduling._compare_at = 0.0
        while scheduling.look() == 0.0:
            pass
        assert next_due(rows[4]) == NEW_YEAR - HOUR


@pytest.mark.parametrize(
    "fields",
    [
        {"paused_at": NEW_YEAR},
        {"enabled": False},
        {"error": "so"},
        {"max_jobs": 1, "jobs_made": 1},
    ],
    ids=["paused", "disabled", "in error", "after its last job"],
)
def test_a_schedule_that_is_not_due_is_left(fields: dict[str, Any], tmp_path: Path) -> None:
    with tables(tmp_path / "old", dt.timedelta()):
        schedule = town(job_type="elsewhere.only")
        look()
    Schedule.objects.filter(pk=schedule.pk).update(**fields, next_due_at=None, stale=False)
    with tables(tmp_path / "new", HOUR):
        look()
        assert next_due(schedule) is None


def test_a_schedule_that_ended_by_other_tables_goes_on(tmp_path: Path) -> None:
    with tables(tmp_path / "old", dt.timedelta()):
        schedule = town(ends_at=NEW_YEAR - HOUR / 2)
        look()
        assert next_due(schedule) is None
    with tables(tmp_path / "new", HOUR):
        look()
        assert next_due(schedule) == NEW_YEAR - HOUR


def overdue_by_other_tables(last: bool, **fields: Any) -> tuple[Schedule, dt.datetime]:
    """A schedule of each day that is to be due in half an hour by tables without an offset, and was
    half an hour ago by those of an hour."""
    ((now,),) = run_sql("SELECT date_trunc('minute', now())")
    stored = now + HOUR / 2
    rule = {"cron": f"{stored.minute} {stored.hour} * * *", "timezone": TOWN, "every": None}
    schedule = due_schedule(**{**rule, "starts_at": None, "overlap": "allow", **fields})
    Schedule.objects.filter(pk=schedule.pk).update(
        next_due_at=stored, last_due_at=stored - DAY if last else None, stale=False
    )
    run_sql("UPDATE django_jobs_schedule SET created_at = created_at - interval '2 d'")
    return schedule, stored


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("catch_up", "outcome"), [("latest", "fired"), ("skip", "skipped_late"), ("window", "fired")]
)
def test_a_due_time_that_passed_before_the_worker_began_leaves_its_tick(
    last: bool, catch_up: str, outcome: str, tmp_path: Path
) -> None:
    schedule, stored = overdue_by_other_tables(last, catch_up=catch_up, catch_up_limit=86_400)
    with tables(tmp_path, HOUR):
        look()
    tick = Tick.objects.get()
    assert (tick.outcome, tick.due_at) == (outcome, stored - HOUR)
    assert next_due(schedule) == stored - HOUR + DAY


@pytest.mark.parametrize("last", [False, True])
def test_a_stored_due_time_that_is_none_by_todays_tables_is_made_up_for(
    last: bool, tmp_path: Path
) -> None:
    schedule, stored = overdue_by_other_tables(last)
    moved = {"next_due_at": stored - HOUR, "last_due_at": stored - HOUR - DAY if last else None}
    Schedule.objects.filter(pk=schedule.pk).update(**moved, stale=False)
    with tables(tmp_path, 2 * HOUR):
        scheduling = Scheduling()
        scheduling._compare_at = float("inf")  # another worker has written it since
        while scheduling.look() == 0.0:
            pass
    tick = Tick.objects.get()
    assert (tick.outcome, tick.due_at) == ("fired", stored - 2 * HOUR)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_due_time_that_is_later_by_todays_tables_is_not_made_twice(
    hours: int, tmp_path: Path
) -> None:
    schedule, stored = overdue_by_other_tables(last=True)
    with tables(tmp_path / "new", -HOUR):
        Schedule.objects.filter(pk=schedule.pk).update(
            next_due_at=stored - HOUR, last_due_at=stored - HOUR - DAY, stale=False
        )
        look()
    assert not Tick.objects.exists()
    assert next_due(schedule) == stored + HOUR


@pytest.mark.parametrize("hours", [-2, -1, 1, 2])
def test_a_backfill_leaves_out_what_other_tables_have_fired(hours: int, tmp_path: Path) -> None:
    days = [dt.datetime(2024, 5, day, 7, tzinfo=dt.UTC) for day in range(1, 11)]
    schedule = town(cron="0 7 * * *", starts_at=None)
    span = days[0] - 3 * HOUR, days[-1] + 3 * HOUR
    with tables(tmp_path / "old", dt.timedelta()):
        schedule_operations.backfill(schedule, *span, request_of)
    assert Tick.objects.count() == 10
    assert schedule_operations.run_now([schedule.pk], request_of)
    ran = Tick.objects.filter(reason__startswith="run now")
    ran.update(due_at=days[3] - HOUR * hours + dt.timedelta(minutes=1))
    with tables(tmp_path / "new", hours * HOUR):
        assert schedule_operations.backfill_times(schedule, *span) == []
        exactly = days[4] - HOUR * hours, days[6] - HOUR * hours
        assert schedule_operations.backfill_times(schedule, *exactly) == []
        Tick.objects.filter(due_at=days[3]).update(outcome="skipped_late")
        assert schedule_operations.backfill_times(schedule, *span) == [days[3] - HOUR * hours]
