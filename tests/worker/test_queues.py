"""Which queues a worker serves, with real processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs.models import Job, Queue, Worker
from tests.app import jobs

from .processes import JobWorker, until, until_status

pytestmark = pytest.mark.processes
Start = Callable[..., JobWorker]


def served() -> set[str]:
    """What the one living worker says that it serves."""
    found = Worker.objects.filter(status="running").values_list("queues", flat=True)
    return {name for queues in found for name in queues}


def test_a_worker_of_all_queues_follows_new_and_deleted_queues(
    start_worker: Start,
) -> None:
    Queue.objects.create(name="passing")
    start_worker("--poll-seconds", "0.1")
    until(lambda: "passing" in served())
    Queue.objects.create(name="later", max_concurrency=1)
    job = jobs.noop.using(queue="later").enqueue()
    until_status(job, "succeeded")
    Queue.objects.filter(name="passing").delete()
    until(lambda: "passing" not in served())
    assert served() == set(Queue.objects.values_list("name", flat=True))
    assert Worker.objects.count() == 1  # without a restart


def test_a_worker_of_named_queues_serves_no_other(start_worker: Start) -> None:
    start_worker("--queues", "default", "--poll-seconds", "0.1")
    until(served)
    Queue.objects.create(name="later")
    job = jobs.noop.using(queue="later").enqueue()
    for _ in range(3):  # each is seen by a look of its own
        until_status(jobs.noop.enqueue(), "succeeded")
    assert Job.objects.get(pk=job.pk).status == "ready"
    assert served() == {"default"}
