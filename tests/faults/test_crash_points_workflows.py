"""W21: a crash between any two statements of a settle that opens steps, or of a start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, Run, WorkflowRun
from tests.app import fault_jobs
from tests.app.models import Effect
from tests.app.workflow_jobs import start_a_pair
from tests.factories import run_sql
from tests.worker.processes import Start
from tests.workflow_account import contradictions
from tests.workflows import states, steps_of

from .watching import said, settled, until

pytestmark = pytest.mark.processes

GRAPH = {
    "x": "",
    "y": "x",
    "bad": "x",
    "skipped": "bad",
    "sorry": "-bad",
    "twice": "skipped y",
    "tidy": "*twice",
    "end": "y tidy",
}
"""Two levels are skipped, and what waits for the end of the second runs."""

ENDS = {
    "x": "succeeded",
    "y": "succeeded",
    "bad": "dead",
    "skipped": "cancelled (failed)",
    "sorry": "succeeded",
    "twice": "cancelled (failed)",
    "tidy": "succeeded",
    "end": "succeeded",
    "undo y": "succeeded",
    "undo x": "succeeded",
}

FAULTS = (
    "before_opening:kill:1",
    "before_opening:kill:3",
    "after_opening:kill:1",
    "after_opening:kill:2",
    "before_skip:kill:1",
    "before_skip:kill:2",
    "after_skip:kill:1",
    "after_skip:kill:2",
    "before_count_ends:kill:1",
    "before_compensation:kill:1",
    "after_compensation:kill:1",
    "before_opening:raise:1",
    "after_opening:raise:1",
    "after_skip:raise:2",
    "after_compensation:raise:1",
)
UNDONE = ("y", "x")


def steps(path: Path, graph: dict[str, str]) -> list[NewStep]:
    """Each step leaves an effect; ``bad`` fails after it."""
    payload = json.dumps({"path": str(path)})
    job_types = {"bad": fault_jobs.leave_one_effect_and_fail}
    usual = fault_jobs.leave_one_effect
    return [
        replace(one, new=job_types.get(one.name, usual).request(), payload=payload)
        for one in steps_of(graph)
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_crash_within_a_settle_opens_and_runs_each_step_once(
    start_worker: Start, tmp_path: Path, fault: str
) -> None:
    undo = steps(tmp_path / "undo", {f"undo {name}": "" for name in UNDONE})
    compensations = as_json(dict(zip(UNDONE, undo, strict=True)))
    run = start(NewRun(name="graph", compensations=compensations), steps(tmp_path / "step", GRAPH))
    worker = start_worker(DJANGO_JOBS_FAULT=fault)
    said(worker, f"event=fault_made fault={fault}")
    until(lambda: WorkflowRun.objects.get(pk=run.pk).status == "failed", "the run has failed")
    assert states(run) == ENDS
    assert contradictions(run_sql) == []
    assert stuck() == []
    ended = Run.objects.filter(job__workflow_run=run).values_list("job__step", "outcome")
    ran = sorted(name for name, status in ENDS.items() if "cancelled" not in status)
    assert sorted(step for step, outcome in ended if outcome in ("succeeded", "failed")) == ran
    again = {outcome for _, outcome in ended} - {"succeeded", "failed"}
    assert again <= {"lost", "released"}
    assert bool(again) == ("kill" in fault)
    with_effect = Job.objects.filter(pk__in=Effect.objects.values("job_id"))
    assert sorted(with_effect.values_list("step", flat=True)) == ran


@pytest.mark.parametrize("fault", ["before_steps:kill", "after_steps:kill", "after_steps:raise"])
def test_a_crash_within_a_start_starts_the_whole_run_once(start_worker: Start, fault: str) -> None:
    job = start_a_pair.enqueue("once")
    worker = start_worker(DJANGO_JOBS_FAULT=fault)
    said(worker, f"event=fault_made fault={fault}:1")
    settled(job)
    until(lambda: not WorkflowRun.objects.filter(status="running").exists(), "all runs have ended")
    run = WorkflowRun.objects.get()
    assert states(run) == {"a": "succeeded", "b": "succeeded"}
    assert contradictions(run_sql) == []
    assert stuck() == []
