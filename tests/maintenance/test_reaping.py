"""The maintenance task that settles what lost workers held."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_jobs.maintenance.reaping import reap_once, reaping_task
from django_jobs.models import Job
from django_jobs.signals import attempt_failed, job_dead
from tests.factories import enqueue_and_claim, heard, run_sql


def test_it_sweeps_as_often_as_the_setting_says(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"SWEEP_SECONDS": 2.5}
    assert reaping_task().every == 2.5


@pytest.mark.django_db
def test_it_settles_what_is_abandoned_and_tells_the_project() -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'")
    run_sql("UPDATE django_jobs_job SET max_crashes = 1")
    with heard(attempt_failed) as failed, heard(job_dead) as dead:
        assert reap_once() == 1
        assert reap_once() == 0
    assert [(one["job_id"], one["outcome"]) for one in failed] == [(held.id, "lost")]
    assert len(dead) == 1
    assert Job.objects.get().status == "dead"
