"""Operations on runs while other sessions settle their steps: none is stuck."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs.api import replay_problem
from django_jobs.lifecycle.operations import workflows
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from tests.factories import claim_ready, failure, in_threads, register_worker
from tests.lifecycle.test_opening import OK, finish
from tests.workflows import start_graph

DEAD = failure(final=True)
GRAPH = {
    **{str(n): "" for n in range(6)},
    "x": "0 1 2",
    "y": "*3 4",
    "sorry": "-0",
    "z": "x *y *sorry",
}


def retry(run: int) -> None:
    workflows.retry([run], check=replay_problem)


def cancel(run: int) -> None:
    workflows.cancel([run])


def skip(run: int) -> None:
    for name in ("x", "0", "4"):
        workflows.skip(run, name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", [retry, cancel, skip])
def test_an_operation_beside_settles_leaves_no_run_stuck(
    operation: Callable[[int], None],
) -> None:
    runs = [start_graph(GRAPH).pk for _ in range(25)]
    workers = [register_worker(str(n)) for n in range(4)]
    held = [claim_ready(worker, limit=37) for worker in workers]
    assert sum(map(len, held)) == 148

    def work(number: int) -> None:
        if number == 0:
            for run in runs:
                operation(run)
        else:
            mine = held[number - 1]
            for start in range(0, len(mine), 3):
                batch = mine[start : start + 3]
                settle([Ending(one, DEAD if one.id % 4 == 0 else OK) for one in batch])

    in_threads(5, work)
    assert stuck() == []
    assert not Job.objects.filter(prerequisites__lt=0).exists()
    finish()
    assert stuck() == []
    assert not WorkflowRun.objects.filter(status="running").exists()
    for run in WorkflowRun.objects.filter(status="failed"):
        retry(run.pk)
    finish()
    assert stuck() == []
    assert "failed" not in set(WorkflowRun.objects.values_list("status", flat=True))
