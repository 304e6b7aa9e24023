"""What a person asks of schedules: pause, resume, run now, backfill."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction

from django_jobs.api.schedules import request_of
from django_jobs.exceptions import OperationRefused, PayloadError, QueueFull
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Backfill, Job, Queue, Schedule, Tick
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    due_schedule,
    in_threads,
    listening,
    look,
    make_user,
    overdue,
    register_worker,
    run_sql,
)

from .test_jobs import wait_for_a_blocked_session

pytestmark = pytest.mark.django_db

HOUR = dt.timedelta(hours=1)


def now() -> dt.datetime:
    found: dt.datetime = run_sql("SELECT now()")[0][0]
    return found


def due_times(schedule: Schedule, hours: int) -> tuple[dt.datetime, dt.datetime]:
    """From its first due time to the one so many hours later."""
    assert schedule.starts_at is not None
    return schedule.starts_at, schedule.starts_at + hours * HOUR


# Permissions


VERBS: dict[str, tuple[str, Callable[[Schedule, Any], object]]] = {
    "pause": (
        "pause_schedule",
        lambda row, actor: schedule_operations.pause([row.pk], actor=actor),
    ),
    "resume": (
        "pause_schedule",
        lambda row, actor: schedule_operations.resume([row.pk], actor=actor),
    ),
    "run_now": (
        "run_schedule",
        lambda row, actor: schedule_operations.run_now([row.pk], request_of, actor=actor),
    ),
    "backfill": (
        "backfill_schedule",
        lambda row, actor: schedule_operations.backfill(
            row, *due_times(row, 1), request_of, actor=actor
        ),
    ),
    "cancel_backfill": (
        "backfill_schedule",
        lambda row, actor: schedule_operations.cancel_backfill(row.backfills.get(), actor=actor),
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_action_checks_its_permission_again(verb: str) -> None:
    permission, act = VERBS[verb]
    schedule = overdue(3.5)
    schedule.backfills.create(begins_at=now(), ends_at=now())
    before = Schedule.objects.values().get(pk=schedule.pk)
    others = {needed for needed, _ in VERBS.values()} - {permission}
    with pytest.raises(PermissionDenied, match=f"olga lacks .*{permission}"):
        act(schedule, make_user(*others))
    assert Schedule.objects.values().get(pk=schedule.pk) == before
    assert not Job.objects.exists()
    act(schedule, make_user(permission, name="otto"))
    act(schedule, None)


# Pause and resume


def test_a_paused_schedule_fires_nothing_until_resumed() -> None:
    schedule, other = overdue(3.5), overdue(3.5, name="other")
    assert schedule_operations.pause([schedule.pk, 0], reason="too loud") == ["tick"]
    assert schedule_operations.pause([schedule.pk]) == []
    look()
    assert set(Job.objects.values_list("schedule_id", flat=True)) == {other.pk}
    schedule.refresh_from_db()
    assert (schedule.paused_reason, schedule.next_due_at) == ("too loud", None)
    assert schedule_operations.resume([schedule.pk, other.pk]) == ["tick"]
    look()
    schedule.refresh_from_db()
    assert (schedule.paused_at, schedule.paused_reason) == (None, "")
    assert schedule.next_due_at is not None
    assert schedule.next_due_at > now()
    assert not Tick.objects.filter(schedule=schedule).exists()


@pytest.mark.django_db(transaction=True)
def test_a_pause_that_another_session_commits_first_keeps_its_reason() -> None:
    schedule = due_schedule()

    def pause(reason: str) -> list[str]:
        try:
            return schedule_operations.pause([schedule.pk], reason=reason)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            assert schedule_operations.pause([schedule.pk], reason="too loud") == ["tick"]
            later = threads.submit(pause, "too late")
            wait_for_a_blocked_session()
        assert later.result() == []
    schedule.refresh_from_db()
    assert schedule.paused_reason == "too loud"


def test_a_pause_without_a_reason_names_the_operator() -> None:
    schedule = due_schedule()
    schedule_operations.pause([schedule.pk], actor=make_user("pause_schedule"))
    schedule.refresh_from_db()
    assert schedule.paused_reason == "paused by olga"
    schedule_operations.resume([schedule.pk])
    schedule_operations.pause([schedule.pk], reason="x" * 1000)
    schedule.refresh_from_db()
    assert schedule.paused_reason == "x" * 300


def test_a_resume_clears_the_error() -> None:
    schedule = due_schedule(queue="nowhere")
    look()
    assert schedule_operations.resume([schedule.pk]) == ["tick"]
    look()
    schedule.refresh_from_db()
    assert schedule.error == ""
    assert schedule.next_due_at is not None


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_of_a_change_after_its_commit() -> None:
    schedule = due_schedule()
    with listening() as notified:
        schedule_operations.pause([schedule.pk])
        assert notified() == [":schedules"]


# Run now


def test_run_now_ignores_the_rule_and_the_policies() -> None:
    schedule = due_schedule()
    look()
    schedule_operations.pause([schedule.pk])
    (job,) = schedule_operations.run_now([schedule.pk], request_of, actor=make_user("run_schedule"))
    made = Job.objects.get(pk=job)
    assert (made.status, made.schedule_id) == ("ready", schedule.pk)
    tick = Tick.objects.get(job=job)
    assert (tick.reason, tick.due_at) == ("run now by olga", made.scheduled_for)
    assert len(schedule_operations.run_now([schedule.pk, 0], request_of)) == 1
    assert Job.objects.count() == 3


def test_a_refused_run_now_makes_no_job() -> None:
    good = due_schedule(name="good")
    bad = due_schedule(name="bad", payload={"n": 1})
    with pytest.raises(PayloadError):
        schedule_operations.run_now([good.pk, bad.pk], request_of)
    assert not Job.objects.exists()
    assert not Tick.objects.exists()


# Backfill


def test_a_backfill_makes_a_job_for_each_due_time_only_once() -> None:
    schedule = overdue(5.5)
    begin, end = due_times(schedule, 4)
    expected = [begin + number * HOUR for number in range(5)]
    assert schedule_operations.backfill_times(schedule, begin, end) == expected
    row = schedule_operations.backfill(
        schedule, begin, end, request_of, actor=make_user("backfill_schedule")
    )
    assert (row.job_count, row.requested_by, row.begins_at, row.ends_at) == (5, "olga", begin, end)
    jobs = Job.objects.order_by("id")
    assert list(jobs.values_list("scheduled_for", flat=True)) == expected
    assert set(jobs.values_list("schedule_id", "status")) == {(None, "ready")}
    assert set(Tick.objects.values_list("backfill", "outcome")) == {(row.pk, "fired")}
    assert schedule_operations.backfill_times(schedule, begin, end) == []
    assert schedule_operations.backfill(schedule, begin, end, request_of).job_count == 0
    assert Job.objects.count() == 5


def test_jobs_with_gates_of_a_backfill_begin_blocked() -> None:
    schedule = overdue(5.5, job_type="app.charge_account", payload={"account_id": 7})
    row = schedule_operations.backfill(schedule, *due_times(schedule, 1), request_of)
    assert row.job_count == 2
    jobs = Job.objects.values_list("status", "concurrency_key", "resources")
    assert list(jobs) == [("blocked", "account:7", None)] * 2


def test_only_a_backfill_makes_jobs_for_skipped_due_times() -> None:
    schedule = overdue(3.5)
    look()
    begin, end = due_times(schedule, 3)
    assert Counter(Tick.objects.values_list("outcome", flat=True)) == {
        "skipped_late": 3,
        "fired": 1,
    }
    assert schedule_operations.backfill(schedule, begin, end, request_of).job_count == 3
    assert set(Tick.objects.values_list("outcome", flat=True)) == {"fired"}
    Schedule.objects.filter(pk=schedule.pk).update(next_due_at=begin, catch_up="window")
    Schedule.objects.filter(pk=schedule.pk).update(catch_up_limit=1e9, overlap="allow")
    look()
    assert Job.objects.count() == 4


def test_the_overlap_policy_does_not_count_a_backfill() -> None:
    schedule = overdue(3.5)
    schedule_operations.backfill(schedule, *due_times(schedule, 2), request_of)
    look()
    assert Job.objects.filter(schedule=schedule).count() == 1


def test_two_at_once_backfill_each_due_time_once(transactional_db: None) -> None:
    schedule = overdue(20.5)
    rows = in_threads(
        4,
        lambda number: (
            schedule_operations.backfill(schedule, *due_times(schedule, 19), request_of).job_count
        ),
    )
    assert sorted(rows) == [0, 0, 0, 20]
    assert Job.objects.count() == 20


def test_a_backfill_is_cancelled_as_one() -> None:
    schedule = overdue(4.5)
    look()
    row = schedule_operations.backfill(schedule, *due_times(schedule, 4), request_of)
    assert row.job_count == 4
    run_sql("UPDATE django_jobs_job SET rank = rank + 1000 WHERE schedule_id IS NOT NULL")
    (held,) = claim_ready(register_worker(), limit=1)
    report = schedule_operations.cancel_backfill(row, actor=make_user("backfill_schedule"))
    assert (len(report.done), report.asked) == (4, [held.id])
    statuses = Counter(Job.objects.values_list("status", flat=True))
    assert statuses == {"cancelled": 3, "running": 1, "ready": 1}
    reason = Job.objects.filter(status="cancelled").values_list("reason", flat=True).first()
    assert reason == f"backfill {row.pk} cancelled by olga"
    row.refresh_from_db()
    first = row.cancelled_at
    assert first is not None
    schedule_operations.cancel_backfill(row)
    row.refresh_from_db()
    assert row.cancelled_at == first
    ticks = Counter(Tick.objects.filter(backfill=row).values_list("outcome", flat=True))
    assert ticks == {"suppressed": 3, "fired": 1}  # one runs on until it stops
    again = schedule_operations.backfill(schedule, *due_times(schedule, 4), request_of)
    assert again.job_count == 3
    assert Job.objects.filter(status="ready", schedule_id=None).count() == 3


def test_a_range_before_the_epoch_is_refused() -> None:
    schedule = overdue(1.5)
    begin = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    with pytest.raises(OperationRefused, match="begin in 1970 or later"):
        schedule_operations.backfill_times(schedule, begin, begin)


def test_ten_thousand_are_backfilled_and_more_are_refused() -> None:
    schedule = overdue(24 * 365, every=60.0)
    begin, _ = due_times(schedule, 0)
    minutes = dt.timedelta(minutes=9_999)
    with pytest.raises(OperationRefused, match="more than 10,000 due times"):
        schedule_operations.backfill(schedule, begin, begin + minutes + HOUR, request_of)
    with pytest.raises(OperationRefused, match="more than 10,000 due times"):
        schedule_operations.backfill_times(schedule, begin, begin + 8_000 * HOUR)
    assert not Backfill.objects.exists()
    assert (
        schedule_operations.backfill(schedule, begin, begin + minutes, request_of).job_count
        == 10_000
    )
    assert Job.objects.count() == 10_000


@pytest.mark.parametrize(
    "begin, end, problem",
    [
        (-2, 1, "must be in the past"),
        (-1, -2, "ends before it begins"),
    ],
)
def test_an_invalid_range_is_refused(begin: int, end: int, problem: str) -> None:
    schedule = overdue(5.5)
    with pytest.raises(OperationRefused, match=problem):
        schedule_operations.backfill(schedule, now() + begin * HOUR, now() + end * HOUR, request_of)
    naive = dt.datetime(2020, 1, 1)
    with pytest.raises(OperationRefused, match="time zone"):
        schedule_operations.backfill_times(schedule, naive, now())


def test_a_backfill_of_a_deleted_schedule_or_a_full_queue_makes_nothing() -> None:
    schedule = overdue(5.5, queue="bulk")
    Queue.objects.filter(name="bulk").update(max_backlog=1)
    noop.using(queue="bulk").enqueue()
    with pytest.raises(QueueFull):
        schedule_operations.backfill(schedule, *due_times(schedule, 2), request_of)
    gone = Schedule.objects.get(pk=schedule.pk)
    schedule.delete()
    with pytest.raises(OperationRefused, match="deleted"):
        schedule_operations.backfill(gone, *due_times(gone, 2), request_of)
    assert not Backfill.objects.exists()
    assert Job.objects.count() == 1


@pytest.mark.parametrize("minutes", [-30, 0, 30])
def test_the_range_of_a_backfill_may_begin_or_end_in_a_repeated_hour(minutes: int) -> None:
    change = dt.datetime(2024, 10, 27, 1, tzinfo=dt.UTC)
    schedule = due_schedule(every=None, cron="*/30 * * * *", starts_at=None)
    bound, zone = change + dt.timedelta(minutes=minutes), ZoneInfo("Europe/Berlin")
    for span in ((bound, change + HOUR), (change - HOUR, bound), (bound, bound)):
        begin, end = (at.astimezone(zone) for at in span)
        found = schedule_operations.backfill_times(schedule, begin, end)
        assert found == schedule_operations.backfill_times(schedule, *span)
