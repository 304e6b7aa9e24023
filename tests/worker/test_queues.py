"""Which queues a worker serves, with real processes."""

from __future__ import annotations

import pytest

from django_jobs import enqueue_many
from django_jobs.models import Job, Queue, Run, Worker
from tests.app import jobs
from tests.triggers import refused

from .processes import Start, until, until_status

pytestmark = pytest.mark.processes


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


def started_until(ended: int) -> list[str]:
    """The queues of the jobs that had started when that number had ended."""
    runs = Run.objects.order_by("finished_at")
    at = runs[ended - 1].finished_at
    started = runs.filter(started_at__lte=at).values_list("job_id", flat=True)
    queues = dict(Job.objects.values_list("pk", "queue"))
    return [queues[job] for job in started]


@pytest.mark.parametrize(
    "seconds_of_a, seconds_of_b, threads, ended",
    [
        pytest.param(0, 0, 4, (600, 3000), id="claims by the hundred"),
        pytest.param(0.6, 0.6, 16, (48,), id="claims for each free thread"),
        pytest.param(0.001, 0.1, 4, (300,), id="slow jobs have the smaller share"),
        pytest.param(0.1, 0.001, 4, (90,), id="slow jobs have the larger share"),
    ],
)
def test_weights_are_shares_of_the_started_jobs(
    start_worker: Start,
    seconds_of_a: float,
    seconds_of_b: float,
    threads: int,
    ended: tuple[int, ...],
) -> None:
    for name, seconds in (("a", seconds_of_a), ("b", seconds_of_b)):
        Queue.objects.create(name=name)
        enqueue_many(
            "app.nap" if seconds else "app.noop",
            [{"seconds": seconds} if seconds else {}] * (ended[-1] + 600),
            queue=name,
        )
    start_worker("--queues", "a:5,b:1", "--threads", str(threads))
    until(lambda: Run.objects.count() >= ended[-1])
    for count in ended:
        started = started_until(count)
        assert abs(started.count("a") / len(started) - 5 / 6) < 0.1, count


def test_a_queue_whose_claims_a_trigger_refuses_delays_no_other(start_worker: Start) -> None:
    with refused("NEW.queue = 'bulk' AND NEW.status = 'running'"):
        job = jobs.noop.using(queue="bulk").enqueue()
        worker = start_worker("--poll-seconds", "0.1")
        until(lambda: "not on Sundays" in worker.text())
        # Far more than one claim takes: the share of that queue is far behind theirs.
        others = Job.objects.filter(pk__in=enqueue_many(jobs.noop, [{}] * 2_000))
        until(lambda: others.filter(status="succeeded").count() == 2_000)
        assert Job.objects.get(pk=job.pk).status == "ready"
    assert until_status(job, "succeeded").attempt == 1
