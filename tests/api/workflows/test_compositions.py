"""Chains and groups, and one in the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_jobs import EnqueueError, PayloadError, WorkflowError
from django_jobs.api.workflows import compositions
from django_jobs.api.workflows import edges as declared_edges
from django_jobs.api.workflows.compositions import Composition, chain, group
from django_jobs.models import WorkflowRun
from tests.app.flow_jobs import charge_card, gather, reserve_stock, ship_order
from tests.app.jobs import noop

from .test_startable import edges, steps


def parents(composition: Composition) -> dict[str, list[str]]:
    return {step.name: list(step.after) for step in composition.steps}


def test_a_step_of_a_chain_comes_after_the_one_before() -> None:
    one = chain(reserve_stock.step(order_id=7), noop, ship_order.step(order_id=7))
    assert parents(one) == {
        "reserve_stock": [],
        "noop": ["reserve_stock"],
        "ship_order": ["noop"],
    }
    assert one.name == "chain app.reserve_stock"


def test_one_step_comes_after_all_of_a_group() -> None:
    many = group(reserve_stock.steps([{"order_id": n} for n in (1, 2, 3)]), then=noop)
    names = ["reserve_stock-1", "reserve_stock-2", "reserve_stock-3"]
    assert parents(many) == {**{name: [] for name in names}, "noop": names}


def test_chains_and_groups_stand_in_one_another() -> None:
    whole = chain(
        noop.step().named("extract"),
        group(
            chain(noop.step().named("a"), noop.step().named("b")),
            group(noop.step().named("c"), noop.step().named("d"), then=noop.step().named("e")),
        ),
        noop.step().named("load"),
    )
    assert parents(whole) == {
        "extract": [],
        "a": ["extract"],
        "b": ["a"],
        "c": ["extract"],
        "d": ["extract"],
        "e": ["c", "d"],
        "load": ["b", "e"],
    }


def test_names_with_numbers_and_of_compensations_are_checked(workflow: Callable[..., Any]) -> None:
    long = noop.step().named("x" * 199)
    with pytest.raises(WorkflowError, match=r"app.noop: the name of a step has 201 characters"):
        group(long, long).start()
    undone = workflow().step(noop, "one", compensate=noop)
    with pytest.raises(WorkflowError, match="two steps are named 'undo one'"):
        chain(undone, noop.step().named("undo one")).start()
    undone = undone.named("x" * 196)
    with pytest.raises(WorkflowError, match=r"app.noop: the name of a step has 201 characters"):
        chain(undone).start()


def test_an_empty_group_is_passed() -> None:
    whole = chain(noop.step().named("a"), group([]), group([], then=noop.step().named("b")))
    assert parents(whole) == {"a": [], "b": ["a"]}
    with pytest.raises(WorkflowError, match="there are no steps"):
        _ = group([]).steps


@pytest.mark.django_db
def test_a_composition_starts_as_a_run_without_a_definition() -> None:
    run = chain(
        reserve_stock.step(order_id=7),
        charge_card.step(order_id=7).taking(stock="reserve_stock"),
        gather.step().taking(stock="reserve_stock"),
    ).start()
    assert (run.definition_id, run.name) == (None, "chain app.reserve_stock")
    assert (
        edges(run)
        == {
            ("reserve_stock", "charge_card", "succeeded", None),
        }
        or len(edges(run)) == 3
    )
    assert [job.status for job in steps(run).values()] == ["ready", "waiting", "waiting"]


@pytest.mark.django_db
def test_start_gives_arguments_to_all_handlers_that_take_them() -> None:
    whole = group(reserve_stock, charge_card, noop)
    run = whole.using(priority=3, idempotency_key="k").start(order_id=7)
    assert [job.payload for job in steps(run).values()] == [{"order_id": 7}, {"order_id": 7}, {}]
    assert {job.priority for job in steps(run).values()} == {3}
    assert whole.using(idempotency_key="k").start(order_id=7).deduplicated
    with pytest.raises(PayloadError, match=r"group app.reserve_stock.start\(\): missing: order_id"):
        whole.start()
    assert WorkflowRun.objects.count() == 1


@pytest.mark.parametrize(
    ("composition", "message"),
    [
        (lambda: chain(noop, gather.step().taking(x="nop")), "'nop': there is no such step; did"),
        (
            lambda: chain(gather.step().taking(x="noop"), noop),
            "step 'gather' takes 'x' from 'noop', which is not upstream of it",
        ),
        (
            lambda: chain(group(noop, noop), gather.step().taking(x="noop")),
            "'noop': there is no such step; did you mean 'noop-[12]'",
        ),
        (
            lambda: chain(noop, noop, noop.step().named("noop-1")),
            "two steps are named 'noop-1'; rename one with .named",
        ),
    ],
)
def test_a_composition_that_cannot_work_is_refused(composition: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        composition().start()


def test_an_unusable_option_of_a_run_is_refused_under_the_name_of_the_composition() -> None:
    with pytest.raises(EnqueueError, match=r"^chain app.noop: delay is 0 or more seconds"):
        chain(noop).using(delay=-1)


@pytest.mark.parametrize("member", [7, None, "app.noop", {}])
def test_a_member_is_a_step(member: Any) -> None:
    with pytest.raises(TypeError, match=r"chain\(\) takes steps, chains and groups, such as"):
        chain(member)
    with pytest.raises(TypeError, match=r"group\(\) takes steps, chains and groups, such as"):
        group([member])


def test_two_large_groups_need_a_step_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compositions, "MOST_EDGES", 20)
    five = noop.steps([{}] * 5)
    with pytest.raises(WorkflowError, match="a run has at most 20 edges: put one step between"):
        _ = chain(group(five), group(five)).steps
    assert len(chain(group(five), noop, group(five)).steps) == 11


def test_a_step_with_too_many_after_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_edges, "MOST_CHILDREN", 5)
    assert len(chain(noop, group(noop.steps([{}] * 5), then=noop)).steps) == 7
    with pytest.raises(WorkflowError, match=r"'noop' has more than 5 steps .*spawn\(\)"):
        _ = chain(noop, group(noop.steps([{}] * 6))).steps
    assert len(group(noop.steps([{}] * 6), then=noop).steps) == 7
