"""The query that looks for graphs that could never end."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.states import JobState
from django_jobs.domain.workflows import Skipped, fate_of
from django_jobs.lifecycle.job_columns import FATE
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from tests.factories import claim_ready, failure, make_dead, register_worker, run_sql
from tests.workflows import start_graph, step

pytestmark = pytest.mark.django_db

GRAPH = {"a": "", "b": "a", "sorry": "-a", "c": "b *sorry"}


def problems() -> list[tuple[Any, str]]:
    return [(one["step"], one["problem"]) for one in stuck()]


@pytest.mark.parametrize("final", [True, False])
def test_no_run_is_stuck_at_any_time_of_its_life(final: bool) -> None:
    make_dead()
    start_graph(GRAPH)
    worker, rounds = register_worker(), 0
    while held := claim_ready(worker):
        assert stuck() == []
        settle([Ending(one, failure(final=final and rounds == 0)) for one in held])
        assert stuck() == []
        Job.objects.filter(status="scheduled").update(status="ready")
        rounds += 1
    assert not WorkflowRun.objects.filter(status="running").exists()


def test_a_step_that_waits_for_nothing_is_found() -> None:
    run = start_graph(GRAPH)
    Job.objects.filter(step="a").update(status="succeeded", finished_at="2026-11-22T00:00Z")
    assert problems() == [
        ("b", "no step before it is left, and it waits"),
        ("sorry", "no step before it is left, and it waits"),
        ("sorry", "it waits after a, with which it cannot start"),
    ]
    assert {one["run"] for one in stuck()} == {run.pk}
    assert stuck()[0]["job"] == step(run, "b").pk


def test_a_step_that_should_have_been_skipped_is_found() -> None:
    start_graph({"a": "", "b": "", "c": "a b"})
    Job.objects.filter(step="a").update(status="dead")
    assert problems() == [
        ("c", "it waits after a, with which it cannot start"),
        ("c", "it waits for 2 steps, and 1 have not ended"),
    ]
    Job.objects.filter(step="b").update(status="dead")
    assert ("c", "no step before it is left, and it waits") in problems()


def test_a_step_that_waits_for_a_signal_is_not_stuck() -> None:
    start_graph({"a": "", "b": ""})
    Job.objects.filter(step="a").update(status="waiting", awaits="approval")
    assert stuck() == []


def test_a_run_without_a_live_step_is_found() -> None:
    start_graph({"a": ""})
    Job.objects.filter(step="a").update(status="dead")
    assert problems() == [(None, "all its steps have ended, and it runs")]


def test_a_step_that_outlives_its_run_is_found() -> None:
    run = start_graph({"a": ""})
    WorkflowRun.objects.filter(pk=run.pk).update(status="failed")
    assert problems() == [("a", "it has not ended, and its run has")]


def test_counts_that_are_wrong_are_found() -> None:
    run = start_graph({"a": "", "b": "", "c": "a b", "d": ""})
    Job.objects.filter(step="c").update(prerequisites=3)
    assert problems() == [("c", "it waits for 3 steps, and 2 have not ended")]
    Job.objects.filter(step="c").update(prerequisites=2)
    for wrong in (0, 1, 3):
        WorkflowRun.objects.filter(pk=run.pk).update(ends_left=wrong)
        assert problems() == [(None, f"it counts {wrong} last steps, and 2 have not ended")]


@pytest.mark.parametrize("skipped", [None, *Skipped])
@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled"])
def test_the_fate_of_a_step_is_the_same_in_sql(status: str, skipped: Skipped | None) -> None:
    fate = run_sql(
        f"SELECT {FATE} FROM (SELECT %s::text AS status, %s::text AS skipped) AS job",
        [status, skipped],
    )
    assert fate == [(fate_of(JobState(status), skipped),)]
