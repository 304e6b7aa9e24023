"""The row of a schedule: what a save and an update say of its next due time."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, transaction

from django_jobs.models import Schedule
from tests.factories import due_schedule, run_sql

pytestmark = pytest.mark.django_db


def settled(**fields: Any) -> Schedule:
    """A schedule whose next due time is known, freshly read."""
    return Schedule.objects.get(pk=due_schedule(**fields).pk)


def is_stale(schedule: Schedule) -> bool:
    return Schedule.objects.values_list("stale", flat=True).get(pk=schedule.pk)


CHANGES = {
    "name": "other",
    "cron": "* * * * *",
    "every": 60.0,
    "timezone": "Europe/Paris",
    "dst": "twice",
    "starts_at": None,
    "ends_at": dt.datetime(2199, 1, 1, tzinfo=dt.UTC),
    "excluded_dates": [dt.date(2026, 12, 25)],
    "max_jobs": 3,
    "enabled": False,
    "paused_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
}


def test_a_new_schedule_waits_to_be_looked_at() -> None:
    assert is_stale(Schedule.objects.create(name="new", job_type="app.noop", every=60))
    (made,) = Schedule.objects.bulk_create([Schedule(name="b", job_type="app.noop", every=60)])
    assert is_stale(made)


@pytest.mark.parametrize("field", CHANGES)
def test_each_way_to_save_a_changed_rule_marks_it_stale(field: str) -> None:
    for number, save in enumerate(
        (
            lambda row: row.save(),
            lambda row: row.save(update_fields=[field]),
            lambda row: Schedule.objects.filter(pk=row.pk).update(**{field: CHANGES[field]}),
            lambda row: Schedule.objects.bulk_update([row], [field]),
            lambda row: Schedule.objects.update_or_create(
                pk=row.pk, defaults={field: CHANGES[field]}
            ),
        )
    ):
        schedule = settled(name=f"by way {number}")
        setattr(schedule, field, CHANGES[field] if field != "name" else f"other {number}")
        save(schedule)
        assert is_stale(schedule), number
        Schedule.objects.all().delete()


@pytest.mark.parametrize(
    "field, value",
    [("payload", {"a": 1}), ("priority", 5), ("queue", "bulk"), ("overlap", "allow")],
)
def test_a_change_of_anything_else_leaves_the_next_due_time(field: str, value: Any) -> None:
    schedule = settled()
    setattr(schedule, field, value)
    schedule.save()
    assert not is_stale(schedule)
    Schedule.objects.filter(pk=schedule.pk).update(**{field: value})
    assert not is_stale(schedule)


def test_a_date_added_to_the_list_marks_it_stale() -> None:
    schedule = settled(excluded_dates=[dt.date(2026, 12, 26)])
    schedule.excluded_dates.append(dt.date(2026, 12, 25))
    schedule.save()
    assert is_stale(schedule)


def test_excluded_dates_are_dumped_and_loaded() -> None:
    days = [dt.date(2026, 12, 25), dt.date(2026, 12, 26)]
    schedule = settled(excluded_dates=days)
    text = serializers.serialize("json", [schedule])
    Schedule.objects.all().delete()
    for row in serializers.deserialize("json", text):
        row.save()
    assert Schedule.objects.get().excluded_dates == days


@pytest.mark.parametrize("dates", ["25.12.2026", [5], [None], [dt.datetime(2026, 12, 25)]])
def test_what_is_not_a_date_is_refused(dates: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        Schedule(name="a", job_type="app.noop", every=60, excluded_dates=dates).full_clean()
    assert list(refused.value.message_dict) == ["excluded_dates"]


def test_excluded_dates_are_in_order_and_each_once() -> None:
    dates: Any = ("2026-12-26", dt.date(2026, 12, 25), "2026-12-25")
    schedule = Schedule(name="a", job_type="app.noop", every=60, excluded_dates=dates)
    schedule.full_clean()
    assert schedule.excluded_dates == [dt.date(2026, 12, 25), dt.date(2026, 12, 26)]


def test_an_unsaved_change_of_the_rule_is_noted_when_it_is_saved() -> None:
    schedule = settled()
    schedule.every = 60.0
    schedule.payload = {"a": 1}
    schedule.save(update_fields=["payload"])
    assert not is_stale(schedule)
    schedule.save(update_fields=["every"])
    assert is_stale(schedule)


def test_a_refreshed_row_is_not_a_change() -> None:
    schedule = settled()
    Schedule.objects.filter(pk=schedule.pk).update(every=60.0, stale=False)
    schedule.refresh_from_db()
    schedule.save()
    assert not is_stale(schedule)
    Schedule.objects.filter(pk=schedule.pk).update(every=90.0, stale=False)
    schedule.refresh_from_db(fields=["every"])
    schedule.save()
    assert not is_stale(schedule)


def test_deferred_fields_are_not_a_change() -> None:
    pk = due_schedule().pk
    for schedule in (Schedule.objects.only("payload").get(), Schedule.objects.defer("cron").get()):
        assert schedule.cron == ""
        schedule.payload = {"a": 1}
        schedule.save()
        assert not is_stale(schedule)
    some = Schedule.objects.only("payload").get(pk=pk)
    some.every = 60.0
    some.save()
    assert is_stale(some)


def test_a_second_save_after_a_change_changes_nothing() -> None:
    schedule = settled()
    schedule.every = 60.0
    schedule.save()
    Schedule.objects.filter(pk=schedule.pk).update(stale=False)
    schedule.stale = False
    schedule.save()
    assert not is_stale(schedule)


def test_a_save_or_an_update_clears_the_error() -> None:
    schedule = settled()
    Schedule.objects.filter(pk=schedule.pk).update(error="broken", stale=False)
    schedule = Schedule.objects.get()
    assert not schedule.is_armed
    schedule.save(update_fields=["payload"])
    assert Schedule.objects.get().error == "broken"
    schedule = Schedule.objects.get()
    schedule.save()
    assert Schedule.objects.get().error == ""
    assert is_stale(schedule)
    Schedule.objects.update(error="broken", stale=False)
    Schedule.objects.update(error="")
    assert is_stale(schedule)


def test_only_armed_schedules_come_due() -> None:
    good = settled(name="good")
    for number, fields in enumerate(
        ({"enabled": False}, {"paused_at": good.created_at}, {"error": "x"})
    ):
        Schedule.objects.filter(pk=settled(name=str(number)).pk).update(**fields)
    assert [row.name for row in Schedule.objects.armed()] == ["good"]
    assert [row.name for row in Schedule.objects.all() if row.is_armed] == ["good"]


@pytest.mark.parametrize(
    "fields, field, problem",
    [
        ({}, "cron", "either a cron expression or every"),
        ({"cron": "* * * * *", "every": 60}, "cron", "either a cron expression or every"),
        ({"cron": "61 * * * *"}, "cron", "61"),
        ({"every": 0.1}, "every", "from 1 second"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "timezone", "no time zone is called"),
        ({"every": 60, "queue": "a b"}, "queue", "Use letters"),
        ({"every": 60, "priority": 101}, "priority", "less than or equal to 100"),
        ({"every": 60, "jitter_seconds": -1}, "jitter_seconds", "greater than or equal to 0"),
        ({"every": 60, "jitter_seconds": float("nan")}, "jitter_seconds", "finite"),
        ({"every": 60, "catch_up": "window"}, "catch_up_limit", "requires a limit"),
        (
            {"every": 60, "catch_up": "window", "catch_up_limit": 59.9},
            "catch_up_limit",
            "Enter at least 60 seconds.",
        ),
        (
            {"every": 60, "catch_up": "at_most", "catch_up_limit": 101},
            "catch_up_limit",
            "Enter 1 to 100 jobs.",
        ),
        ({"every": 60, "catch_up_limit": float("inf")}, "catch_up_limit", "finite"),
        ({"every": 60, "overlap_limit": 0}, "overlap_limit", "greater than or equal to 1"),
        ({"every": 60, "overlap": "x"}, "overlap", "not a valid choice"),
        ({"every": 60, "dst": "x"}, "dst", "not a valid choice"),
        ({"every": 60, "pause_after_dead": 101}, "pause_after_dead", "less than or equal to 100"),
    ],
)
def test_an_error_is_shown_at_its_field(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Schedule(name="x", job_type="app.noop", **fields).full_clean()
    assert problem in " ".join(caught.value.message_dict[field])


@pytest.mark.parametrize(
    "fields", [{"priority": 101}, {"overlap": "x"}, {"catch_up": "x"}, {"name": "taken"}]
)
def test_the_table_refuses_impossible_rows(fields: dict[str, Any]) -> None:
    Schedule.objects.create(name="taken", job_type="app.noop", every=60)
    with pytest.raises((IntegrityError, DataError)), transaction.atomic():
        Schedule.objects.create(**{"name": "x", "job_type": "app.noop", "every": 60, **fields})


def test_a_schedule_cannot_be_deleted_through_its_manager() -> None:
    assert not hasattr(Schedule.objects, "delete")
    schedule = settled()
    assert Schedule.objects.filter(pk=schedule.pk).distinct().delete()[0] == 1
    assert run_sql("SELECT count(*) FROM django_jobs_schedule") == [(0,)]


def test_it_is_called_by_its_name() -> None:
    assert str(settled()) == "tick"
