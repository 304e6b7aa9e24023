"""Two parents that end at once, in two of 8 processes, open or skip their child once.

CI does it 150 times. At full size: ``WORKFLOW_ROUNDS=10000 pytest`` with this file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, Run, WorkflowRun
from tests.app.jobs import noop
from tests.app.workflow_jobs import fail_at_once
from tests.factories import run_sql
from tests.worker.processes import JobWorker, until
from tests.workflow_account import contradictions
from tests.workflows import steps_of

ROUNDS = int(os.environ.get("WORKFLOW_ROUNDS", "150"))
GRAPH = {"a": "", "b": "", "child": "a b", "last": "*child"}
FAILS = 5
"""In one of so many runs, ``b`` fails."""


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_two_parents_that_end_at_once_open_their_child_once(
    start_worker: Callable[..., JobWorker],
) -> None:
    """``a`` and ``b`` are in queues that different processes serve, in the same order."""
    there = noop.using(queue="bulk").request()
    fails = fail_at_once.using(queue="bulk").request()
    steps = steps_of(GRAPH)
    for number in range(ROUNDS):
        steps[1] = replace(steps[1], new=fails if number % FAILS == 0 else there)
        start(NewRun(name="parents"), steps)
    for queue in ("default", "bulk"):
        start_worker("--queues", queue, "--processes", "4", "--threads", "1", "-v", "0")
    running = WorkflowRun.objects.filter(status="running")
    until(lambda: not running.exists(), 100 + ROUNDS / 5, "all runs have ended")

    failed = len(range(0, ROUNDS, FAILS))
    assert Counter(Job.objects.values_list("step", "status")) == {
        ("a", "succeeded"): ROUNDS,
        ("b", "succeeded"): ROUNDS - failed,
        ("b", "dead"): failed,
        ("child", "succeeded"): ROUNDS - failed,
        ("child", "cancelled"): failed,
        ("last", "succeeded"): ROUNDS,
    }
    assert Counter(Run.objects.values_list("job__step", "outcome")) == {
        ("a", "succeeded"): ROUNDS,
        ("b", "succeeded"): ROUNDS - failed,
        ("b", "failed"): failed,
        ("child", "succeeded"): ROUNDS - failed,
        ("last", "succeeded"): ROUNDS,
    }
    assert contradictions(run_sql) == []
    assert stuck() == []
