"""Exceptions of a schedule: a due time that is skipped, is moved or has another payload."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs import change_occurrence, move_occurrence, restore_occurrence, skip_occurrence
from django_jobs.api.schedules import request_of, synchronise
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.lifecycle.pruning import PRUNE_EXCEPTIONS, prune_old
from django_jobs.lifecycle.schedules import due
from django_jobs.maintenance.schedules import Scheduling, arm, fire
from django_jobs.models import Job, Schedule, ScheduleException, Tick
from tests.factories import due_schedule, in_threads, look, make_user, rows_in, run_sql

pytestmark = pytest.mark.django_db

HOUR, MINUTE = dt.timedelta(hours=1), dt.timedelta(minutes=1)
SHIFTED = (
    ("django_jobs_schedule", "next_due_at", "starts_at", "ends_at", "last_due_at", "created_at"),
    ("django_jobs_scheduleexception", "due_at", "moved_to"),
    ("django_jobs_tick", "due_at"),
)


def ahead(**fields: Any) -> tuple[Schedule, dt.datetime]:
    """A schedule that is due in half an hour for the first time, and then every hour; and this due
    time."""
    schedule = due_schedule(-1800.0, **{"overlap": "allow", **fields})
    assert schedule.starts_at is not None
    return schedule, schedule.starts_at


def let_pass(passed: dt.timedelta) -> None:
    """As if so much time had gone by, without a worker."""
    with transaction.atomic():
        for table, *columns in SHIFTED:
            # By way of another century: see due_again() of the tests of schedules.
            for by in ("- interval '100 y'", "+ interval '100 y' - %s"):
                moved = ", ".join(f"{column} = {column} {by}" for column in columns)
                run_sql(f"UPDATE {table} SET {moved}", [passed] * by.count("%s") * len(columns))
        run_sql("UPDATE django_jobs_schedule SET stale = false")
        run_sql("UPDATE django_jobs_job SET idempotency_key = 'of job ' || id")


def pass_by(passed: dt.timedelta) -> None:
    let_pass(passed)
    look()


def start_of(schedule: Schedule) -> dt.datetime:
    """The first due time, which let_pass() moves."""
    schedule.refresh_from_db()
    assert schedule.starts_at is not None
    return schedule.starts_at


def outcomes(schedule: Schedule) -> list[tuple[int, str]]:
    """The ticks in the order of their due times: the number of the due time, and the outcome."""
    first = start_of(schedule)
    ticks = Tick.objects.filter(schedule=schedule).order_by("due_at")
    return [(round((tick.due_at - first) / HOUR), tick.outcome) for tick in ticks]


def next_due(schedule: Schedule) -> dt.datetime | None:
    schedule.refresh_from_db()
    return schedule.next_due_at


# Skipped


def test_a_skipped_due_time_leaves_a_tick_that_says_by_whom_and_why_and_no_job() -> None:
    schedule, first = ahead()
    user = make_user("move_schedule", name="ann")
    skip_occurrence("tick", first, actor=user, reason="the bank is closed")
    assert next_due(schedule) == first
    pass_by(HOUR)
    tick = Tick.objects.get()
    assert (tick.outcome, tick.job_id) == ("skipped", None)
    assert tick.reason == "skipped by ann: the bank is closed"
    assert not Job.objects.exists()
    pass_by(HOUR)
    assert outcomes(schedule) == [(0, "skipped"), (1, "fired")]


def test_of_missed_due_times_the_newest_that_is_not_skipped_fires() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first + 3 * HOUR)
    skip_occurrence("tick", first + HOUR)
    pass_by(4 * HOUR)
    assert outcomes(schedule) == [
        *((0, "skipped_late"), (1, "skipped"), (2, "fired"), (3, "skipped")),
    ]
    assert next_due(schedule) == start_of(schedule) + 4 * HOUR


def test_the_last_due_time_of_a_schedule_can_be_skipped() -> None:
    schedule, first = ahead()
    Schedule.objects.filter(pk=schedule.pk).update(ends_at=first)
    look()
    skip_occurrence("tick", first)
    pass_by(HOUR)
    assert outcomes(schedule) == [(0, "skipped")]
    assert next_due(schedule) is None


def test_thirty_skipped_due_times_in_a_row_leave_a_tick_each() -> None:
    schedule, first = ahead()
    for number in range(1, 31):
        skip_occurrence("tick", first + number * HOUR)
    pass_by(31 * HOUR)
    assert outcomes(schedule) == [(0, "fired"), *((n, "skipped") for n in range(1, 31))]


# Moved


@pytest.mark.parametrize("by", [-20 * MINUTE, 20 * MINUTE, 100 * MINUTE])
def test_a_moved_due_time_fires_at_its_new_time_once(by: dt.timedelta) -> None:
    schedule, first = ahead()
    second = first + HOUR
    move_occurrence("tick", second, second + by, reason="release")
    pass_by(HOUR + MINUTE)  # the first was half an hour ahead
    assert outcomes(schedule) == [(0, "fired")]
    second -= HOUR + MINUTE
    pass_by(second + by - MINUTE - run_sql("SELECT now()")[0][0])
    assert 1 not in dict(outcomes(schedule))
    pass_by(2 * MINUTE)
    ticks = {tick.due_at: tick for tick in Tick.objects.all()}
    tick = ticks[start_of(schedule) + HOUR]
    job = Job.objects.get(pk=tick.job_id)
    assert tick.outcome == "fired"
    assert tick.late_seconds < 3_600  # of the new time
    assert re.fullmatch("moved to .* UTC: release", tick.reason)
    assert (job.status, job.scheduled_for) == ("ready", tick.due_at)
    pass_by(3 * HOUR)
    numbers = [number for number, outcome in outcomes(schedule) if outcome == "fired"]
    assert len(numbers) == len(set(numbers)) == Job.objects.count()


def test_a_move_to_an_earlier_time_wakes_and_one_to_a_later_does_not() -> None:
    schedule, first = ahead()
    move_occurrence("tick", first + 5 * HOUR, first - 10 * MINUTE)
    assert next_due(schedule) == first - 10 * MINUTE
    assert Scheduling().look() <= 1200
    move_occurrence("tick", first + 5 * HOUR, first + 6 * HOUR)
    assert next_due(schedule) == first
    move_occurrence("tick", first, first + 2 * HOUR + MINUTE)
    assert next_due(schedule) == first + HOUR


def test_a_move_to_before_the_start_and_to_behind_the_end_fires() -> None:
    schedule, first = ahead()
    Schedule.objects.filter(pk=schedule.pk).update(ends_at=first + HOUR)
    look()
    move_occurrence("tick", first, first - 20 * MINUTE)
    move_occurrence("tick", first + HOUR, first + 5 * HOUR)
    pass_by(15 * MINUTE)
    assert outcomes(schedule) == [(0, "fired")]
    assert next_due(schedule) == start_of(schedule) + 5 * HOUR
    pass_by(6 * HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "fired")]
    assert next_due(schedule) is None
    assert schedule.state_at(run_sql("SELECT now()")[0][0]) == "ended"


def test_two_due_times_at_one_moment_leave_a_tick_each() -> None:
    schedule, first = ahead()
    move_occurrence("tick", first, first + HOUR)
    pass_by(HOUR)
    assert outcomes(schedule) == []
    pass_by(HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "fired")]
    pass_by(HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "fired"), (2, "fired")]


@pytest.mark.parametrize(
    ("overlap", "first_of", "second_of"),
    [("skip", "fired", "skipped_overlap"), ("allow", "fired", "fired")],
)
def test_of_two_due_times_at_one_moment_the_policy_decides_about_the_second(
    overlap: str, first_of: str, second_of: str
) -> None:
    schedule, first = ahead(overlap=overlap)
    move_occurrence("tick", first, first + HOUR)
    pass_by(2 * HOUR)
    assert outcomes(schedule) == [(0, first_of), (1, second_of)]


def test_a_due_time_that_is_moved_to_a_skipped_one_fires() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first + HOUR)
    move_occurrence("tick", first, first + HOUR)
    pass_by(2 * HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "skipped")]


@pytest.mark.parametrize(
    "policy, limit, expected",
    [
        ("latest", None, {0: "skipped_late", 1: "skipped_late", 2: "fired", 3: "skipped_late"}),
        ("skip", None, dict.fromkeys(range(4), "skipped_late")),
        ("at_most", 2, {0: "skipped_late", 1: "skipped_late", 2: "fired", 3: "fired"}),
        ("window", 4 * 3600.0, dict.fromkeys(range(4), "fired")),
        ("window", 1500.0, {0: "skipped_late", 1: "skipped_late", 2: "fired", 3: "skipped_late"}),
    ],
)
def test_a_worker_that_was_down_at_the_new_time_makes_up_for_it_by_the_policy(
    policy: str, limit: float | None, expected: dict[int, str]
) -> None:
    schedule, first = ahead(catch_up=policy, catch_up_limit=limit)
    move_occurrence("tick", first + 2 * HOUR, first + 3 * HOUR + 10 * MINUTE)
    pass_by(4 * HOUR - MINUTE)  # the moved one is 19 minutes late, and the last 29
    assert dict(outcomes(schedule)) == expected


def test_a_moved_due_time_counts_for_the_overlap() -> None:
    schedule, first = ahead(overlap="skip")
    move_occurrence("tick", first, first + HOUR)
    pass_by(2 * HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "skipped_overlap")]


def test_a_maximum_of_jobs_counts_a_moved_one_when_it_fires() -> None:
    schedule, first = ahead(max_jobs=2)
    move_occurrence("tick", first, first + 80 * MINUTE)
    pass_by(100 * MINUTE)
    assert outcomes(schedule) == [(1, "fired")]
    pass_by(30 * MINUTE)
    pass_by(HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "fired")]
    assert next_due(schedule) is None


def test_a_moved_due_time_that_comes_while_the_schedule_is_paused_is_not_made_up_for() -> None:
    schedule, first = ahead()
    move_occurrence("tick", first, first + 5 * MINUTE)
    move_occurrence("tick", first + HOUR, first + 4 * HOUR)
    schedule_operations.pause([schedule.pk])
    let_pass(3 * HOUR)
    schedule_operations.resume([schedule.pk])
    look()
    assert outcomes(schedule) == []
    pass_by(2 * HOUR)
    assert outcomes(schedule)[0] == (1, "fired")
    assert 0 not in dict(outcomes(schedule))


def test_an_exception_can_be_written_while_the_schedule_is_paused() -> None:
    schedule, first = ahead()
    schedule_operations.pause([schedule.pk])
    skip_occurrence("tick", first + HOUR)
    move_occurrence("tick", first, first - 10 * MINUTE)
    assert next_due(schedule) is None
    schedule_operations.resume([schedule.pk])
    look()
    assert next_due(schedule) == first - 10 * MINUTE
    pass_by(2 * HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "skipped")]


@pytest.mark.django_db(transaction=True)
def test_two_workers_fire_a_moved_due_time_once() -> None:
    schedule, first = ahead()
    move_occurrence("tick", first + HOUR, first + 5 * MINUTE)
    let_pass(40 * MINUTE)
    in_threads(4, lambda _: look())
    assert outcomes(schedule) == [(0, "skipped_late"), (1, "fired")]
    assert Job.objects.count() == 1


# A payload


def test_a_due_time_can_have_another_payload_also_after_it_was_moved() -> None:
    schedule, first = ahead(job_type="app.add", payload={"first": 1})
    change_occurrence("tick", first, {"first": 5, "second": 6}, by="ann")
    pass_by(HOUR)
    pass_by(HOUR)
    payloads = list(Job.objects.order_by("pk").values_list("payload", flat=True))
    assert payloads == [{"first": 5, "second": 6}, {"first": 1}]
    assert Tick.objects.earliest("due_at").reason == "with another payload by ann"
    third = next_due(schedule)
    assert third is not None
    change_occurrence("tick", third, {"first": 7})
    move_occurrence("tick", third, third + 10 * MINUTE)
    pass_by(HOUR)
    assert Job.objects.latest("pk").payload == {"first": 7}


@pytest.mark.parametrize("payload", ['{"gone": 1}', "[]", "null", "1" + "0" * 5000])
def test_a_payload_that_the_handler_does_not_take_is_an_error_of_the_schedule(payload: str) -> None:
    schedule, first = ahead(job_type="app.add", payload={"first": 1})
    change_occurrence("tick", first, {"first": 5})
    run_sql("UPDATE django_jobs_scheduleexception SET payload = %s", [payload])
    pass_by(HOUR)
    schedule.refresh_from_db()
    assert "app.add" in schedule.error
    assert not Job.objects.exists()


# Undone


def test_a_restored_due_time_comes_by_its_rule() -> None:
    schedule, first = ahead()
    move_occurrence("tick", first, first + 30 * MINUTE)
    skip_occurrence("tick", first + HOUR)
    assert next_due(schedule) == first + 30 * MINUTE
    restore_occurrence("tick", first)
    assert next_due(schedule) == first
    restore_occurrence("tick", first + HOUR)
    pass_by(HOUR)
    pass_by(HOUR)
    assert outcomes(schedule) == [(0, "fired"), (1, "fired")]
    assert not ScheduleException.objects.exists()


@pytest.mark.parametrize("hours", [1, 9, 60])
def test_one_that_was_moved_can_be_skipped_after_its_due_time(hours: int) -> None:
    schedule, first = ahead()
    move_occurrence("tick", first, first + 70 * HOUR)
    let_pass(hours * HOUR)
    skip_occurrence("tick", start_of(schedule), by="ann", reason="too late")
    assert outcomes(schedule) == [(0, "skipped")]
    assert Tick.objects.get().reason == "skipped by ann: too late"
    pass_by(80 * HOUR)
    assert dict(outcomes(schedule))[0] == "skipped"
    assert Tick.objects.filter(due_at=start_of(schedule)).count() == 1


# Edits


def test_an_edit_of_the_rule_keeps_exceptions_and_one_of_no_due_time_does_nothing() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first + HOUR)
    move_occurrence("tick", first + 2 * HOUR, first + 5 * MINUTE)
    schedule.refresh_from_db()
    schedule.every = 7200.0  # due at 0, 2 and 4
    schedule.save()
    look()
    assert ScheduleException.objects.count() == 2
    (row,) = due.lock([schedule.pk])
    assert [change.due for change in row.rule.strays(row.now)] == [first + HOUR]
    pass_by(40 * MINUTE)
    pass_by(3 * HOUR)
    assert outcomes(schedule) == [(0, "skipped_late"), (2, "fired")]
    pass_by(HOUR)
    assert dict(outcomes(schedule))[4] == "fired"


def test_a_migrate_keeps_the_exceptions_of_a_declared_schedule() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first)
    Schedule.objects.update(declared=True)
    synchronise("default")
    schedule.refresh_from_db()
    assert not schedule.enabled
    assert ScheduleException.objects.count() == 1


def test_a_deleted_schedule_takes_its_exceptions_with_it() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first)
    schedule_operations.delete(schedule)
    assert not ScheduleException.objects.exists()


def test_a_backfill_makes_the_job_of_a_skipped_due_time_and_no_second_of_a_moved_one() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first)
    move_occurrence("tick", first + HOUR, first + 10 * HOUR)
    pass_by(2 * HOUR)
    begin = start_of(schedule)
    ((now,),) = run_sql("SELECT now()")
    assert schedule_operations.backfill_times(schedule, begin, now) == [begin, begin + HOUR]
    row = schedule_operations.backfill(schedule, begin, now, request_of, by="ann")
    assert row.job_count == 2
    pass_by(9 * HOUR)
    assert dict(outcomes(schedule))[1] == "fired"
    ticks = Tick.objects.filter(due_at=start_of(schedule) + HOUR)
    assert [tick.backfill_id for tick in ticks] == [row.pk]


# Clocks


PARIS = {"cron": "30 2 * * *", "timezone": "Europe/Paris", "every": None, "dst": "twice"}
FIRST_PASS = dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
def test_the_two_due_times_of_a_repeated_hour_have_exceptions_of_their_own(zone: str) -> None:
    second_pass = FIRST_PASS + HOUR
    schedule = Schedule.objects.create(name="tick", job_type="app.noop", **PARIS)
    Schedule.objects.filter(pk=schedule.pk).update(next_due_at=FIRST_PASS, stale=False)
    ScheduleException.objects.create(schedule=schedule, due_at=second_pass, skipped=True)
    ScheduleException.objects.create(
        schedule=schedule, due_at=FIRST_PASS, moved_to=second_pass + MINUTE
    )
    with rows_in(zone), transaction.atomic():
        for passed in (2 * HOUR, 3 * HOUR):
            rows = due.lock([schedule.pk])
            for row in rows:
                row.now = FIRST_PASS + passed
            fire(rows)
    ticks = Tick.objects.order_by("due_at").values_list("due_at", "outcome")
    assert list(ticks) == [(FIRST_PASS, "fired"), (second_pass, "skipped")]


@pytest.mark.parametrize("rule", [{"every": 3600.0}, {"every": None, "cron": "0 * * * *"}])
def test_arming_and_firing_take_moves_of_crons_and_intervals_into_account(
    rule: dict[str, Any],
) -> None:
    schedule = Schedule.objects.create(name="tick", job_type="app.noop", **rule)
    noon = dt.datetime(2099, 7, 1, 12, tzinfo=dt.UTC)
    ScheduleException.objects.create(
        schedule=schedule, due_at=noon + 3 * HOUR, moved_to=noon + 5 * MINUTE
    )
    with transaction.atomic():
        (row,) = due.lock([schedule.pk])
        row.now = noon
        arm([row])
        assert next_due(schedule) == noon + 5 * MINUTE
        (row,) = due.lock([schedule.pk])
        row.now = noon + 6 * MINUTE
        fire([row])
    assert Tick.objects.get().due_at == noon + 3 * HOUR
    assert Job.objects.get().available_at == noon + 5 * MINUTE
    assert next_due(schedule) == noon + HOUR


# What it costs


def test_exceptions_cost_no_further_statement() -> None:
    def statements() -> int:
        let_pass(HOUR)
        with CaptureQueriesContext(connection) as queries:
            Scheduling().look()
        return len(queries)

    schedule, _first = ahead()
    statements()
    without = statements()
    start = start_of(schedule)
    skip_occurrence("tick", start + 3 * HOUR)
    move_occurrence("tick", start + 2 * HOUR, start + 2 * HOUR - MINUTE)
    with_them = statements()
    assert with_them == without
    assert dict(outcomes(schedule))[2] == "fired"


def test_old_exceptions_are_not_read_and_go_with_the_ticks() -> None:
    schedule, first = ahead()
    skip_occurrence("tick", first)
    pass_by(3 * HOUR)
    (row,) = due.lock([schedule.pk])
    assert len(row.rule.changes) == 1  # other time zone tables may bring it back
    pass_by(24 * HOUR)
    (row,) = due.lock([schedule.pk])
    assert row.rule.changes == ()
    skip_occurrence("tick", start_of(schedule) + 40 * HOUR)
    assert prune_old(PRUNE_EXCEPTIONS, older_than=90 * 86_400.0) == 0
    assert prune_old(PRUNE_EXCEPTIONS, older_than=3600.0) == 1
    assert ScheduleException.objects.get().due_at == start_of(schedule) + 40 * HOUR


@pytest.mark.parametrize("at", ["infinity", "12000-01-01 00:00+00", "-infinity"])
def test_an_exception_at_a_time_that_python_cannot_represent_does_nothing(at: str) -> None:
    schedule, first = ahead()
    row = ScheduleException.objects.create(schedule=schedule, due_at=first, moved_to=first + HOUR)
    run_sql("UPDATE django_jobs_scheduleexception SET moved_to = %s", [at])
    ScheduleException.objects.create(schedule=schedule, due_at=first + HOUR, skipped=True)
    run_sql("UPDATE django_jobs_scheduleexception SET due_at = %s WHERE id <> %s", [at, row.pk])
    look()
    run_sql("UPDATE django_jobs_schedule SET starts_at = now(), next_due_at = now(), stale = false")
    look()
    assert outcomes(schedule) == [(0, "fired")]
