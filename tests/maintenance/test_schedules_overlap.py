"""What the jobs that a schedule made before do to its next."""

from __future__ import annotations

import pytest
from pytest_django import DjangoCaptureOnCommitCallbacks

from django_jobs.api.schedules import request_of
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Job, Queue, Schedule, Tick
from django_jobs.signals import worker_event
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    due_schedule,
    failure,
    heard,
    look,
    overdue,
    register_worker,
    run_sql,
    settle_one,
)
from tests.maintenance.test_schedules import HOUR, come_due, outcomes
from tests.moments import moment

pytestmark = pytest.mark.django_db


def finish(schedule: Schedule, how: str) -> None:
    """The live job of ``schedule`` that is not waiting ends."""
    job = schedule.jobs.exclude(status="waiting").filter(finished_at=None).get()
    if how == "cancelled":
        job_operations.cancel([job.pk])
        return
    (held,) = claim_ready(register_worker())
    assert held.id == job.pk
    settle_one(held, failure(final=True) if how == "dead" else Succeeded())


def hold(schedule: Schedule, state: str) -> None:
    """The one live job of ``schedule`` is brought into ``state``."""
    if state == "running":
        claim_ready(register_worker())
    elif state != "ready":
        schedule.jobs.update(status=state)


LIVE = ["scheduled", "blocked", "ready", "running"]


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize(
    "policy, limit, second",
    [
        ("skip", None, "skipped_overlap"),
        ("queue_one", None, "fired waiting"),
        ("queue_all", None, "fired waiting"),
        ("allow", None, "fired ready"),
        ("allow", 2, "fired ready"),
        ("allow", 1, "skipped_overlap"),
        ("cancel", None, "fired ready"),
    ],
)
def test_while_a_job_is_live_its_policy_decides(
    state: str, policy: str, limit: int | None, second: str
) -> None:
    schedule = due_schedule(overlap=policy, overlap_limit=limit)
    look()
    hold(schedule, state)
    come_due(schedule)
    first = f"fired {state}" if policy != "cancel" or state == "running" else "fired cancelled"
    assert outcomes(schedule) == [first, second]
    if policy == "cancel" and state == "running":
        job = schedule.jobs.order_by("id").first()
        assert job is not None
        assert job.cancel_requested_at is not None
    if second == "skipped_overlap":
        assert Tick.objects.get(job=None).reason == "1 of its jobs had not ended"


@pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled"])
@pytest.mark.parametrize("policy, made", [("queue_one", 2), ("queue_all", 4)])
def test_jobs_that_wait_run_one_after_the_other(policy: str, made: int, how: str) -> None:
    schedule = due_schedule(overlap=policy)
    look()
    come_due(schedule, 3)
    for left in range(made - 1, -1, -1):
        look()
        states = list(schedule.jobs.order_by("id").values_list("status", flat=True))
        assert states == [how] * (made - 1 - left) + ["ready"] + ["waiting"] * left
        finish(schedule, how)
    look()
    assert set(schedule.jobs.values_list("status", flat=True)) == {how}


def test_a_started_waiting_job_is_ranked_by_its_start() -> None:
    schedule = due_schedule(overlap="queue_one")
    look()
    come_due(schedule)
    run_sql("UPDATE django_jobs_job SET available_at = available_at - interval '1 h', rank = 5")
    finish(schedule, "cancelled")
    before = Job.objects.get(status="waiting").available_at
    with moment() as now:
        look()
    job = Job.objects.get(status="ready")
    assert job.available_at in now
    assert job.rank == pytest.approx(5 + (job.available_at - before).total_seconds(), abs=1e-3)


def test_of_several_due_times_at_once_only_the_last_replaces() -> None:
    schedule = overdue(3.1, catch_up="at_most", catch_up_limit=3, overlap="cancel")
    look()
    assert outcomes(schedule) == [
        "skipped_late",
        "skipped_overlap",
        "skipped_overlap",
        "fired ready",
    ]


def test_a_due_time_with_a_tick_cancels_nothing_and_does_not_fire() -> None:
    schedule = due_schedule(overlap="cancel")
    look()
    due = Tick.objects.get().due_at
    Schedule.objects.filter(pk=schedule.pk).update(next_due_at=due)
    look()
    assert outcomes(schedule) == ["fired ready"]
    Tick.objects.update(outcome="skipped_overlap", job=None)
    Schedule.objects.filter(pk=schedule.pk).update(next_due_at=due)
    look()
    assert outcomes(schedule) == ["skipped_overlap"]


def test_a_full_queue_suppresses_the_due_time_and_the_schedule_continues() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=1)
    noop.using(queue="bulk").enqueue()
    schedule = due_schedule(queue="bulk", overlap="cancel")
    other = due_schedule(name="other")
    look()
    assert (outcomes(schedule), outcomes(other)) == (["suppressed"], ["fired ready"])
    assert "have reached its max_backlog of 1" in Tick.objects.get(schedule=schedule).reason
    schedule.refresh_from_db()
    assert schedule.error == ""
    assert schedule.next_due_at is not None
    Job.objects.filter(queue="bulk").delete()
    come_due(schedule)
    assert outcomes(schedule) == ["suppressed", "fired ready"]


def test_dead_jobs_in_a_row_pause_a_schedule_until_resumed(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    schedule = due_schedule(pause_after_dead=2)
    look()
    finish(schedule, "dead")
    come_due(schedule)
    finish(schedule, "dead")
    with heard(worker_event) as events, django_capture_on_commit_callbacks(execute=True):
        come_due(schedule)
    assert outcomes(schedule) == ["fired dead", "fired dead", "suppressed"]
    schedule.refresh_from_db()
    assert schedule.paused_at is not None
    assert schedule.paused_reason == "its last 2 jobs are dead"
    assert schedule.next_due_at is None
    assert [event["sender"] for event in events] == ["schedule_paused"]
    assert events[0]["fields"] == {"schedule": "tick", "reason": "its last 2 jobs are dead"}
    assert schedule_operations.resume([schedule.pk]) == ["tick"]
    look()
    come_due(schedule)
    assert outcomes(schedule)[-1] == "fired ready"
    finish(schedule, "dead")
    come_due(schedule)
    assert outcomes(schedule)[-1] == "fired ready"


@pytest.mark.parametrize("between", ["succeeded", "cancelled"])
def test_a_success_in_between_ends_a_row_of_dead_jobs(between: str) -> None:
    schedule = due_schedule(pause_after_dead=2)
    look()
    for how in ("dead", between, "dead"):
        finish(schedule, how)
        come_due(schedule)
    assert outcomes(schedule)[-1] == "fired ready"


@pytest.mark.parametrize(
    ("early", "others", "paused"),
    [
        ("succeeded", ("dead", "dead"), True),
        ("dead", ("succeeded", "dead"), False),
        ("dead", ("dead",), True),
        ("succeeded", ("dead",), False),
    ],
)
def test_a_due_time_that_was_moved_to_an_earlier_one_ended_when_it_was_made(
    early: str, others: tuple[str, ...], paused: bool
) -> None:
    schedule = due_schedule(pause_after_dead=2)
    look()
    finish(schedule, early)
    run_sql("UPDATE django_jobs_tick SET due_at = now() + interval '30 d'")
    for how in others:
        come_due(schedule)
        finish(schedule, how)
    run_sql("UPDATE django_jobs_tick SET due_at = now() + interval '9 d' WHERE due_at > now()")
    come_due(schedule)
    schedule.refresh_from_db()
    assert (schedule.paused_at is not None) is paused


def test_the_dead_of_a_backfill_do_not_pause() -> None:
    schedule = overdue(3.1, pause_after_dead=1)
    now = run_sql("SELECT now()")[0][0]
    schedule_operations.backfill(schedule, now - 4 * HOUR, now, request_of)
    for held in claim_ready(register_worker()):
        settle_one(held, failure(final=True))
    come_due(schedule)
    schedule.refresh_from_db()
    assert schedule.paused_at is None


def test_an_end_that_retention_has_deleted_ends_the_row_of_the_dead() -> None:
    """Succeeded jobs are kept for a week and dead ones for ever."""
    schedule = due_schedule(pause_after_dead=2)
    look()
    for how in ("dead", "succeeded", "dead"):
        finish(schedule, how)
        if how == "succeeded":
            schedule.jobs.filter(status="succeeded").delete()
        come_due(schedule)
    schedule.refresh_from_db()
    assert schedule.paused_at is None


def test_a_job_that_waits_keeps_its_jitter() -> None:
    schedule = due_schedule(overlap="queue_one", jitter_seconds=86_400)
    look()
    come_due(schedule)
    waiting = schedule.jobs.get(status="waiting")
    schedule.jobs.filter(status="scheduled").update(status="ready")
    finish(schedule, "succeeded")
    look()
    released = Job.objects.get(pk=waiting.pk)
    assert (released.status, released.available_at) == ("scheduled", waiting.available_at)
    assert released.rank == waiting.rank
