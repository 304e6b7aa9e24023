"""Too much at once: a flood that is cancelled, a storm of failures, a loud neighbour (B21-B23).

Sizes are what a continuous integration can bear. What is compared grows with none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Queue, Run
from tests.app import database_jobs, jobs
from tests.worker.processes import Start, until, until_status

pytestmark = pytest.mark.processes
CHUNK = 500


def in_chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]


def test_a_flood_is_cancelled_while_jobs_of_others_are_claimed(start_worker: Start) -> None:
    flood = jobs.noop.using(delay=3600).enqueue_many({} for _ in range(20_000))
    start_worker("--poll-seconds", "0.2")
    until_status(jobs.noop.using(queue="bulk").enqueue(), "succeeded")
    for number, chunk in enumerate(in_chunks(flood)):
        job_operations.cancel(list(chunk), reason="a flood")
        if number % 8 == 0:
            until_status(jobs.noop.using(queue="bulk").enqueue(), "succeeded")
    assert Job.objects.filter(status="cancelled").count() == 20_000


def test_mass_failures_are_spread_and_delay_no_other_queue(
    start_worker: Start,
) -> None:
    storm = database_jobs.depend.using(queue="bulk").enqueue_many({} for _ in range(3_000))
    start_worker("--poll-seconds", "0.2")
    until(lambda: Run.objects.filter(outcome="failed").count() > 20)
    other = [jobs.noop.enqueue() for _ in range(10)]
    for job in other:
        until_status(job, "succeeded")
    scheduled = Job.objects.filter(pk__in=storm, status="scheduled", failures=1)
    until(lambda: scheduled.count() == 3_000, what="each has failed once")
    delays = [
        run.job.available_at - run.finished_at
        for run in Run.objects.filter(job__in=storm).select_related("job")
    ]
    minutes = {int(delay / timedelta(seconds=60)) for delay in delays}
    assert min(delays) > timedelta(seconds=290)
    assert len(minutes) >= 4  # of ten, half of them jitter
    assert max(run.claimed_at for run in Run.objects.filter(job__in=other)) < max(
        run.claimed_at for run in Run.objects.filter(job__in=storm)
    )


def test_a_tenant_with_a_backlog_keeps_no_other_queue_waiting(start_worker: Start) -> None:
    Queue.objects.create(name="quiet")
    jobs.nap.enqueue_many({"seconds": 0.01} for _ in range(1_500))
    start_worker("--threads", "2", "--poll-seconds", "0.2")
    until(lambda: Run.objects.count() > 20)
    quiet = [jobs.noop.using(queue="quiet", priority=-100).enqueue() for _ in range(20)]
    for job in quiet:
        until_status(job, "succeeded")
    assert Job.objects.filter(queue="default", status="ready").count() > 100
