"""The maintenance tasks that every worker has."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_jobs.maintenance.tasks import Reaping, maintenance_tasks
from django_jobs.models import Job
from django_jobs.signals import attempt_failed, job_dead
from tests.factories import enqueue_and_claim, fold_runs, heard, run_sql


def test_each_has_a_name_and_sweeps_are_as_frequent_as_the_setting_says(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SWEEP_SECONDS": 2.5}
    tasks = {task.name: task for task in maintenance_tasks()}
    intervals = {name: task.every for name, task in tasks.items()}
    assert intervals == {
        "reaping": 2.5,
        "retention": 60.0,
        "dead_letters": 60.0,
        "partitions": 60.0,
        "quarantining": 2.5,
        "cancels": 2.5,
        "bulk_operations": 1.0,
        "slots": 2.5,
        "pauses": 2.5,
        "pressure": 2.5,
        "totals": 5.0,
        "backlog_samples": 60.0,
    }
    assert all(task.batch > 0 for task in tasks.values())


@pytest.mark.django_db
def test_all_can_be_run_when_there_is_nothing_to_do() -> None:
    fold_runs()  # up to the ids that other tests have drawn
    tasks = maintenance_tasks()
    assert [task.has_more(task.run_once()) for task in tasks] == [False] * len(tasks)


def test_each_worker_walks_from_the_beginning() -> None:
    once, again = ({task.name: task.run_once for task in maintenance_tasks()} for _ in range(2))
    others = {name for name in once if once[name] != again[name]}
    assert others == {"reaping", "retention", "partitions", "quarantining", "totals"}


def test_totals_can_be_turned_off(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    assert "totals" not in {task.name for task in maintenance_tasks()}


@pytest.mark.django_db
def test_reaping_settles_abandoned_jobs_and_sends_signals() -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'")
    run_sql("UPDATE django_jobs_job SET max_crashes = 1")
    with heard(attempt_failed) as failed, heard(job_dead) as dead:
        sweep = Reaping()
        assert sweep.run_once() == 1
        assert sweep.run_once() == 0
    assert [(one["job_id"], one["outcome"]) for one in failed] == [(held.id, "lost")]
    assert len(dead) == 1
    assert Job.objects.get().status == "dead"
