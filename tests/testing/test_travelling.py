"""Time that passes in a test: retries, sleeps, waits, limits and schedules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_jobs import Workflow, api, registry, schedule
from django_jobs.api.schedules import synchronise
from django_jobs.models import Job, Resource, Schedule, Tick
from django_jobs.testing import assert_enqueued, refute_enqueued, run_jobs, travel
from django_jobs.testing.travelling import return_to_now, travelled
from tests.app import flow_jobs, jobs, kit_jobs
from tests.app.models import Effect

pytestmark = pytest.mark.django_db


def outcomes(**options: Any) -> list[str]:
    return [run.outcome for run in run_jobs(**options)]


def test_a_retry_runs_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kit_jobs.calls, "call", lambda: 1 / 0)
    job = kit_jobs.effect_and_call.enqueue("again", "call")
    assert outcomes() == ["failed"]
    travel(30)
    assert outcomes() == []
    travel(seconds=timedelta(seconds=30))
    assert outcomes() == ["failed"]
    travel(60)
    assert outcomes() == ["failed"]
    job.refresh_from_db()
    assert (job.status, Effect.objects.count()) == ("dead", 3)


def test_a_job_that_is_delayed_runs_at_its_time() -> None:
    due = timezone.now() + timedelta(days=40)
    jobs.noop.using(run_at=due).enqueue()
    assert travel(to=due - timedelta(hours=1)) < due
    assert outcomes() == []
    assert travel(3600) >= due - timedelta(seconds=1)
    travel(1)
    assert outcomes() == ["succeeded"]


def test_a_job_that_is_too_old_does_not_run() -> None:
    with_age = jobs.noop
    job = with_age.using(delay=10).enqueue()
    Job.objects.filter(pk=job.pk).update(expires_at=job.available_at + timedelta(seconds=50))
    travel(100)
    (run,) = run_jobs()
    assert run.error_type == "Expired"


def test_a_sleep_is_over() -> None:
    job = kit_jobs.effect_in_async.enqueue("async")
    assert outcomes() == ["snoozed"]
    travel(3500)
    assert outcomes() == []
    travel(101)
    assert outcomes() == ["snoozed"], "it waits for the signal"
    Job.objects.get(pk=job.pk).signal("go", {"on": True})
    assert outcomes() == ["succeeded"]
    job.refresh_from_db()
    assert job.result == ["yes", {"on": True}, 3]


def test_a_wait_for_a_signal_times_out() -> None:
    workflow = Workflow("kit.approval")
    try:
        reserve = workflow.step(flow_jobs.reserve_stock)
        wait = workflow.wait("approval", after=reserve, timeout=timedelta(days=3))
        workflow.step(flow_jobs.apologise, after=wait, when="failed")
        run = workflow.start(order_id=7)
        assert outcomes() == ["succeeded", "snoozed"]
        travel(timedelta(days=2))
        assert outcomes() == []
        travel(timedelta(days=1))
        assert outcomes() == ["failed", "succeeded"]
        run.refresh_from_db()
        assert run.status == "failed"
    finally:
        registry.forget_workflow("kit.approval")


def test_a_key_that_is_unique_for_an_hour_is_free_after_it() -> None:
    using = jobs.noop.using(idempotency_key="k", unique_for=3600)
    first = using.enqueue()
    run_jobs()
    assert using.enqueue() == first
    travel(3600)
    assert using.enqueue() != first


def test_the_tokens_of_a_rate_come_back() -> None:
    Resource.objects.create(name="api", rate=1, rate_seconds=60, burst=1)
    for _ in range(2):
        jobs.noop.using(resources=["api"]).enqueue()
    assert outcomes() == ["succeeded"]
    travel(60)
    assert outcomes() == ["succeeded"]


@pytest.fixture
def nightly() -> Iterator[Schedule]:
    """A schedule that is declared in code."""
    schedule(
        "kit-nightly", jobs.add, payload={"first": 1}, cron="0 3 * * *", timezone="Europe/Paris"
    )
    synchronise("default")
    yield Schedule.objects.get(name="kit-nightly")
    registry.forget_schedule("kit-nightly")


def test_a_declared_schedule_fires_if_it_is_named(nightly: Schedule) -> None:
    # In Paris, a day on which the clock changes has 23 or 25 hours: two due times in 24, or none.
    travel(to=datetime(2099, 1, 31, 12, tzinfo=UTC))
    refute_enqueued(jobs.add)
    for day in range(1, 4):
        travel(timedelta(days=1), schedules=["kit-nightly"])
        assert outcomes() == ["succeeded"], day
    dues = list(Tick.objects.order_by("due_at").values_list("due_at", flat=True))
    assert dues[1] - dues[0] == timedelta(days=1)
    assert list(Job.objects.order_by("id").values_list("scheduled_for", flat=True)) == dues
    nightly.refresh_from_db()
    assert nightly.next_due_at > dues[-1]


def test_a_schedule_fires_at_the_time_of_the_journey(nightly: Schedule) -> None:
    travel(to=datetime(2099, 1, 31, 12, tzinfo=UTC))
    travel(to=datetime(2099, 2, 1, 1, 59, 59, tzinfo=UTC), schedules=True)
    refute_enqueued(jobs.add)
    travel(2, schedules=True)
    (job,) = assert_enqueued(jobs.add)
    assert job.scheduled_for == datetime(2099, 2, 1, 2, tzinfo=UTC)
    assert outcomes() == ["succeeded"]


def test_a_schedule_that_is_a_row_of_the_test_fires() -> None:
    Schedule.objects.create(name="row", job_type="app.noop", every=3600)
    travel(3 * 3600)
    assert outcomes() == ["succeeded"], "the latest of those that were missed"
    assert Tick.objects.filter(outcome="fired").count() == 1


def test_jobs_run_each_at_its_time_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kit_jobs.calls, "call", lambda: 1 / 0)
    begin, began = timezone.now(), time.monotonic()
    kit_jobs.effect_and_call.enqueue("again", "call")
    jobs.noop.using(delay=90).enqueue()
    jobs.noop.using(delay=7300).enqueue()
    runs = run_jobs(until=timedelta(hours=2))
    names = [run.job.job_type.removeprefix("app.") for run in runs]
    assert names == ["effect_and_call", "effect_and_call", "noop", "effect_and_call"]
    assert abs(travelled() - 7200) <= time.monotonic() - began
    assert run_jobs() == []
    assert outcomes(until=begin + timedelta(hours=3)) == ["succeeded"]


def test_schedules_of_the_test_fire_each_time_until_the_end() -> None:
    Schedule.objects.create(name="row", job_type="app.noop", every=3600)
    assert outcomes(until=timedelta(hours=3)) == ["succeeded"] * 3
    assert Tick.objects.filter(outcome="fired").count() == 3


def test_no_time_passes_back() -> None:
    with pytest.raises(ValueError, match="goes forward only"):
        run_jobs(until=timezone.now() - timedelta(hours=1))
    with pytest.raises(ValueError, match="goes forward only"):
        run_jobs(until=-timedelta(hours=1))
    with pytest.raises(ValueError, match="at most 3,162,240,000 seconds"):
        run_jobs(until=timedelta.max)


@pytest.mark.parametrize(
    "arguments, error, problem",
    [
        ({}, TypeError, "takes seconds, or to="),
        ({"seconds": 1, "to": datetime(2099, 1, 1, tzinfo=UTC)}, TypeError, "seconds, or to="),
        ({"to": datetime(2099, 1, 1)}, ValueError, "has no time zone"),
        ({"to": datetime(2020, 1, 1, tzinfo=UTC)}, ValueError, "goes forward only"),
        ({"seconds": -1}, ValueError, "goes forward only"),
        ({"seconds": 1e15}, ValueError, "at most 3,162,240,000 seconds, not 1,0"),
        ({"seconds": float("inf")}, ValueError, "at most .* seconds, not inf"),
        ({"seconds": timedelta.max}, ValueError, "at most 3,162,240,000 seconds"),
        ({"to": datetime.max.replace(tzinfo=UTC)}, ValueError, "at most 3,162,240,000 seconds"),
        ({"seconds": "soon"}, TypeError, "a number of seconds or a timedelta, not 'soon'"),
        ({"seconds": 1, "schedules": ["nigthly"]}, ValueError, "no schedule is named nigthly"),
    ],
)
def test_other_journeys_are_refused(
    arguments: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        travel(**arguments)


def test_the_journey_ends_with_the_transaction() -> None:
    with transaction.atomic():
        travel(60)
        assert travelled() == 60
        transaction.set_rollback(True)
    assert travelled() == 0


@pytest.mark.django_db(transaction=True)
def test_outside_of_a_transaction_it_ends_on_request() -> None:
    job = api.enqueue("app.noop", delay=60)
    travel(60)
    assert travelled() == 60
    assert [run.job_id for run in run_jobs()] == [job.pk]
    return_to_now()
    assert travelled() == 0
