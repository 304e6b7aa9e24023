"""Runs: one per attempt, whoever wrote it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from django_jobs.domain.outcomes import Lost, Succeeded
from django_jobs.models import Run
from tests.factories import enqueue_and_claim, run_sql, settle_one

pytestmark = pytest.mark.django_db


def test_an_attempt_has_one_run_only() -> None:
    """In one partition, which is what the database can refuse. The rest is the fence's."""
    settle_one(enqueue_and_claim(), Succeeded())
    run = Run.objects.get()
    run.pk = None
    with pytest.raises(IntegrityError, match="job_id, attempt"), transaction.atomic():
        run.save(force_insert=True)


def test_an_unknown_outcome_is_refused() -> None:
    settle_one(enqueue_and_claim(), Succeeded())
    with pytest.raises(IntegrityError, match="django_jobs_run_outcome"), transaction.atomic():
        run_sql("UPDATE django_jobs_run SET outcome = 'running'")


def test_a_run_has_a_duration_or_none() -> None:
    settle_one(enqueue_and_claim(), Succeeded(), started=5.0, finished=7.5)
    settle_one(enqueue_and_claim(), Lost(reason="SIGKILL"))
    done, lost = Run.objects.order_by("pk")
    assert done.duration == timedelta(seconds=2.5)
    assert lost.duration is None
    assert str(done) == f"#{done.job_id} attempt 1: succeeded"


def test_the_runs_of_a_job_go_when_it_is_deleted_through_the_orm() -> None:
    settle_one(enqueue_and_claim(), Succeeded())
    Run.objects.get().job.delete()
    assert not Run.objects.exists()
