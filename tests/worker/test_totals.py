"""Workers count the runs while they run, and sample the backlogs."""

from __future__ import annotations

import pytest

from django_jobs.models import BacklogSample, Job, Run, RunTotal, Worker
from tests.app.jobs import alone, fail, noop

from .processes import BEATS_OFTEN, Start, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def counted() -> int:
    return sum(RunTotal.objects.filter(period=0).values_list("runs", flat=True))


def test_two_workers_count_each_run_once_and_another_goes_on_after_them(
    start_worker: Start,
) -> None:
    workers = [start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN) for _ in range(2)]
    noop.enqueue_many([{}] * 300)
    until(lambda: counted() == 300)
    until(BacklogSample.objects.filter(queue="default").exists)
    assert BacklogSample.objects.filter(queue="default").count() == 1
    for worker in workers:
        worker.end()
    noop.enqueue_many([{}] * 200)
    start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until(lambda: counted() == 500)
    assert Run.objects.count() == 500


def test_a_worker_counts_what_it_ended_and_what_failed_also_in_its_children(
    start_worker: Start,
) -> None:
    noop.enqueue_many([{}] * 20)
    fail.using(max_attempts=1).enqueue()
    unreadable = alone.using(max_attempts=1).enqueue()
    Job.objects.filter(pk=unreadable.pk).update(payload={"surplus": 1})
    start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    rows = Worker.objects.filter(ended_runs=22, failed_runs=2, listens=True)
    until(rows.exists)
