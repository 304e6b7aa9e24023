"""What undoes the steps of a failed run, and a run of which that fails too."""

from __future__ import annotations

import logging

import pytest

from django_jobs.domain.outcomes import Cancelled, Outcome
from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import workflows
from django_jobs.lifecycle.operations.dead_letters import dismiss
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.step_insert import insert_steps
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Job, WorkflowRun
from django_jobs.signals import worker_event
from tests.factories import claim_ready, heard, register_worker
from tests.lifecycle.test_opening import DEAD, OK, finish, reread
from tests.workflows import failed_compensations, saga, states, step, steps_of

pytestmark = pytest.mark.django_db


def replay(run: WorkflowRun, name: str) -> None:
    done = job_operations.replay([step(run, name).pk], check=lambda job: None).done
    assert done == [step(run, name).pk]


def test_a_failed_compensation_is_the_first_reason() -> None:
    graph = {"ok": "", **{f"f{number}": "ok" for number in range(5)}}
    compensations = as_json({"ok": steps_of({"undo ok": ""})[0]})
    run = start(NewRun(name="saga", compensations=compensations), steps_of(graph))
    finish(dict.fromkeys(["undo ok", *graph], DEAD) | {"ok": OK})
    assert (reread(run).status, reread(run).reason) == ("failed", "undo ok, f0, f1, ... failed")


@pytest.mark.parametrize(("outcome", "undone"), [(OK, ["undo a"]), (DEAD, [])])
def test_a_step_that_was_spawned_with_the_name_of_another_is_not_undone(
    outcome: Outcome, undone: list[str]
) -> None:
    run = saga("a")
    insert_steps(run.pk, steps_of({"a": ""}))
    first, spawned = claim_ready(register_worker())
    settle([Ending(spawned, OK), Ending(first, outcome)])
    assert [name for name in finish({"last": DEAD}) if name != "last"] == undone


@pytest.mark.django_db(transaction=True)
def test_a_failed_compensation_is_an_event_after_the_commit() -> None:
    run = saga("a", "b")
    with heard(worker_event) as events:
        finish({"last": DEAD, "undo a": DEAD})
    assert [(one["sender"], one["level"], one["fields"]) for one in events] == [
        (
            "compensation_failed",
            logging.ERROR,
            {"run": run.pk, "workflow": "saga", "steps": "undo a"},
        )
    ]
    (row,) = failed_compensations(5)
    assert (row["id"], row["name"], row["steps"]) == (run.pk, "saga", ["undo a"])


@pytest.mark.django_db(transaction=True)
def test_a_run_whose_compensations_cannot_be_written_fails_and_says_so() -> None:
    run = saga("x" * 196)
    with heard(worker_event) as events:
        finish({"last": DEAD})
    assert (reread(run).status, states(run)["last"]) == ("failed", "dead")
    assert step(run, "last").last_error == "ValueError: boom"
    reason = reread(run).reason
    assert reason.startswith("last failed; what undoes it could not be written: ")
    assert [one["fields"]["steps"] for one in events] == ["undo " + "x" * 196]


@pytest.mark.django_db(transaction=True)
def test_what_is_undone_is_no_event() -> None:
    with heard(worker_event) as events:
        saga("a")
        finish({"last": DEAD})
        saga("a")
        finish()
    assert (events, failed_compensations(5)) == ([], [])


def test_a_compensation_that_is_cancelled_alone_has_failed() -> None:
    run = saga("a", "b")
    finish({"last": DEAD, "undo b": Cancelled(reason="by hand")})
    assert states(run)["undo a"] == "succeeded"
    assert [one["steps"] for one in failed_compensations(5)] == [["undo b"]]


def test_who_cancels_the_run_cancels_its_compensations() -> None:
    run = saga("a", "b")
    with pytest.raises(AssertionError, match="does not come to an end"):
        finish({"last": DEAD}, rounds=3)
    assert states(run)["undo b"] == "ready"
    assert run.cancel("enough")
    assert states(run)["undo a"] == "cancelled"
    assert reread(run).status == "cancelled"
    assert [one["steps"] for one in failed_compensations(5)] == [["undo b", "undo a"]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("outcomes", "failed"),
    [
        ({"undo b": OK}, ["undo a"]),
        ({"undo b": DEAD}, ["undo b", "undo a"]),
        ({"undo b": Cancelled(reason="as asked")}, ["undo b", "undo a"]),
        ({"undo b": OK, "undo a": OK}, []),
    ],
)
def test_a_run_that_is_cancelled_while_it_is_undone_says_what_stays_done(
    outcomes: dict[str, Outcome], failed: list[str]
) -> None:
    run = saga("a", "b")
    with pytest.raises(AssertionError, match="does not come to an end"):
        finish({"last": DEAD}, rounds=3)
    worker = register_worker()
    *before, last = outcomes
    for name in before:
        settle([Ending(*claim_ready(worker), outcomes[name])])
    (running,) = claim_ready(worker)
    with heard(worker_event) as events:
        run.cancel("one click")
        assert reread(run).status == "running"
        settle([Ending(running, outcomes[last])])
    assert reread(run).status == "cancelled"
    assert [one["steps"] for one in failed_compensations(5)] == ([failed] if failed else [])
    told = [one["fields"]["steps"] for one in events if one["sender"] == "compensation_failed"]
    assert told == ([", ".join(failed)] if failed else [])


def test_compensations_that_were_cancelled_with_the_run_are_over_when_a_person_skips_them() -> None:
    run = saga("a", "b")
    with pytest.raises(AssertionError, match="does not come to an end"):
        finish({"last": DEAD}, rounds=3)
    run.cancel("enough")
    for name, left in (("undo a", [["undo b"]]), ("undo b", [])):
        assert not workflows.skip(run.pk, name, reason="refunded by hand").refused
        assert [one["steps"] for one in failed_compensations(5)] == left


def test_a_run_that_is_cancelled_before_it_is_undone_has_failed_at_nothing() -> None:
    run = saga("a", "b")
    (first,) = claim_ready(register_worker())
    settle([Ending(first, OK)])
    run.cancel("enough")
    assert (reread(run).status, failed_compensations(5)) == ("cancelled", [])


def test_a_failed_compensation_is_over_when_its_replay_succeeds() -> None:
    run = saga("a")
    finish({"last": DEAD, "undo a": DEAD})
    replay(run, "undo a")
    assert reread(run).compensations == {"begun": step(run, "undo a").pk}
    assert (reread(run).status, failed_compensations(5)) == ("running", [])
    assert finish() == ["undo a"]
    assert (reread(run).status, reread(run).reason) == ("failed", "last failed")
    assert failed_compensations(5) == []


def test_a_retry_of_a_run_that_is_undone_starts_its_failed_compensations_again() -> None:
    run = saga("a", "b", "c")
    finish({"last": DEAD, "undo a": DEAD, "undo b": Cancelled(reason="dropped")})
    assert workflows.retry([run.pk], check=lambda job: None).done == [run.pk]
    assert (reread(run).status, failed_compensations(5)) == ("running", [])
    assert finish() == ["undo b", "undo a"]
    assert (reread(run).status, reread(run).reason) == ("failed", "last failed")
    assert failed_compensations(5) == []
    assert workflows.retry([run.pk], check=lambda job: None).refused == {
        run.pk: "its compensations have begun: start a run instead"
    }


def test_a_retry_of_a_run_that_was_cancelled_while_it_was_undone_continues_that() -> None:
    run = saga("a", "b")
    with pytest.raises(AssertionError, match="does not come to an end"):
        finish({"last": DEAD}, rounds=3)
    run.cancel("wait")
    assert workflows.retry([run.pk], check=lambda job: None).done == [run.pk]
    assert failed_compensations(5) == []
    assert finish() == ["undo b", "undo a"]
    assert reread(run).status == "failed"


def test_a_failed_compensation_is_over_when_a_person_dismisses_it() -> None:
    run = saga("a", "b")
    finish({"last": DEAD, "undo a": DEAD, "undo b": DEAD})
    assert dismiss([step(run, "undo a").pk, step(run, "last").pk]).refused == {}
    assert [one["steps"] for one in failed_compensations(5)] == [["undo b"]]
    replay(run, "undo b")
    finish({"undo b": DEAD})
    assert [one["steps"] for one in failed_compensations(5)] == [["undo b"]]
    dismiss([step(run, "undo b").pk])
    assert failed_compensations(5) == []
    assert reread(run).compensations == {"begun": step(run, "undo b").pk}
    assert states(run)["undo a"] == "cancelled (passed)"
    assert states(run)["last"] == "cancelled"


def test_a_failed_compensation_is_over_when_a_person_skips_it() -> None:
    run = saga("a", "b")
    finish({"last": DEAD, "undo a": DEAD, "undo b": DEAD})
    assert [one["steps"] for one in failed_compensations(5)] == [["undo b", "undo a"]]
    assert not workflows.skip(run.pk, "undo a", reason="refunded by hand").refused
    assert [one["steps"] for one in failed_compensations(5)] == [["undo b"]]
    assert reread(run).reason == "undo b, last failed"
    assert not workflows.skip(run.pk, "undo b", reason="refunded by hand").refused
    assert failed_compensations(5) == []
    assert Job.objects.filter(workflow_run=run, skipped="passed").count() == 2
