"""Real workers delete the successes of a queue that keeps none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs.models import Job, Queue, Run
from tests.app import jobs

from .processes import JobWorker


@pytest.mark.processes
def test_successes_of_a_queue_that_keeps_none_are_gone_and_those_of_others_stay(
    start_worker: Callable[..., JobWorker],
) -> None:
    Queue.objects.filter(name="bulk").update(retention={"succeeded": 0})
    jobs.noop.using(queue="bulk").enqueue_many({} for _ in range(20))
    failing = jobs.fail.using(queue="bulk", max_attempts=1).enqueue()
    kept = jobs.noop.enqueue()
    assert start_worker("--burst").wait() == 0
    assert dict(Job.objects.values_list("pk", "status")) == {
        failing.pk: "dead",
        kept.pk: "succeeded",
    }
    assert set(Run.objects.values_list("job_id", flat=True)) == {failing.pk, kept.pk}
