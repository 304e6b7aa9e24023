"""The log of a run is settled with it, and never in its way."""

from __future__ import annotations

import time

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.settling import Ending
from django_jobs.lifecycle.settling_rows import settle_with_fallback
from django_jobs.models import Job, Run
from tests.factories import enqueue_and_claim

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_log_that_the_database_refuses_is_left_out_and_the_job_succeeds() -> None:
    jobs, now = [enqueue_and_claim() for _ in range(3)], time.monotonic()
    logs = ["fine", "not \x00 storable", None]
    settle_with_fallback(
        [Ending(job, Succeeded(), now, now, log=log) for job, log in zip(jobs, logs, strict=True)]
    )
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}
    kept = dict(Run.objects.values_list("job_id", "log"))
    assert [kept[job.id] for job in jobs] == ["fine", None, None]
