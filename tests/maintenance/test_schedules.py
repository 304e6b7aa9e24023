"""Schedules are fired: once each due time, by whatever worker looks first."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from django_jobs.domain.due_times import stretches
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.schedules.due import take_due
from django_jobs.maintenance.schedules import BATCH, COMPARE_SECONDS, Scheduling
from django_jobs.models import Job, Schedule, Tick
from tests.app.jobs import noop, tell_due_time
from tests.factories import (
    claim_ready,
    declared,
    due_schedule,
    look,
    overdue,
    register_worker,
    rows_in,
    run_sql,
)
from tests.moments import moment
from tests.worker.attempts import Desk

pytestmark = pytest.mark.django_db

HOUR = dt.timedelta(hours=1)
YEAR = dt.datetime(2025, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def outcomes(schedule: Schedule) -> list[str]:
    """Of its due times, oldest first; those that fired with their job's status."""
    statuses = dict(Job.objects.values_list("pk", "status"))
    ticks = Tick.objects.filter(schedule=schedule).order_by("due_at")
    return [
        f"{tick.outcome} {statuses[tick.job_id]}" if tick.job_id else tick.outcome for tick in ticks
    ]


def due_again(schedule: Schedule) -> None:
    """As if another of its due times had come."""
    with transaction.atomic():
        run_sql(
            "UPDATE django_jobs_schedule SET next_due_at = next_due_at - interval '1 h',"
            " starts_at = starts_at - interval '1 h', stale = false WHERE id = %s",
            [schedule.pk],
        )
        # By way of another century: in an unlucky order of the rows, one would come before the
        # tick an hour earlier has gone, and two of one time are refused.
        for moved in ("- interval '100 y'", "+ interval '100 y' - interval '1 h'"):
            run_sql(
                f"UPDATE django_jobs_tick SET due_at = due_at {moved} WHERE schedule_id = %s",
                [schedule.pk],
            )
        run_sql(
            "UPDATE django_jobs_job SET idempotency_key = 'of job ' || id WHERE schedule_id = %s",
            [schedule.pk],
        )


def come_due(schedule: Schedule, times: int = 1) -> None:
    """As if so many more of its due times had come."""
    for _ in range(times):
        due_again(schedule)
        look()


# Firing


def test_a_due_time_makes_one_job_and_one_tick_and_moves_on() -> None:
    schedule = due_schedule()
    was_due = schedule.next_due_at
    assert was_due is not None
    assert Scheduling().look() == 0.0
    tick = Tick.objects.get()
    job = Job.objects.get()
    assert (tick.schedule_id, tick.outcome, tick.job_id) == (schedule.pk, "fired", job.pk)
    assert tick.due_at == job.scheduled_for == was_due
    assert (job.status, job.queue, job.schedule_id) == ("ready", "default", schedule.pk)
    schedule.refresh_from_db()
    assert schedule.last_due_at == was_due
    assert schedule.next_due_at == was_due + HOUR
    assert 0.0 < Scheduling().look() <= 3600.0
    assert Job.objects.count() == 1


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("rule", [{"cron": "*/15 * * * *"}, {"every": 900.0}])
def test_due_times_in_a_repeated_hour_of_the_rows_fire(zone: str, rule: dict[str, Any]) -> None:
    changes = stretches(zone, *YEAR)
    (back,) = [change.begin for change in changes if change.offset < change.before]
    bounds = {"starts_at": back - HOUR, "ends_at": back + HOUR}
    schedule = due_schedule(
        **bounds, **{"every": None, **rule}, catch_up="at_most", catch_up_limit=100, overlap="allow"
    )
    first = {"next_due_at": back - HOUR, "stale": False}
    Schedule.objects.filter(pk=schedule.pk).update(**first)
    with rows_in(zone):
        look()
    schedule.refresh_from_db()
    assert (schedule.error, outcomes(schedule)) == ("", ["fired ready"] * 9)
    due = [back - HOUR + number * HOUR / 4 for number in range(9)]
    assert list(Tick.objects.order_by("due_at").values_list("due_at", flat=True)) == due


def test_a_fired_job_has_the_options_of_its_type_queue_and_schedule() -> None:
    run_sql("UPDATE django_jobs_queue SET priority_weight = 7 WHERE name = 'bulk'")
    fields = {"job_type": "app.add", "payload": {"first": 3}, "queue": "bulk", "priority": 9}
    schedule = due_schedule(**fields)
    look()
    job = Job.objects.get()
    assert (job.job_type, job.payload, job.queue, job.priority) == (
        *("app.add", {"first": 3}, "bulk", 9),
    )
    assert (job.max_attempts, job.timeout, job.max_crashes) == (2, 60, 3)
    assert (job.attempt, job.failures, job.headers, job.expires_at) == (0, 0, {}, None)
    assert job.rank == pytest.approx(job.available_at.timestamp() - 9 * 7)
    assert job.scheduled_for == schedule.next_due_at


def test_a_job_type_may_have_a_maximum_age_and_a_queue() -> None:
    with declared(aged, name="app.aged", queue="bulk", max_age=Decimal(60)):
        due_schedule(job_type="app.aged")
        look()
    job = Job.objects.get()
    assert job.queue == "bulk"
    assert job.expires_at == job.available_at + dt.timedelta(seconds=60)


def aged() -> None:
    """A handler."""


def test_the_key_of_a_job_follows_from_its_schedule_and_its_due_time() -> None:
    schedule = due_schedule()
    look()
    assert schedule.next_due_at is not None
    due = schedule.next_due_at.astimezone(dt.UTC).isoformat()
    assert Job.objects.get().idempotency_key == f"schedule/{schedule.pk}/{due}"


def test_a_handler_gets_the_due_time_of_its_schedule() -> None:
    schedule = due_schedule(job_type=tell_due_time.name)
    look()
    (held,) = claim_ready(register_worker())
    ended = Desk().make(held)
    assert isinstance(ended, Succeeded)
    assert schedule.next_due_at is not None
    assert json.loads(ended.result or "") == schedule.next_due_at.isoformat()


def test_a_tick_stores_its_delay() -> None:
    due_schedule(seconds_ago=40)
    with moment() as now:
        look()
    tick = Tick.objects.get()
    assert tick.late_seconds in now.since(tick.due_at)


def test_jitter_delays_each_job_by_a_fixed_share() -> None:
    # So long that none of the forty is put off by less than the test takes.
    longest = 1e7
    names = [f"spread {n}" for n in range(40)]
    schedules = [due_schedule(name=name, jitter_seconds=longest) for name in names]
    look()
    delays = {}
    for job in Job.objects.all():
        assert job.scheduled_for is not None
        delays[job.schedule_id] = (job.available_at - job.scheduled_for).total_seconds()
    assert all(0 <= delay <= longest for delay in delays.values())
    assert min(delays.values()) < longest / 4
    assert max(delays.values()) > longest * 3 / 4
    assert set(Job.objects.values_list("status", flat=True)) == {"scheduled"}
    before = dict(Job.objects.values_list("idempotency_key", "available_at"))
    run_sql("DELETE FROM django_jobs_job")
    run_sql("DELETE FROM django_jobs_tick")
    for schedule in schedules:
        Schedule.objects.filter(pk=schedule.pk).update(next_due_at=schedule.next_due_at)
    look()
    assert dict(Job.objects.values_list("idempotency_key", "available_at")) == before


def test_a_look_takes_a_batch_and_says_that_there_is_more() -> None:
    ((half_an_hour_ago,),) = run_sql("SELECT now() - interval '30 minutes'")  # not on the hour
    rows = [
        Schedule(name=f"many {n}", job_type="app.noop", every=3600.0, starts_at=half_an_hour_ago)
        for n in range(BATCH + 20)
    ]
    Schedule.objects.bulk_create(rows)
    assert Scheduling().look() == 0.0
    assert Schedule.objects.filter(stale=True).count() == 20
    look()
    run_sql("UPDATE django_jobs_schedule SET next_due_at = starts_at")
    assert Scheduling().look() == 0.0
    assert Job.objects.count() == BATCH
    look()
    assert Job.objects.count() == Tick.objects.count() == BATCH + 20


def test_without_schedules_there_is_nothing_to_wait_for() -> None:
    assert Scheduling().look() == COMPARE_SECONDS


def test_a_schedule_of_an_unknown_job_type_is_left_to_other_workers() -> None:
    schedule = due_schedule(job_type="elsewhere.only")
    due_schedule(name="known")
    look()
    schedule.refresh_from_db()
    assert (schedule.error, Job.objects.get().schedule.name) == ("", "known")
    assert schedule.next_due_at is not None
    with declared(aged, name="elsewhere.only"):
        look()
    assert outcomes(schedule) == ["fired ready"]


# What was missed


@pytest.mark.parametrize(
    "policy, limit, expected",
    [
        ("latest", None, ["skipped_late", "skipped_late", "skipped_late", "fired ready"]),
        ("skip", None, ["skipped_late"] * 4),
        ("at_most", 2, ["skipped_late", "skipped_late", "fired ready", "fired ready"]),
        ("window", 2.5 * 3600, ["skipped_late", "fired ready", "fired ready", "fired ready"]),
    ],
)
def test_after_an_outage_the_catch_up_policy_decides(
    policy: str, limit: float | None, expected: list[str]
) -> None:
    schedule = overdue(3.1, catch_up=policy, catch_up_limit=limit, overlap="allow")
    with moment() as now:
        look()
    assert outcomes(schedule) == expected
    schedule.refresh_from_db()
    assert schedule.last_due_at == Tick.objects.latest("due_at").due_at
    late = Tick.objects.filter(outcome="skipped_late").earliest("due_at")
    assert late.reason.startswith("seen 3:0")
    assert late.late_seconds in now.since(late.due_at)
    fired = Tick.objects.filter(outcome="fired").order_by("due_at").values_list("due_at")
    assert list(Job.objects.order_by("id").values_list("scheduled_for")) == list(fired)


def test_a_job_for_an_old_due_time_does_not_overtake_waiting_ones() -> None:
    noop.enqueue()
    overdue(500, catch_up="window", catch_up_limit=1e9, overlap="allow")
    look()
    assert Job.objects.count() > 500
    first = Job.objects.order_by("rank", "id").first()
    assert first is not None
    assert first.schedule_id is None


def test_of_a_year_of_missed_due_times_few_get_ticks_and_one_fires() -> None:
    schedule = overdue(24 * 365, every=60.0)
    look()
    expected = outcomes(schedule)
    assert (expected[0], expected[-1]) == ("suppressed", "fired ready")
    assert set(expected[1:-1]) == {"skipped_late"}
    assert len(expected) < 50
    assert "first of many" in Tick.objects.earliest("due_at").reason


# Edits


def test_a_rule_that_was_changed_never_fires_a_due_time_that_has_passed() -> None:
    schedule = overdue(3.1)
    schedule.every = 60.0
    schedule.save()
    look()
    assert outcomes(schedule) == []
    schedule.refresh_from_db()
    assert schedule.next_due_at is not None
    assert schedule.next_due_at > run_sql("SELECT now()")[0][0]


def test_a_rule_changed_during_a_look_is_not_fired() -> None:
    overdue(3.1)
    run_sql("UPDATE django_jobs_schedule SET stale = true")
    with transaction.atomic():
        assert take_due({"app.noop": 1}, 10) == []


def test_a_payload_changed_during_an_outage_loses_no_job() -> None:
    schedule = overdue(3.1, job_type="app.add", payload={"first": 1})
    schedule.payload = {"first": 2}
    schedule.save()
    look()
    assert outcomes(schedule)[-1] == "fired ready"
    assert Job.objects.get().payload == {"first": 2}


@pytest.mark.parametrize(
    "off, on",
    [
        ({"enabled": False}, {"enabled": True}),
        ({"ends_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, {"ends_at": None}),
        ({"starts_at": dt.datetime(2199, 1, 1, tzinfo=dt.UTC)}, {"starts_at": None}),
    ],
)
def test_due_times_while_a_schedule_was_off_are_skipped(
    off: dict[str, Any], on: dict[str, Any]
) -> None:
    schedule = overdue(3.1)
    Schedule.objects.filter(pk=schedule.pk).update(**off)
    look()
    schedule.refresh_from_db()
    assert schedule.next_due_at is None or schedule.next_due_at.year == 2199
    Schedule.objects.filter(pk=schedule.pk).update(**on)
    look()
    schedule.refresh_from_db()
    assert outcomes(schedule) == []
    assert schedule.next_due_at is not None
    assert schedule.next_due_at.year < 2199


def test_after_its_end_a_schedule_has_no_next_due_time() -> None:
    schedule = overdue(3.1, every=3600.0)
    assert schedule.next_due_at is not None
    run_sql(
        "UPDATE django_jobs_schedule SET ends_at = next_due_at + interval '90 min' WHERE id = %s",
        [schedule.pk],
    )
    look()
    schedule.refresh_from_db()
    assert outcomes(schedule) == ["skipped_late", "fired ready"]
    assert schedule.next_due_at is None
    assert Scheduling().look() == COMPARE_SECONDS
