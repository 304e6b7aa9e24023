"""The maintenance tasks that every worker has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from pytest_django import Settings

from django_jobs import chain, pause
from django_jobs.lifecycle.operations import bulk
from django_jobs.lifecycle.operations.quarantines import quarantine
from django_jobs.maintenance.retention import retention_asks
from django_jobs.maintenance.tasks import Reaping, maintenance_tasks
from django_jobs.models import Job
from django_jobs.models.database import fetch
from django_jobs.signals import attempt_failed, job_dead
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, fold_runs, heard, register_worker, run_sql


def test_each_has_a_name_and_sweeps_are_as_frequent_as_the_setting_says(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SWEEP_SECONDS": 2.5}
    tasks = {task.name: task for task in maintenance_tasks()}
    intervals = {name: task.every for name, task in tasks.items()}
    assert intervals == {
        "reaping": 2.5,
        "retention": 60.0,
        "old_rows": 3600.0,
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


WORK = {
    "quarantining": [
        lambda: quarantine("app.noop"),
        lambda: run_sql("UPDATE django_jobs_job SET status = 'blocked', reason = 'quarantined'"),
        lambda: run_sql(
            "INSERT INTO django_jobs_run (job_id, attempt, outcome, error_type, finished_at,"
            " available_at, claimed_at, error_message, traceback, fingerprint)"
            " VALUES (1, 1, 'lost', 'Crashed', now(), now(), now(), '', '', '')"
        ),
    ],
    "cancels": [
        lambda: run_sql(
            "UPDATE django_jobs_workflowrun SET cancel_requested_at = now() - interval '1 h'"
        )
    ],
    "bulk_operations": [lambda: bulk.start("cancel", {"queue": "default"}, by="a test")],
    "slots": [
        lambda: run_sql("UPDATE django_jobs_job SET concurrency_key = 'k'"),
        lambda: run_sql("UPDATE django_jobs_job SET tenant = 't'"),
        lambda: run_sql("""UPDATE django_jobs_job SET resources = '["r"]'"""),
    ],
    "pauses": [
        lambda: (
            pause("queue", "default", until=timedelta(hours=1)),
            run_sql("UPDATE django_jobs_queue SET paused_until = now()"),
        )
    ],
    "pressure": [
        lambda: run_sql("UPDATE django_jobs_queue SET max_backlog = 5"),
        lambda: run_sql("UPDATE django_jobs_queue SET pressure = 'high'"),
    ],
    "totals": [lambda: run_sql("SELECT nextval('django_jobs_run_id_seq')")],
    "reaping": [
        lambda: (
            register_worker(),
            run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'"),
        ),
        lambda: run_sql("UPDATE django_jobs_job SET status = 'running', worker_id = 1"),
    ],
    "dead_letters": [lambda: run_sql("UPDATE django_jobs_job SET status = 'dead'")],
    "retention": [
        lambda: run_sql(
            "UPDATE django_jobs_job SET status = 'succeeded', finished_at = '1999-12-31'"
        ),
        lambda: run_sql("UPDATE django_jobs_queue SET retention = '{\"succeeded\": 5}'"),
        lambda: run_sql(
            "UPDATE django_jobs_workflowrun SET status = 'succeeded', finished_at = '1999-12-31'"
        ),
        lambda: run_sql(
            "INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)"
            " VALUES ('default', 'k', 'app.noop', 1, now())"
        ),
        lambda: run_sql(
            "INSERT INTO django_jobs_effect (key, job_id, attempt, expires_at)"
            " VALUES ('k', 1, 1, now())"
        ),
        lambda: run_sql(
            "INSERT INTO django_jobs_resourceoutcome (resource, happened_at, failed)"
            " VALUES ('r', now(), false)"
        ),
    ],
}
"""What gives each task something to do. The keys are all tasks that are asked."""


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name, begin", [(name, begin) for name, begins in WORK.items() for begin in begins]
)
def test_a_task_is_asked_for_what_gives_it_something_to_do(
    name: str, begin: Callable[[], object]
) -> None:
    noop.enqueue()
    chain(noop.step()).start()
    fold_runs()
    tasks = {task.name: task.asks for task in maintenance_tasks() if task.asks}
    assert tasks.keys() == WORK.keys()
    question = f"SELECT {', '.join(tasks.values())}"
    assert not any(fetch(question, {})[0])
    begin()
    answers = dict(zip(tasks, fetch(question, {})[0], strict=True))
    assert answers[name]


def test_each_worker_walks_from_the_beginning() -> None:
    once, again = ({task.name: task.run_once for task in maintenance_tasks()} for _ in range(2))
    others = {name for name in once if once[name] != again[name]}
    assert others == {"reaping", "retention", "old_rows", "partitions", "quarantining", "totals"}


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


def test_retention_is_not_asked_where_it_deletes_rows_of_partitions(settings: Settings) -> None:
    assert retention_asks()
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "RETENTION": {"cancelled": "1h"}}
    assert not retention_asks()
