"""Partitions that are missing, really dropped, and rows that were stored without one."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_jobs.doctor.history import examine_partitions, examine_totals
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import dropping
from django_jobs.lifecycle.dropping import drop
from django_jobs.lifecycle.history import JOBS, RUNS, partitions
from django_jobs.maintenance.history import Partitions, make_due_partitions
from django_jobs.maintenance.tasks import Folding
from tests.factories import (
    another_connection,
    enqueue_and_claim,
    fold_runs,
    make_dead,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_opening import finish
from tests.maintenance.test_history import make_days
from tests.workflows import start_graph

from .finding import findings

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
def test_totals_that_an_open_transaction_holds_back_are_found() -> None:
    settle_one(enqueue_and_claim(), Succeeded())
    folding = Folding(patience=0.0)
    fold_runs(folding)
    with another_connection() as other:
        other.ensure_connection()
        other.connection.execute("BEGIN; DELETE FROM django_jobs_run WHERE id < 0")
        settle_one(enqueue_and_claim(), Succeeded())
        run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() - interval '8 hours'")
        assert not findings(examine_totals, "D133"), "as after a quiet night"
        ended_an_hour_ago()
        assert folding.run_once() == 0
        (behind,) = findings(examine_totals, "D133")
        assert behind.facts["runs"] == 1
        assert 3_600 <= behind.facts["seconds"] < 7_200
        other.connection.execute("ROLLBACK")
    assert folding.run_once() == 1
    assert not findings(examine_totals, "D133")


def ended_an_hour_ago() -> None:
    run_sql("UPDATE django_jobs_run SET finished_at = now() - interval '1 hour'")


def test_a_fleet_that_never_counted_is_found_once_it_is_old_enough(settings: Settings) -> None:
    settle_one(enqueue_and_claim(), Succeeded())
    ended_an_hour_ago()
    run_sql("DELETE FROM django_jobs_runwatermark")
    assert not findings(examine_totals, "D133")
    run_sql("UPDATE django_jobs_worker SET started_at = now() - interval '1 hour'")
    assert findings(examine_totals, "D133")
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    assert not findings(examine_totals, "D133")


def drop_all() -> None:
    for table in (JOBS, RUNS):
        for partition in partitions(table):
            assert drop(partition)


def test_missing_partitions_are_found_until_they_are_made() -> None:
    make_due_partitions()
    assert not findings(examine_partitions, "D131")
    for table in (JOBS, RUNS):
        for partition in partitions(table)[2:]:
            assert drop(partition)
    tables = [one.facts["table"] for one in findings(examine_partitions, "D131")]
    assert tables == ["django_jobs_job_history", "django_jobs_run"]
    make_due_partitions()
    assert not findings(examine_partitions, "D131")


def test_jobs_and_runs_that_ended_without_a_partition_are_counted() -> None:
    make_due_partitions()
    settle_one(enqueue_and_claim(), Succeeded())
    assert not findings(examine_partitions, "D132")
    run_sql("TRUNCATE django_jobs_job, django_jobs_run")
    drop_all()
    settle_one(enqueue_and_claim(), Succeeded())
    filled = {one.facts["table"]: one.facts["rows"] for one in findings(examine_partitions, "D132")}
    assert filled == {"django_jobs_job_history_default": 1, "django_jobs_run_default": 1}


def test_runs_that_are_kept_when_their_partition_is_dropped_are_no_finding(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": 0, "cancelled": 0}}
    make_due_partitions()
    make_days(1)
    make_dead()
    run_sql(
        "UPDATE django_jobs_run SET finished_at = date_trunc('day', now(), 'UTC') - '1 s'::interval"
    )
    assert not findings(examine_partitions, "D132")
    task = Partitions()
    while task.run_once():
        pass
    assert run_sql("SELECT count(*) FROM django_jobs_run_default") == [(1,)]
    assert not findings(examine_partitions, "D132")


def past_retention() -> dict[str, int]:
    found = findings(examine_partitions, "D135")
    return {one.facts["table"]: one.facts["partitions"] for one in found}


def test_partitions_past_their_retention_are_found_a_day_later() -> None:
    make_days(20, 9, 8)
    assert past_retention() == {"django_jobs_job_history": 2}, "runs wait for their jobs"
    for partition in partitions(JOBS)[:2]:
        assert drop(partition)
    assert past_retention() == {"django_jobs_run": 2}


def test_a_partition_that_waits_for_its_workflow_runs_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    settings.DJANGO_JOBS = {"RETENTION": {"workflows": "30d"}}
    make_days(32, 20)
    start_graph({"a": "", "b": "a", "c": "b"})
    finish()
    for days, found in (20, 1), (32, 2):
        run_sql(
            "UPDATE django_jobs_job SET finished_at = now() - make_interval(days => %s)", [days]
        )
        assert past_retention() == {"django_jobs_job_history": found}


def test_a_large_default_partition_is_found() -> None:
    assert not findings(examine_partitions, "D134")
    run_sql(
        "UPDATE pg_class SET reltuples = 500000 WHERE oid = 'django_jobs_run_default'::regclass"
    )
    (large,) = findings(examine_partitions, "D134")
    assert large.facts == {"table": "django_jobs_run_default", "rows": 500_000}
