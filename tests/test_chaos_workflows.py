"""The account of the chaos test about workflows finds what is stuck, doubled and wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from django_jobs import If
from django_jobs.domain.outcomes import Cancelled, Succeeded
from django_jobs.domain.workflows import Skipped
from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.operations import workflows as operations
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.lifecycle.workflows.stuck import STUCK
from django_jobs.models import Job, WorkflowDefinition, WorkflowRun
from tests.chaos import workflow_plan, workflows
from tests.chaos.workflow_plan import SIGNAL, START
from tests.factories import claim_ready, failure, register_worker, run_sql, settle_one
from tests.lifecycle.workflows.test_branches import start_branches
from tests.test_chaos_partitions import Here
from tests.workflows import start_graph, steps_of

GRAPH = {"reserve": "", "ship": "reserve", "sorry": "-ship"}
RUNS = "good", "bad", "cancelled"


@pytest.fixture
def storm(db: None, tmp_path: Path) -> Path:
    """A run that succeeded, one that failed and undid a step, one that was cancelled, a fan-out,
    one with a branch, a step that skips itself and an optional one, and one that stopped."""
    definition = WorkflowDefinition.objects.create(
        name="chaos.order",
        version=1,
        fingerprint="",
        graph={"steps": [{"name": name} for name in GRAPH]},
        created_at=Now(),
    )
    undo = as_json({"reserve": steps_of({"undo reserve": ""})[0]})
    runs = [
        start(
            NewRun(
                name="chaos.order", definition=definition.pk, idempotency_key=key,
                compensations=undo,
            ),
            steps_of(GRAPH),
        )
        for key in RUNS
    ]  # fmt: skip
    operations.cancel([runs[2].pk])
    start_graph({"split": "", "part[0]": "split"})
    Job.objects.filter(step="split").update(job_type="chaos.splits", payload={"parts": 1})
    branches = start_branches(
        {"judge": "", "none": "judge", "some": "judge", "extra": "judge"},
        {("none", "judge"): If(equals=0), ("some", "judge"): If(at_least=1)},
    )
    of_branches = Job.objects.filter(workflow_run=branches)
    of_branches.filter(step="some").update(job_type="chaos.perhaps")
    start(NewRun(name="chaos.strict"), steps_of({"risk": ""}))
    ends: dict[int, Any] = {
        Job.objects.get(workflow_run=runs[1], step="ship").pk: failure(final=True),
        Job.objects.get(step="risk").pk: failure(final=True),
        of_branches.get(step="extra").pk: Cancelled(skipped=Skipped.PASSED),
        of_branches.get(step="some").pk: Cancelled(skipped=Skipped.UNNEEDED),
    }
    worker, known = register_worker(), {"app.noop": 1, "chaos.splits": 1, "chaos.perhaps": 1}
    while ready := claim_ready(worker, job_types=known):
        for held in ready:
            settle_one(held, ends.get(held.id, Succeeded(result="1")))
    write(tmp_path)
    return tmp_path


def write(directory: Path, *, runs: Sequence[str] = RUNS, done: Sequence[Mapping[str, Any]] = ()):
    found = {"kept_runs": list(runs), "done": list(done), "stuck": STUCK}
    (directory / "keys-workflows.json").write_text(json.dumps(found))


def found(directory: Path) -> list[str]:
    problems = list(workflows.problems(Here(), directory))
    assert {number for number, _ in problems} <= {22}
    return [text.split(":")[0] for _, text in problems]


def test_a_storm_whose_rows_follow_from_each_other_balances(storm: Path) -> None:
    assert found(storm) == []
    counts = workflows.counted(Here(), storm)
    assert counts["runs that succeeded"] == 3
    assert counts["steps that undid others"] == counts["steps that were spawned"] == 1


GOOD = "workflow_run_id = (SELECT min(id) FROM django_jobs_workflowrun)"


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (
            f"UPDATE django_jobs_job SET status = 'waiting', prerequisites = 0, finished_at = NULL"
            f" WHERE step = 'ship' AND {GOOD}",
            "a graph that is stuck",
        ),
        (
            "UPDATE django_jobs_job SET result = '0' WHERE step = 'judge'",
            "the rows contradict each other",
        ),
        (
            "UPDATE django_jobs_workflowrun SET status = 'failed'"
            " WHERE idempotency_key = 'cancelled'",
            "the rows contradict each other",
        ),
        (
            f"DELETE FROM django_jobs_job WHERE step = 'sorry' AND {GOOD}",
            "a run whose steps are not those of its definition, what it spawned and what undoes"
            " others",
        ),
        ("UPDATE django_jobs_job SET step = 'other' WHERE step = 'part[0]'",
         "a fan-out that is not there once"),
        ("UPDATE django_jobs_job SET job_type = 'chaos.diamond' WHERE step = 'part[0]'",
         "a job that has started its run otherwise than once"),
        (f"UPDATE django_jobs_job SET result = '2' WHERE step = 'ship' AND {GOOD}",
         "a result that is not that of the steps before"),
        ("UPDATE django_jobs_workflowrun SET status = 'succeeded' WHERE idempotency_key = 'bad'",
         "a run that has begun to undo itself and has not failed"),
        ("UPDATE django_jobs_job SET step = 'undo' WHERE step = 'undo reserve'",
         "a step of a failed run that succeeded otherwise than it was undone"),
        (f"UPDATE django_jobs_job SET skipped = 'unneeded' WHERE step = 'ship' AND {GOOD}",
         "a step that was skipped and ran"),
        ("UPDATE django_jobs_workflowrun SET idempotency_key = NULL WHERE idempotency_key = 'bad'",
         "runs that were acknowledged and are not there"),
        ("UPDATE django_jobs_workflowrun SET idempotency_key = 'good'",
         "runs that are there twice"),
        ("UPDATE django_jobs_dependency SET condition = NULL; UPDATE django_jobs_job"
         " SET status = 'succeeded', skipped = NULL WHERE step = 'none'",
         "there are no branches that were not taken, so nothing was tried"),
        ("DELETE FROM django_jobs_job WHERE step = 'undo reserve'",
         "there are no steps that undid others, so nothing was tried"),
    ],
)  # fmt: skip
def test_each_row_that_does_not_follow_fails_the_account(
    storm: Path, fault: str, problem: str
) -> None:
    run_sql(fault)
    assert problem in found(storm)


def test_a_run_that_was_never_acknowledged_fails_the_account(storm: Path) -> None:
    write(storm, runs=["good", "bad"])
    assert found(storm) == ["runs that are there and were never acknowledged"]


def test_operations_that_were_not_as_answered_fail_the_account(storm: Path) -> None:
    run = WorkflowRun.objects.get(idempotency_key="good")
    job = run.steps.get(step="ship")
    on = {"key": "good", "answer": True, "run": run.pk, "job": job.pk, "data": 7}
    for answer in (False, None):
        write(storm, done=[{**on, "verb": verb, "answer": answer} for verb in ("cancel", "skip")])
        assert found(storm) == []
    for verb, problem in {
        "cancel": f"run {run.pk} was cancelled and is succeeded",
        "skip": f"step {job.pk} was skipped by hand and is ['succeeded', None, '1', '']",
        "signal": f"step {job.pk} got 7 and returned 1",
    }.items():
        write(storm, done=[{**on, "verb": verb}])
        assert [text.replace("\\", "") for text in found(storm)] == [problem]
    write(storm, done=[{**on, "verb": "cancel"}, {**on, "verb": "retry", "answer": None}])
    assert found(storm) == [], "it may have been retried since"


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_a_storm_as_short_as_that_of_ci_starts_and_operates_all_kinds(seed: int) -> None:
    events = workflow_plan.events(seed, 60, 42.0)
    assert (
        events == workflow_plan.events(seed, 60, 42.0) != workflow_plan.events(seed + 9, 60, 42.0)
    )
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[-1].at < 42.0
    started = [event for event in events if event.verb == START]
    assert sorted(event.number for event in started) == list(range(60))
    assert {event.kind for event in started} == set(workflow_plan.KINDS)
    assert {event.verb for event in events} == {*workflow_plan.VERBS, START, SIGNAL} - {"none"}
    assert "rolled back" in {event.manner for event in started}
    assert {event.kind for event in started if event.failing} == workflow_plan.FAILING
