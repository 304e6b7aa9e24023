"""What a person asks of single due times of a schedule, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction

from django_jobs import (
    OperationRefused,
    PayloadError,
    change_occurrence,
    move_occurrence,
    restore_occurrence,
    skip_occurrence,
)
from django_jobs.lifecycle.editing import occurrences
from django_jobs.models import Schedule, ScheduleException, Tick
from tests.factories import due_schedule, listening, look, make_user, run_sql

pytestmark = pytest.mark.django_db

HOUR, MINUTE = dt.timedelta(hours=1), dt.timedelta(minutes=1)

VERBS: dict[str, Callable[[Schedule, dt.datetime, Any], object]] = {
    "skip": lambda row, due, actor: occurrences.skip(row.pk, due, actor=actor),
    "move": lambda row, due, actor: occurrences.move(row.pk, due, due + MINUTE, actor=actor),
    "payload": lambda row, due, actor: occurrences.replace_payload(row.pk, due, {}, 1, actor=actor),
    "restore": lambda row, due, actor: occurrences.restore(row.pk, due, actor=actor),
}

WEST, EAST = (dt.timezone(hours * HOUR) for hours in (-9, 9))


def ahead(**fields: Any) -> tuple[Schedule, dt.datetime]:
    """A schedule of every hour, and its first due time in half an hour."""
    schedule = due_schedule(-1800.0, **fields)
    assert schedule.starts_at is not None
    return schedule, schedule.starts_at


@pytest.mark.parametrize("verb", VERBS)
def test_each_operation_demands_its_permission(verb: str) -> None:
    schedule, first = ahead()
    if verb == "restore":
        skip_occurrence("tick", first)
    others = make_user("change_schedule", "pause_schedule", "run_schedule", "backfill_schedule")
    with pytest.raises(PermissionDenied, match=r"lacks the permission django_jobs\.move_schedule"):
        VERBS[verb](schedule, first, others)
    assert ScheduleException.objects.count() == (verb == "restore")
    VERBS[verb](schedule, first, make_user("move_schedule", name="ann"))
    names = list(ScheduleException.objects.values_list("requested_by", flat=True))
    assert names == ([] if verb == "restore" else ["ann"])


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_due_time_is_refused(verb: str) -> None:
    schedule, first = ahead()
    look()
    naive = first.replace(tzinfo=None)
    with pytest.raises(OperationRefused, match="needs a time zone"):
        VERBS[verb](schedule, naive, None)
    last = dt.datetime.max - MINUTE
    for odd in (last.replace(tzinfo=WEST), dt.datetime.min.replace(tzinfo=EAST)):
        with pytest.raises(OperationRefused, match="not between the years 1970 and 9998"):
            VERBS[verb](schedule, odd, None)
    text = "has no exception" if verb == "restore" else "is no due time of the schedule; after it"
    with pytest.raises(OperationRefused, match=text):
        VERBS[verb](schedule, first + MINUTE, None)
    schedule.delete()
    schedule.pk = 10**12
    with pytest.raises(OperationRefused, match="the schedule was deleted"):
        VERBS[verb](schedule, first, None)


@pytest.mark.parametrize("verb", VERBS)
def test_what_has_come_is_refused_also_before_a_worker_saw_it(verb: str) -> None:
    schedule = due_schedule(60.0)
    first = schedule.starts_at
    assert first is not None
    if verb == "restore":
        ScheduleException.objects.create(schedule=schedule, due_at=first, skipped=True)
    with pytest.raises(OperationRefused, match="has come already"):
        VERBS[verb](schedule, first, None)
    look()
    with pytest.raises(OperationRefused, match="has come already"):
        VERBS[verb](schedule, first, None)
    assert Tick.objects.get().outcome == ("skipped" if verb == "restore" else "fired")


@pytest.mark.parametrize("verb", VERBS)
def test_what_has_come_at_an_earlier_time_is_refused(verb: str) -> None:
    schedule, first = ahead()
    ScheduleException.objects.create(schedule=schedule, due_at=first, moved_to=first - HOUR)
    with pytest.raises(OperationRefused, match="has come already"):
        VERBS[verb](schedule, first, None)


def test_a_due_time_with_a_tick_is_refused() -> None:
    schedule, first = ahead()
    run_sql(
        "INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds,"
        " created_at) VALUES (%s, %s, 'fired', '', 0, now())",
        [schedule.pk, first],
    )
    with pytest.raises(OperationRefused, match="has a tick already"):
        skip_occurrence("tick", first)


@pytest.mark.parametrize(
    "to, text",
    [
        (lambda first: first, "is the due time itself"),
        (lambda first: first - HOUR, "has passed"),
        (lambda first: first.replace(tzinfo=None) + HOUR, "needs a time zone"),
        (lambda first: first.replace(year=9999), "not between the years 1970 and 9998"),
        (lambda _: dt.datetime.max.replace(tzinfo=WEST), "not between the years 1970 and 9998"),
        (lambda _: dt.datetime.min.replace(tzinfo=EAST), "not between the years 1970 and 9998"),
    ],
)
def test_a_move_to_an_impossible_time_is_refused(
    to: Callable[[dt.datetime], dt.datetime], text: str
) -> None:
    _, first = ahead()
    with pytest.raises(OperationRefused, match=text):
        move_occurrence("tick", first, to(first))
    assert not ScheduleException.objects.exists()


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(
    ("zone", "gap"),
    [
        ("Europe/Paris", dt.datetime(2099, 3, 29, 2, 30)),
        ("America/New_York", dt.datetime(2099, 3, 8, 2, 0)),
        ("Australia/Lord_Howe", dt.datetime(2099, 10, 4, 2, 15)),
        ("Asia/Beirut", dt.datetime(2099, 3, 29, 0, 59, 59)),
    ],
)
def test_a_time_that_a_clock_skips_is_refused_also_as_a_due_time(
    zone: str, gap: dt.datetime, fold: int
) -> None:
    _, first = ahead()
    to = gap.replace(tzinfo=ZoneInfo(zone), fold=fold)
    for call in (
        lambda: move_occurrence("tick", first, to),
        lambda: skip_occurrence("tick", to),
        lambda: restore_occurrence("tick", to),
    ):
        with pytest.raises(OperationRefused, match=f"does not exist in {zone}, .*; 2099-.* does"):
            call()
    move_occurrence("tick", first, to.astimezone(dt.UTC))  # an instant is in no gap
    for hours in (-2, 2):
        move_occurrence("tick", first, to + hours * HOUR)


def test_one_that_was_moved_and_whose_due_time_has_passed_cannot_be_restored() -> None:
    schedule = due_schedule(60.0)
    first = schedule.starts_at
    assert first is not None
    ScheduleException.objects.create(schedule=schedule, due_at=first, moved_to=first + HOUR)
    with pytest.raises(OperationRefused, match="has passed; it can be moved again, or skipped"):
        restore_occurrence("tick", first)
    move_occurrence("tick", first, first + 2 * HOUR)
    look()
    schedule.refresh_from_db()
    assert schedule.next_due_at == first + HOUR
    assert not Tick.objects.exists()


def test_what_is_no_longer_a_due_time_can_be_restored_and_not_moved() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first + HOUR)
    schedule.every = 7200.0
    schedule.save()
    with pytest.raises(OperationRefused, match="is no due time"):
        move_occurrence("tick", first + HOUR, first + 90 * MINUTE)
    restore_occurrence("tick", first + HOUR)
    assert not ScheduleException.objects.exists()


def test_a_schedule_that_made_all_of_its_jobs_has_no_due_times_to_skip() -> None:
    schedule, first = ahead(max_jobs=1, jobs_made=1)
    with pytest.raises(OperationRefused, match="has made all of its jobs"):
        skip_occurrence("tick", first)
    assert Schedule.objects.get().next_due_at == schedule.next_due_at


@pytest.mark.parametrize(
    "broken", [{"cron": "61 * * * *", "every": None}, {"every": -1.0}, {"timezone": "Moon/1"}]
)
@pytest.mark.parametrize("stale", [True, False])
def test_a_rule_that_cannot_be_read_is_refused(broken: dict[str, Any], stale: bool) -> None:
    schedule, first = ahead(excluded_dates=[dt.date(2099, 1, 1)])
    skip_occurrence("tick", first)
    Schedule.objects.filter(pk=schedule.pk).update(**broken, stale=stale)
    for verb in ("skip", "move", "payload"):
        with pytest.raises(OperationRefused, match="cannot be read"):
            VERBS[verb](schedule, first, None)
    restore_occurrence("tick", first)


def test_an_unknown_schedule_is_refused_with_the_names_that_are_close() -> None:
    _, first = ahead()
    for call in (
        lambda: skip_occurrence("tik", first),
        lambda: move_occurrence("tik", first, first + HOUR),
        lambda: change_occurrence("tik", first, {}),
        lambda: restore_occurrence("tik", first),
    ):
        with pytest.raises(OperationRefused, match=r"is named 'tik'; did you mean 'tick'\?"):
            call()


@pytest.mark.parametrize("payload", [{}, {"third": 1}, [1], None, {"first": float("nan")}])
def test_a_payload_that_the_handler_does_not_take_is_refused(payload: Any) -> None:
    _, first = ahead(job_type="app.add", payload={"first": 1})
    with pytest.raises(PayloadError, match=r"app\.add"):
        change_occurrence("tick", first, payload)
    assert not ScheduleException.objects.exists()


def test_the_last_request_counts_and_a_move_keeps_the_payload() -> None:
    _, first = ahead(job_type="app.add", payload={"first": 1})
    change_occurrence("tick", first, {"first": 2})
    move_occurrence("tick", first, first + MINUTE, reason="later")
    row = ScheduleException.objects.get()
    assert (row.skipped, row.moved_to, row.payload, row.reason) == (
        *(False, first + MINUTE, {"first": 2}, "later"),
    )
    skip_occurrence("tick", first)
    row.refresh_from_db()
    assert (row.skipped, row.moved_to, row.payload, row.reason) == (True, None, None, "")
    change_occurrence("tick", first, {"first": 3})
    row.refresh_from_db()
    assert (row.skipped, row.moved_to, row.payload) == (False, None, {"first": 3})


@pytest.mark.parametrize(
    "does",
    [{}, {"skipped": True, "moved_to": 1}, {"skipped": True, "payload": {}}, {"moved_to": 0}],
)
def test_the_table_refuses_what_has_no_one_meaning(does: dict[str, Any]) -> None:
    schedule, first = ahead()
    if "moved_to" in does:
        does = {**does, "moved_to": first + does["moved_to"] * HOUR}
    with pytest.raises(IntegrityError), transaction.atomic():
        ScheduleException.objects.create(schedule=schedule, due_at=first, **does)


def test_a_due_time_has_one_exception() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first)
    with pytest.raises(IntegrityError), transaction.atomic():
        ScheduleException.objects.create(schedule=schedule, due_at=first, skipped=True)


def test_at_most_366_exceptions_are_to_come() -> None:
    schedule, first = ahead()
    ScheduleException.objects.bulk_create(
        ScheduleException(schedule=schedule, due_at=first + number * HOUR, skipped=True)
        for number in range(366)
    )
    with pytest.raises(OperationRefused, match="at most 366"):
        skip_occurrence("tick", first + 366 * HOUR)
    move_occurrence("tick", first, first + MINUTE)  # has one


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", VERBS)
def test_workers_are_notified_after_the_commit(verb: str) -> None:
    schedule, first = ahead()
    if verb == "restore":
        ScheduleException.objects.create(schedule=schedule, due_at=first, skipped=True)
    with listening() as heard:
        VERBS[verb](schedule, first, None)
        assert heard()
