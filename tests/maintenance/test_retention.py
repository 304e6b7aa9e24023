"""The maintenance task that deletes finished jobs whose retention is over."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from django_jobs.lifecycle import workers
from django_jobs.lifecycle.pruning import WITHOUT_PARTITION
from django_jobs.maintenance.retention import Retention, rules_in_force
from django_jobs.models import Job, Queue, Tick, Worker
from tests.factories import register_worker, run_sql
from tests.lifecycle.test_pruning import age, finish, ticks_of

pytestmark = pytest.mark.django_db

DAY = 86_400.0


def test_the_settings_apply_unless_a_queue_has_its_own_retention(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": "2d", "dead": "30d"}}
    Queue.objects.filter(name="bulk").update(retention={"succeeded": "1h", "dead": None})
    default = {"succeeded": 2 * DAY, "cancelled": 7 * DAY}
    assert rules_in_force() == {"*": default, "bulk": {**default, "succeeded": 3600.0}}


@pytest.mark.parametrize("own", ["soon", 7, [1], {"succeeded": "soon"}, {"succeeded": [1]}])
def test_a_retention_of_a_queue_that_cannot_be_read_deletes_nothing_there(own: Any) -> None:
    Queue.objects.filter(name="bulk").update(retention=own)
    finish(1, "bulk")
    finish(1)
    age(1000)
    assert Retention(budget=60).run_once() == 1
    assert Job.objects.get().queue == "bulk"


def test_one_run_prunes_all_pages_within_its_budget() -> None:
    finish(30)
    age(8)
    assert Retention(page=4, budget=60).run_once() == 30
    assert not Job.objects.exists()


def test_a_run_out_of_budget_continues_next_time() -> None:
    ids = finish(30)
    age(8)
    walk = Retention(page=10, budget=0)
    assert walk.run_once() == 10
    assert walk.after[WITHOUT_PARTITION] == ids[9]
    assert [walk.run_once() for _ in range(3)] == [10, 10, 0]
    assert not any(walk.after.values())


def test_after_a_complete_pass_pruning_starts_at_the_lowest_id() -> None:
    ids = finish(3)
    walk = Retention(page=2, budget=60)
    assert walk.run_once() == 0
    age(8, ids[:1])
    assert walk.run_once() == 1


def test_long_ended_workers_are_deleted_at_the_end_of_a_pass() -> None:
    workers.end(register_worker())
    run_sql("UPDATE django_jobs_worker SET stopped_at = now() - interval '8 days'")
    assert Retention(budget=60).run_once() == 1
    assert not Worker.objects.exists()


def test_ticks_older_than_ninety_days_are_deleted_at_the_end_of_a_pass() -> None:
    ticks_of([100] * 25 + [89])
    assert Retention(page=10, budget=60).run_once() == 25
    assert Tick.objects.count() == 1


def test_ticks_wait_for_the_next_run_if_the_budget_is_spent() -> None:
    ticks_of([100] * 25)
    walk = Retention(page=10, budget=0)
    assert [walk.run_once() for _ in range(4)] == [10, 10, 5, 0]
