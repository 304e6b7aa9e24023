"""running -> ready, as if a prefetched job had never been claimed."""

from __future__ import annotations

import pytest

from django_jobs.domain.outcomes import (
    Succeeded,
)
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import give_back
from django_jobs.models import Job, Run
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    register_worker,
    settle_one,
)

pytestmark = pytest.mark.django_db


def test_a_prefetched_job_is_given_back_as_if_it_had_never_been_claimed() -> None:
    held = enqueue_and_claim(priority=3)
    before = Job.objects.get()
    assert give_back([held.fence]) == [held.id]
    job = Job.objects.get()
    assert (job.status, job.attempt, job.worker_id, job.claimed_at) == ("ready", 0, None, None)
    assert (job.rank, job.available_at) == (before.rank, before.available_at)
    assert not Run.objects.exists()
    assert claim_ready(held.worker)[0].attempt == 1


def test_only_jobs_still_claimed_can_be_given_back() -> None:
    held = enqueue_and_claim()
    assert give_back([(held.id, held.attempt, register_worker())]) == []
    assert give_back([(held.id, held.attempt + 1, held.worker)]) == []
    assert give_back([]) == []
    settle_one(held, Succeeded())
    assert give_back([held.fence]) == []
    assert Job.objects.get().status == "succeeded"


def test_a_cancelled_prefetched_job_ends_when_it_is_given_back() -> None:
    held = enqueue_and_claim()
    job_operations.cancel([held.id], reason="no use")
    assert give_back([held.fence]) == [held.id]
    job = Job.objects.get()
    assert (job.status, job.reason) == ("cancelled", "no use")
    assert job.finished_at is not None
