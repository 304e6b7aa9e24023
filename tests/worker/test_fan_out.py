"""A fan-out in real workers, which are killed in the middle of it."""

from __future__ import annotations

from collections.abc import Callable

from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from tests.app.fan_out_jobs import spawn_through_crashes
from tests.worker.processes import JobWorker, until_status

COUNT = 16_000


def test_a_spawn_killed_twice_leaves_each_child_once(
    start_worker: Callable[..., JobWorker],
) -> None:
    spawner = spawn_through_crashes.enqueue(count=COUNT)
    worker = start_worker("--burst")
    assert worker.wait(120) == 0
    job = until_status(spawner, "succeeded")
    assert (job.attempt, job.crashes) == (3, 0)
    run = WorkflowRun.objects.get()
    assert (run.status, run.ends_left) == ("succeeded", 0)
    children = Job.objects.filter(workflow_run=run, job_type="app.numbered")
    assert children.count() == children.values("step").distinct().count() == COUNT
    assert Job.objects.get(step="total").result == [COUNT, sum(range(COUNT))]
    assert not stuck()
