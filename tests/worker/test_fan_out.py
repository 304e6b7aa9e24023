"""A fan-out in real workers, which are killed in the middle of it.

CI has 16,000 children. At full size: ``FAN_OUT_CHILDREN=1000000 pytest`` with this file.
"""

from __future__ import annotations

import os
import time

import pytest

from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from tests.app.fan_out_jobs import spawn_through_crashes
from tests.worker.processes import Start, until_status

COUNT = int(os.environ.get("FAN_OUT_CHILDREN", "16000"))
PATIENCE = 120 + COUNT / 1_000
KIB = 32 * 1024
"""What a spawn of any size may take, and what reads its children. A list of a million children
takes several times as much."""


@pytest.mark.processes
def test_a_spawn_killed_twice_leaves_each_child_once(
    start_worker: Start,
) -> None:
    spawner = spawn_through_crashes.enqueue(count=COUNT)
    began = time.monotonic()
    worker = start_worker("--burst")
    assert worker.wait(PATIENCE) == 0
    job = until_status(spawner, "succeeded")
    assert (job.attempt, job.crashes) == (3, 0)
    run = WorkflowRun.objects.get()
    assert (run.status, run.ends_left) == ("succeeded", 0)
    children = Job.objects.filter(workflow_run=run, job_type="app.numbered")
    assert children.count() == children.values("step").distinct().count() == COUNT
    total = Job.objects.get(step="total")
    assert (total.result["count"], total.result["sum"]) == (COUNT, sum(range(COUNT)))
    assert job.result["kib"] < KIB
    assert total.result["kib"] < KIB
    assert not stuck()
    assert total.finished_at is not None
    assert total.started_at is not None
    print(
        f"{COUNT:,} children: {time.monotonic() - began:.0f} s; the last attempt spawned for "
        f"{job.result['seconds']} s with {job.result['kib']:,} KiB; the step after them read for "
        f"{(total.finished_at - total.started_at).total_seconds():.1f} s with "
        f"{total.result['kib']:,} KiB"
    )
