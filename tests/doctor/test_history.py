"""Partitions that are missing, really dropped, and rows that were stored without one."""

from __future__ import annotations

import pytest

from django_jobs.doctor.history import examine_partitions
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.history import JOBS, RUNS, drop, partitions
from django_jobs.maintenance.history import make_due_partitions
from tests.factories import enqueue_and_claim, run_sql, settle_one

from .finding import findings

pytestmark = pytest.mark.django_db


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
