"""The account of workflows finds each row that does not follow from the others."""

from __future__ import annotations

import re

import pytest

from django_jobs import If
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations import workflows
from tests.factories import claim_ready, failure, register_worker, run_sql, settle_one
from tests.lifecycle.workflows.test_branches import start_branches
from tests.workflow_account import contradictions
from tests.workflows import start_graph

GRAPH = {"a": "", "bad": "", "b": "a", "c": "a bad", "d": "b"}


@pytest.fixture
def _graph(db: None) -> None:
    """``a`` succeeded and ``bad`` failed: ``b`` is ready, ``c`` was skipped, ``d`` waits."""
    start_graph(GRAPH)
    good, bad = claim_ready(register_worker())
    settle_one(good, Succeeded())
    settle_one(bad, failure(final=True))


WRONG = {
    "UPDATE django_jobs_job SET status = 'waiting', prerequisites = 0 WHERE step = 'b'": (
        "'b' waits for 0 steps, and 0 before it have not ended"
    ),
    "UPDATE django_jobs_job SET prerequisites = 2 WHERE step = 'd'": (
        "'d' waits for 2 steps, and 1 before it have not ended"
    ),
    "UPDATE django_jobs_job SET status = 'ready' WHERE step = 'd'": (
        "'d' is ready, and 1 steps before it have not ended"
    ),
    "UPDATE django_jobs_job SET skipped = 'unneeded' WHERE step = 'c'": (
        "'c' is cancelled (unneeded) and not skipped as failed"
    ),
    "UPDATE django_jobs_job SET status = 'cancelled', skipped = 'failed', finished_at = now()"
    " WHERE step = 'b'": "'b' was skipped as failed, and nothing before it is a reason",
    "UPDATE django_jobs_job SET step = 'a' WHERE step = 'b'": "has steps twice: ['a']",
    "UPDATE django_jobs_workflowrun SET status = 'failed'": "is failed and not running",
    "UPDATE django_jobs_job SET status = 'cancelled', finished_at = now()"
    " WHERE step IN ('b', 'd')": "is running and not failed",
    "UPDATE django_jobs_job SET finished_at = finished_at + interval '1 hour' WHERE step = 'a'; "
    "INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at, "
    "finished_at, error_type, error_message, traceback, fingerprint) SELECT id, 1, 'succeeded', "
    "1, now(), now(), now(), '', '', '', '' FROM django_jobs_job WHERE step = 'b'": (
        "'b' was claimed before"
    ),
}


@pytest.mark.usefixtures("_graph")
def test_what_follows_from_its_parents_is_no_contradiction() -> None:
    assert contradictions(run_sql) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("condition", "right", "wrong"),
    [
        (If(equals=1), "1", ["true", "2", "null"]),
        (If("a.b", not_equals="x"), '{"a": {"b": "y"}}', ['{"a": {"b": "x"}}', '{"a": 1}']),
        (If("n", at_least=1, at_most=2), '{"n": 2}', ['{"n": 3}', '{"n": true}', "[]"]),
        (If(in_=["a", None]), "null", ['"b"', '["a"]']),
    ],
)
def test_a_branch_that_its_condition_does_not_open_is_one(
    condition: If, right: str, wrong: list[str]
) -> None:
    start_branches({"a": "", "b": "a"}, {("b", "a"): condition})
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded(result=right))
    assert contradictions(run_sql) == []
    for result in wrong:
        run_sql("UPDATE django_jobs_job SET result = %s WHERE step = 'a'", [result])
        assert any("'b'" in one for one in contradictions(run_sql)), result


@pytest.mark.usefixtures("_graph")
def test_what_persons_did_is_no_contradiction() -> None:
    runs = [start_graph({"a": "", "sorry": "-a", "b": "a", "c": "b"}) for _ in range(3)]
    worker = register_worker()
    for outcome in (failure(final=True), Succeeded(), failure(final=True)):
        for held in claim_ready(worker):
            settle_one(held, outcome)
    retried, skipped, cancelled = (run.pk for run in runs)
    assert workflows.retry([retried, cancelled], check=lambda job: None).done
    for held in claim_ready(worker):
        settle_one(held, Succeeded())
    assert workflows.skip(skipped, "a").done
    assert workflows.cancel([cancelled]).done
    while ready := claim_ready(worker):
        for held in ready:
            settle_one(held, Succeeded())
    assert contradictions(run_sql) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "graph",
    [
        {"a": "", "sorry": "-a"},
        {"a": "", "b": "a", "sorry": "-b"},
        {"a": "", "tidy": "*a"},
    ],
)
def test_what_ran_while_a_step_before_it_was_started_again_is_none(graph: dict[str, str]) -> None:
    """It ends after that step, which has succeeded this time, or was skipped and is not now."""
    run, worker = start_graph(graph), register_worker()
    (first,) = claim_ready(worker)
    settle_one(first, failure(final=True))
    (sorry,) = claim_ready(worker)
    assert workflows.retry([run.pk], check=lambda job: None).done
    while ready := claim_ready(worker):
        for held in ready:
            settle_one(held, Succeeded())
    settle_one(sorry, Succeeded())
    assert contradictions(run_sql) == []
    run_sql("UPDATE django_jobs_job SET replays = 0")
    assert contradictions(run_sql)  # so that it is the retry which allows it


@pytest.mark.usefixtures("_graph")
@pytest.mark.parametrize(("change", "said"), WRONG.items(), ids=WRONG.values())
def test_what_does_not_is_one(change: str, said: str) -> None:
    for statement in change.split("; "):
        run_sql(statement)
    found = [re.sub(r" \(#[^)]*\)", "", one) for one in contradictions(run_sql)]
    assert [one for one in found if said in one], found
