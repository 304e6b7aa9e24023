"""A step that starts only after a certain result of the one before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from django_jobs import If
from django_jobs.admin.workflows.steps import steps_of as shown_steps
from django_jobs.domain.outcomes import Cancelled, Succeeded
from django_jobs.domain.workflows import Skipped
from django_jobs.lifecycle import opening
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from django_jobs.models.database import fetch
from tests.factories import claim_ready, failure, register_worker, settle_one
from tests.lifecycle.test_opening import finish, reread
from tests.lifecycle.workflows.test_restarting_races import retry
from tests.lifecycle.workflows.test_wide_plans import most_rows
from tests.workflows import states, step, steps_of

pytestmark = pytest.mark.django_db

DEAD = failure(final=True)
YES, NO = If("approved", equals=True), If("approved", equals=False)
APPROVED = Succeeded(result='{"approved": true}')


def start_branches(
    graph: Mapping[str, str], conditions: Mapping[tuple[str, str], If]
) -> WorkflowRun:
    """A run of the graph, with conditions on edges: of each, the child and the parent."""
    names = list(graph)
    steps = [
        replace(one, after={at: conditions.get((one.name, names[at]), when)
                            for at, when in one.after.items()})
        for one in steps_of(graph)
    ]  # fmt: skip
    return start(NewRun(name="branches"), steps)


@pytest.mark.parametrize(
    ("condition", "met", "unmet"),
    [
        (If(equals={"a": 1}), [{"a": 1.0}], [{"a": 1, "b": 2}, [], None]),
        (If("a.b", equals=None), [{"a": {"b": None}}], [{"a": {}}, {"a": 1}, [None], {"a.b": 1}]),
        (If("1", equals="x"), [["", "x"], {"1": "x"}], [["x"], "x", {}]),
        (If("n", not_equals=1), [{"n": 2}, {"n": "1"}, {"n": True}], [{"n": 1}, {}, None]),
        (If("n", at_least=1.5), [{"n": 1.5}, {"n": 2}], [{"n": 1}, {"n": True}, {"n": []}, {}]),
        (If("n", at_least=0, at_most=9), [{"n": 0}, {"n": 9}], [{"n": -1}, {"n": 10}, {"n": "5"}]),
        (If("s", in_=["a", 1, None]), [{"s": "a"}, {"s": None}], [{"s": "b"}, {"s": ["a"]}, {}]),
    ],
)
def test_a_branch_opens_if_its_condition_holds_for_the_result(
    condition: If, met: list[Any], unmet: list[Any]
) -> None:
    for result, is_met in [*((one, True) for one in met), *((one, False) for one in unmet)]:
        run = start_branches({"a": "", "b": "a"}, {("b", "a"): condition})
        finish({"a": Succeeded(result=None if result is None else json.dumps(result))})
        assert states(run)["b"] == ("succeeded" if is_met else "cancelled (unneeded)"), result
        assert reread(run).status == "succeeded"


def test_the_other_branch_is_skipped_with_what_needs_it_and_fails_no_run() -> None:
    graph = {"a": "", "plain": "a", "yes": "a", "no": "a", "after": "no", "sorry": "-no"}
    graph |= {"end": "*yes *no"}
    run = start_branches(graph, {("yes", "a"): YES, ("no", "a"): NO})
    assert finish({"a": APPROVED}) == ["a", "plain", "yes", "end"]
    assert states(run) == {
        **dict.fromkeys(("a", "plain", "yes"), "succeeded"),
        **dict.fromkeys(("no", "after", "sorry"), "cancelled (unneeded)"),
        "end": "succeeded",
    }
    reasons = {one: step(run, one).reason for one in ("no", "after")}
    assert reasons == {
        "no": "skipped: a succeeded with another result",
        "after": "skipped: no was skipped",
    }
    edges = shown_steps(run)
    names = {pk: one.step for pk, one in edges.by_id.items()}
    shown = {
        (names[edge.parent], names[edge.child]): edges.edge_state(edge) for edge in edges.edges
    }
    assert [shown["a", one] for one in ("plain", "yes", "no")] == ["met", "met", "broken"]
    ended = reread(run)
    assert (ended.status, ended.reason, ended.ends_left) == ("succeeded", "", 0)


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (DEAD, "cancelled (failed)", "skipped: a failed"),
        (Cancelled(reason="no"), "cancelled (failed)", "skipped: a was cancelled"),
        (Cancelled(skipped=Skipped.UNNEEDED), "cancelled (unneeded)", "skipped: a was skipped"),
        (Succeeded(result="7", not_stored="too large"), "cancelled (unneeded)", None),
    ],
)
def test_no_condition_holds_without_a_result(outcome: Any, state: str, reason: str | None) -> None:
    run = start_branches({"a": "", "b": "a"}, {("b", "a"): If(not_equals=1)})
    finish({"a": outcome})
    assert states(run)["b"] == state
    assert step(run, "b").reason == (reason or "skipped: a succeeded with another result")


def test_a_retry_opens_the_branch_of_the_new_result_and_keeps_what_old_ones_decided() -> None:
    """``early`` succeeded before the retry, and its result is in the history."""
    graph = {"early": "", "a": "", "yes": "a early", "no": "a early", "other": "a early"}
    conditions = {("yes", "a"): YES, ("no", "a"): NO, ("other", "early"): NO}
    run = start_branches(graph, conditions | {("yes", "early"): YES, ("no", "early"): YES})
    finish({"early": APPROVED, "a": DEAD})
    assert list(states(run).values()) == ["succeeded", "dead", *["cancelled (failed)"] * 3]
    retry(run.pk)
    assert states(run) == {
        "early": "succeeded",
        "a": "ready",
        **dict.fromkeys(("yes", "no"), "waiting"),
        "other": "cancelled (failed)",
    }
    assert stuck() == []
    finish({"a": APPROVED})
    assert states(run)["yes"] == "succeeded"
    assert states(run)["no"] == "cancelled (unneeded)"
    assert (reread(run).status, stuck()) == ("succeeded", [])


def test_a_step_that_waits_for_what_it_cannot_start_with_is_found() -> None:
    run = start_branches({"a": "", "b": "", "c": "a b"}, {("c", "a"): YES})
    (a, _) = claim_ready(register_worker())
    settle_one(a, APPROVED)
    assert stuck() == []
    Job.objects.filter(step="a").update(result={"approved": False})
    assert [one["problem"] for one in stuck()] == ["it waits after a, with which it cannot start"]
    assert reread(run).status == "running"


def test_conditions_of_a_wide_level_are_looked_up_once() -> None:
    width = 300
    members = {f"member-{number}": "a" for number in range(width)}
    conditions = {(member, "a"): NO if number % 2 else YES for number, member in enumerate(members)}
    run = start_branches({"a": "", **members}, conditions)
    (a,) = claim_ready(register_worker())
    settle_one(a, APPROVED)
    ended = {"ids": f"{{{a.id}}}", "runs": f"{{{run.pk}}}", "fates": "{succeeded}"}
    assert most_rows(opening.COUNT_DOWN_ASKED, ended) <= 20 * width
    assert list(states(run).values()).count("ready") == width // 2
    ((met, *_),) = fetch(opening.COUNT_DOWN_MET, {"ids": f"{{{a.id}}}"})
    assert not met
