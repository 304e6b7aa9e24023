"""The limit of a queue holds for the whole fleet."""

from __future__ import annotations

import random
import threading
import time

import pytest

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.states import JobState
from django_jobs.lifecycle import reaping
from django_jobs.lifecycle.claiming import claim
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job
from tests.app.jobs import noop
from tests.factories import claim_ready, in_threads, register_worker, run_sql, settle_one

pytestmark = pytest.mark.django_db


def test_an_unlimited_claim_of_a_queue_that_has_a_limit_takes_nothing() -> None:
    noop.using(queue="emails").enqueue()
    assert claim_ready(register_worker(), "emails") == []


def test_a_limited_claim_of_a_queue_without_limit_is_not_limited() -> None:
    enqueue_many("app.noop", [{}] * 5)
    assert len(claim_ready(register_worker(), limited=True)) == 5


def test_the_limit_of_a_queue_counts_the_jobs_of_all_workers() -> None:
    enqueue_many("app.noop", [{}] * 5, queue="emails")
    one, other = register_worker(), register_worker()
    first = claim_ready(one, "emails", limit=1, limited=True)
    second = claim_ready(other, "emails", limit=5, limited=True)
    assert (len(first), len(second)) == (1, 1)
    assert claim_ready(one, "emails", limited=True) == []
    settle_one(first[0], Succeeded())
    assert len(claim_ready(other, "emails", limited=True)) == 1


@pytest.mark.django_db(transaction=True)
def test_six_claiming_threads_and_dying_workers_never_exceed_a_queues_limit() -> None:
    enqueue_many("app.noop", [{}] * 120, queue="emails")
    over = threading.Event()
    until = time.monotonic() + 80

    def work(number: int) -> int:
        draw = random.Random(number)
        worker, settled = register_worker(f"w{number}"), 0
        while time.monotonic() < until:
            held = claim("emails", worker=worker, job_types={"app.noop": 1}, limit=5, limited=True)
            if Job.objects.filter(queue="emails", status=JobState.RUNNING).count() > 2:
                over.set()
            if not held and not Job.objects.live().exists():
                return settled
            if held and draw.random() < 0.2:  # dies with what it holds, and boots anew
                run_sql(
                    "UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'"
                    " WHERE id = %s",
                    [worker],
                )
                reaping.reap()
                worker = register_worker(f"w{number}")
                continue
            settled += sum(
                one.decision is not None
                for one in settle([Ending(job, Succeeded()) for job in held])
            )
        raise AssertionError("it did not come to an end")

    settled = sum(in_threads(6, work))
    assert not over.is_set()
    ended = Job.objects.filter(queue="emails")
    assert settled == ended.filter(status=JobState.SUCCEEDED).count()
    assert ended.exclude(status__in=(JobState.SUCCEEDED, JobState.DEAD)).count() == 0
