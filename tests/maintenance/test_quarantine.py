"""The maintenance task: what crashes is quarantined, what is quarantined is blocked, what is lifted
goes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pytest_django import Settings

from django_jobs.lifecycle.operations import quarantines
from django_jobs.maintenance.tasks import Quarantining, quarantine_what_crashes
from django_jobs.models import Job, Quarantine
from django_jobs.signals import worker_event
from tests.app.jobs import add, noop
from tests.factories import due_schedule, heard, in_threads, look, run_sql
from tests.lifecycle.operations.test_quarantines import crash

pytestmark = pytest.mark.django_db


def statuses(job_type: str = "app.noop") -> set[str]:
    return set(Job.objects.filter(job_type=job_type).values_list("status", flat=True))


def rule(settings: Settings, **quarantine: Any) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "QUARANTINE": quarantine}


def test_ready_jobs_of_a_quarantined_type_are_blocked_until_it_is_lifted() -> None:
    noop.enqueue_many({} for _ in range(3))
    noop.using(queue="bulk").enqueue()
    add.enqueue(1)
    quarantines.quarantine("app.noop", seconds=0)
    task = Quarantining()
    assert task.run_once() == 4
    assert statuses() == {"blocked"}
    assert statuses("app.add") == {"ready"}
    assert task.run_once() == 0
    Quarantine.objects.update(lifted_at="2026-01-01T00:00:00Z")
    assert task.run_once() == 4
    assert statuses() == {"ready"}


def test_jobs_far_down_the_queue_are_found_page_by_page(settings: Settings) -> None:
    add.enqueue_many({"first": n} for n in range(25))
    noop.enqueue_many({} for _ in range(5))
    quarantines.quarantine("app.noop", seconds=0)
    task = Quarantining(page=4, budget=0.0)
    changed = []
    for _ in range(10):
        changed.append(task.run_once())
        if task.positions:
            # Without a budget each run sees the head and no more; the place is kept.
            task.budget = 60.0
    assert sum(changed) == 5
    assert statuses() == {"blocked"}
    assert task.positions == {}


def test_each_run_begins_at_the_head_of_the_queue() -> None:
    add.enqueue_many({"first": n} for n in range(10))
    quarantines.quarantine("app.noop")
    task = Quarantining(page=4, budget=0.0)
    task.run_once()
    assert task.positions
    noop.using(priority=90).enqueue()
    assert task.run_once() == 1


def test_the_positions_are_dropped_with_the_last_quarantine() -> None:
    add.enqueue_many({"first": n} for n in range(10))
    quarantines.quarantine("app.noop")
    task = Quarantining(page=4, budget=0.0)
    task.run_once()
    quarantines.lift("app.noop")
    task.run_once()
    assert task.positions == {}


@pytest.mark.django_db(transaction=True)
def test_all_workers_may_block_jobs_at_once() -> None:
    noop.enqueue_many({} for _ in range(300))
    quarantines.quarantine("app.noop", seconds=0)
    held = in_threads(4, lambda _: Quarantining(page=50).run_once())
    assert sum(held) == Job.objects.filter(status="blocked").count()
    while Quarantining(page=50).run_once():
        pass
    assert statuses() == {"blocked"}
    Quarantine.objects.update(lifted_at="2026-01-01T00:00:00Z")
    freed = in_threads(4, lambda _: Quarantining(page=100).run_once())
    while more := Quarantining(page=100).run_once():
        freed.append(more)
    assert sum(freed) == 300
    assert statuses() == {"ready"}


def test_a_blocked_job_of_a_schedule_counts_as_live() -> None:
    schedule = due_schedule(overlap="skip")
    look()
    quarantines.quarantine("app.noop")
    Quarantining().run_once()
    assert statuses() == {"blocked"}
    run_sql(
        "UPDATE django_jobs_schedule SET starts_at = starts_at - interval '30 minutes',"
        " next_due_at = starts_at - interval '30 minutes'"
    )
    look()
    assert Job.objects.filter(schedule=schedule).count() == 1
    assert set(schedule.ticks.values_list("outcome", flat=True)) == {"fired", "skipped_overlap"}


def test_a_type_that_crashes_too_often_is_quarantined_once_and_logged(settings: Settings) -> None:
    rule(settings, crashes=3, seconds=600)
    crash()
    crash()
    assert quarantine_what_crashes() == 0
    crash()
    with heard(worker_event) as events:
        assert quarantine_what_crashes() == 1
        assert quarantine_what_crashes() == 0
    row = Quarantine.objects.get()
    assert (row.job_type, row.by, row.reason) == ("app.noop", "", "crashed 3 times in 600 s")
    (event,) = events
    assert (event["sender"], event["level"]) == ("job_type_quarantined", logging.ERROR)
    assert event["fields"] == {"job_type": "app.noop", "reason": row.reason}


def test_its_jobs_are_blocked_in_the_same_run(settings: Settings) -> None:
    rule(settings, crashes=1)
    crash()
    assert Quarantining().run_once() == 2
    assert statuses() == {"blocked"}


def test_a_lifted_type_needs_as_many_new_crashes(settings: Settings) -> None:
    rule(settings, crashes=2)
    crash()
    crash()
    assert quarantine_what_crashes() == 1
    quarantines.lift("app.noop")
    assert quarantine_what_crashes() == 0
    crash()
    assert quarantine_what_crashes() == 0
    crash()
    assert quarantine_what_crashes() == 1


@pytest.mark.parametrize("off", [{"crashes": None}, {"crashes": None, "seconds": 600}])
def test_quarantining_can_be_turned_off(settings: Settings, off: dict[str, Any]) -> None:
    rule(settings, **off)
    for _ in range(12):
        crash()
    assert quarantine_what_crashes() == 0
    assert not Quarantine.objects.exists()


def test_omitted_keys_of_the_setting_have_their_defaults(settings: Settings) -> None:
    rule(settings)
    for _ in range(10):
        crash()
    assert quarantine_what_crashes() == 1


def test_a_run_continues_while_it_finds_jobs_to_block() -> None:
    noop.enqueue_many({} for _ in range(25))
    add.enqueue_many({"first": n} for n in range(25))
    quarantines.quarantine("app.noop", seconds=0)
    task = Quarantining(page=4, budget=0.0)
    assert task.run_once() == 25
    assert statuses() == {"blocked"}
    assert "default" in task.positions  # behind those, its time was over


def test_a_run_ends_in_time_and_the_next_continues_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noop.enqueue_many({} for _ in range(9))
    quarantines.quarantine("app.noop", seconds=0)
    monkeypatch.setattr("django_jobs.maintenance.tasks.MOVING_SECONDS", 0.0)
    task = Quarantining(page=4, budget=0.0)
    assert [task.run_once() for _ in range(3)] == [4, 4, 1]
