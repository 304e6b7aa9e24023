"""Workers look at the pressure of the queues while they run."""

from __future__ import annotations

import json
import re

import pytest

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Queue
from tests.app.jobs import noop

from .processes import Start, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]

SWEEPS_OFTEN = json.dumps({"LEASE_SECONDS": 2.0, "SWEEP_SECONDS": 0.2})
CHANGED = r"event=queue_pressure_changed queue=bulk pressure=(\w+)"


def test_workers_log_each_level_of_a_queue_once(start_worker: Start) -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    job_operations.pause(["bulk"])
    noop.using(queue="bulk").enqueue_many([{}] * 5)
    workers = [start_worker("--queues", "bulk", TEST_DJANGO_JOBS=SWEEPS_OFTEN) for _ in range(2)]

    def levels() -> list[str]:
        return [level for one in workers for level in re.findall(CHANGED, one.text())]

    until(lambda: levels() == ["full"])
    job_operations.resume(["bulk"])
    until(lambda: "ok" in levels())
    until(lambda: Job.objects.filter(status="succeeded").count() == 5)
    # A look may have come between two claims.
    assert sorted(levels()) in (["full", "ok"], ["full", "high", "ok"])
