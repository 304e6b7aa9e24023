"""A workflow as a step of another one: its steps are steps of the outer run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_jobs import If, JobType, PayloadError, WorkflowError, current_run
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.lifecycle.operations.jobs import replay
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from django_jobs.testing import run_jobs
from tests.app.flow_jobs import (
    apologise,
    charge_card,
    gather,
    refund_card,
    reserve_stock,
    send_parcel,
    ship_order,
)
from tests.app.jobs import ask_for, noop
from tests.factories import declared
from tests.worker.processes import until
from tests.workflows import states, step

Declare = Callable[..., Workflow]


@pytest.fixture
def inner(workflow: Declare) -> Workflow:
    """An order: reserved, charged, shipped."""
    inner = workflow("orders.fulfil")
    reserve = inner.step(reserve_stock)
    charge = inner.step(charge_card, after=reserve, takes={"stock": reserve},
                        compensate=refund_card)  # fmt: skip
    inner.step(ship_order, after=charge, when=If(not_equals=""))
    return inner


def fallible(workflow: Declare, fate: str = "discard") -> Workflow:
    """``first``, which ends with this fate the first time, and what comes after."""
    inner = workflow("test.inner")
    first = inner.step(ask_for, "first", payload={"fate": fate})
    inner.step(noop, "then", after=first)
    inner.step(noop, "sorry", after=first, when="failed")
    inner.step(noop, "close", after="first", when="finished")
    return inner


def around(workflow: Declare, inner: Workflow) -> Workflow:
    outer = workflow("test.outer")
    outer.step(noop, "before")
    part = outer.step(inner, "part", after="before")
    outer.step(noop, "good", after=part)
    outer.step(noop, "bad", after=part, when="failed")
    outer.step(noop, "any", after=part, when="finished")
    return outer


def statuses(run: WorkflowRun, *names: str) -> dict[str, str]:
    found = states(run)
    return {name: found[name] for name in names}


def ended(run: WorkflowRun) -> str:
    assert stuck() == []
    run.refresh_from_db()
    return run.status


def test_the_steps_become_steps_of_the_outer_graph(workflow: Declare, inner: Workflow) -> None:
    outer = workflow("test.outer")
    pick = outer.step(noop, "pick")
    part = outer.step(inner, after={pick: If(at_least=1)}, payload={"warehouse": "north"},
                      takes={"order_id": pick})  # fmt: skip
    outer.step(gather, after=part, takes={"parcel": part, "stock": "fulfil.reserve_stock"})
    reserve, charge, ship, end, last = outer.graph["steps"][1:]
    condition = {"pick": {"path": "", "at_least": 1}}
    assert (reserve["name"], reserve["after"]) == ("fulfil.reserve_stock", condition)
    assert reserve["takes"] == ship["takes"] == {"order_id": "pick"}
    assert charge["takes"] == {"stock": "fulfil.reserve_stock", "order_id": "pick"}
    assert charge["compensate"] == "app.refund_card"
    assert ship["after"] == {"fulfil.charge_card": {"path": "", "not_equals": ""}}
    assert (end["name"], end["kind"], end["job_type"]) == ("fulfil", "workflow", "django_jobs.end")
    names = ("fulfil.reserve_stock", "fulfil.charge_card", "fulfil.ship_order")
    assert end["after"] == dict.fromkeys(names, "finished")
    assert last["takes"] == {"parcel": "fulfil.ship_order", "stock": "fulfil.reserve_stock"}
    assert outer.steps[1].payload == {"warehouse": "north"}
    assert "warehouse" not in outer.signature.parameters
    assert "order_id" not in inner.steps[0].takes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optional": True}, "has no options as a step; its steps have"),
        ({"compensate": noop}, "has no options as a step"),
        ({"queue": "bulk"}, "has no options as a step"),
        ({"name": "fulfil"}, "two steps are named 'fulfil.ship_order'"),
        ({"name": "x" * 190}, "the name of a step has 204 characters"),
        ({"after": "nope"}, "there is no step 'nope'"),
        ({"payload": {"warehose": 1}}, "does not take 'warehose'; did you mean 'warehouse'"),
        ({"takes": {"order_id": "fulfil.ship_order"}}, "which is not upstream of it"),
    ],
)
def test_what_cannot_be_a_part_is_refused_where_it_is_declared(
    workflow: Declare, inner: Workflow, options: dict[str, Any], message: str
) -> None:
    outer = workflow("test.outer")
    outer.step(noop, "fulfil.ship_order")
    with pytest.raises((WorkflowError, PayloadError), match=message):
        outer.step(inner, **{"name": "part", **options})
    assert len(outer.steps) == 1
    inner.step(noop, "more")


def test_a_part_is_whole_and_has_nothing_of_a_run(workflow: Declare, inner: Workflow) -> None:
    outer = workflow("test.outer")
    strict = workflow("test.strict", on_failure="cancel")
    strict.step(noop)
    tenants = workflow("test.tenants", tenant="{order_id}")
    tenants.step(ship_order)
    for part, message in (
        (outer, "cannot be a step of itself"),
        (workflow("test.empty"), "has no steps yet"),
        (inner.using(priority=3), "has options of a run"),
        (strict, "has on_failure='cancel', which is for a whole run"),
        (tenants, "has another tenant"),
    ):
        with pytest.raises(WorkflowError, match=message):
            outer.step(part, "part")
    outer.step(inner, "part")
    with pytest.raises(WorkflowError, match="its steps are steps of workflow test"):
        inner.step(noop, "more")
    several = fallible(workflow)
    outer.step(several, "several")
    with pytest.raises(
        WorkflowError, match="'several' ends with several steps, so it has no result"
    ):
        outer.step(gather, after="several", takes={"result": "several"})
    with pytest.raises(
        WorkflowError, match="'several' ends with several steps, so it has no result"
    ):
        outer.wait("b", after="several", when=If(equals=1))


@pytest.mark.django_db
def test_a_part_succeeds_with_the_result_of_its_last_step(
    workflow: Declare, inner: Workflow
) -> None:
    outer, middle = workflow("test.outer"), workflow("test.middle")
    middle.step(inner)
    part = outer.step(middle, "part", payload={"order_id": 7})
    outer.step(send_parcel, after={part: If(equals="order 7")}, takes={"stock": part})
    outer.step(apologise, after=part, when="failed")
    run = outer.start(order_id=7)
    run_jobs(check=True)
    assert ended(run) == "succeeded"
    found = states(run)
    assert found.pop("apologise") == "cancelled (unneeded)"
    assert set(found.values()) == {"succeeded"}
    assert step(run, "part.fulfil.ship_order").result == "order 7"
    assert step(run, "part").result == step(run, "part.fulfil").result == "order 7"


@pytest.mark.django_db
@pytest.mark.parametrize("fate", ["discard", "cancel"])
def test_a_part_fails_with_one_of_its_steps_and_is_retried_with_it(
    workflow: Declare, fate: str
) -> None:
    outer = around(workflow, fallible(workflow, fate))
    run = outer.start()
    run_jobs()
    assert ended(run) == ("failed" if fate == "discard" else "cancelled")
    assert statuses(run, "part.sorry", "part.close", "part", "good", "bad", "any") == {
        **dict.fromkeys(("part.sorry", "part.close", "bad", "any"), "succeeded"),
        **dict.fromkeys(("part", "good"), "cancelled (failed)"),
    }
    assert step(run, "part").reason == "skipped: part.first did not succeed"
    run.retry()
    run_jobs(check=True)
    assert ended(run) == "succeeded"
    after = ("part.first", "part.then", "part", "good")
    assert statuses(run, *after) == dict.fromkeys(after, "succeeded")


@pytest.mark.django_db
def test_a_replay_of_its_step_alone_brings_the_part_back(workflow: Declare) -> None:
    """Also where all that came after it ran, and does not run again."""
    inner = workflow("test.inner")
    inner.step(ask_for, "first", payload={"fate": "discard"})
    inner.step(noop, "close", after="first", when="finished")
    run = around(workflow, inner).start()
    run_jobs()
    replay([step(run, "part.first").pk], check=lambda job: None)
    run_jobs(check=True)
    assert (ended(run), step(run, "good").status) == ("succeeded", "succeeded")


@pytest.mark.django_db
def test_a_part_is_skipped_with_what_comes_before_it(workflow: Declare) -> None:
    inner, outer = workflow("test.inner"), workflow("test.outer")
    inner.step(noop, "first")
    before = outer.step(ask_for, "before", payload={"fate": "discard"})
    outer.step(inner, "part", after=before)
    outer.step(noop, "bad", after="part", when="failed")
    other = workflow("test.other")
    other.step(noop)
    outer.step(other, "unneeded", after={before: If(equals=1)})
    outer.step(noop, "next", after="unneeded")
    run = outer.start()
    run_jobs()
    assert ended(run) == "failed"
    assert statuses(run, "part.first", "part", "bad") == {
        **dict.fromkeys(("part.first", "part"), "cancelled (failed)"),
        "bad": "succeeded",
    }
    run.retry()
    run_jobs(check=True)
    assert ended(run) == "succeeded"
    names = ("unneeded.noop", "unneeded", "next")
    assert statuses(run, *names) == dict.fromkeys(names, "cancelled (unneeded)")


@pytest.mark.django_db
def test_a_part_is_cancelled_and_undone_with_its_run(workflow: Declare, inner: Workflow) -> None:
    outer = workflow("test.outer")
    outer.step(inner)
    outer.wait("approval", after="fulfil")
    outer.step(ask_for, after="approval", payload={"fate": "discard"})
    run = outer.start(order_id=7)
    assert run.cancel("no")
    assert set(states(run).values()) == {"cancelled"}
    run = outer.start(order_id=8)
    run_jobs()
    assert run.signal("approval") is True
    run_jobs()
    assert (ended(run), states(run)["undo fulfil.charge_card"]) == ("failed", "succeeded")


@pytest.mark.django_db
def test_a_wait_within_a_part_takes_the_signal_by_its_new_name(workflow: Declare) -> None:
    inner, outer = workflow("test.inner"), workflow("test.outer")
    inner.wait("approval")
    outer.step(inner, "part")
    run = outer.start()
    assert run.signal("part.approval", {"by": "ada"})
    run_jobs(check=True)
    assert (ended(run), step(run, "part").result) == ("succeeded", {"by": "ada"})


def read_neighbour() -> Any:
    run = current_run()
    assert run is not None
    return run.results["first"]


@pytest.mark.django_db
def test_a_handler_reads_its_neighbours_by_their_own_names(workflow: Declare) -> None:
    inner, outer = workflow("test.inner"), workflow("test.outer")
    inner.step(ship_order, "first", payload={"order_id": 1})
    with declared(read_neighbour, name="test.read") as read:
        assert isinstance(read, JobType)
        inner.step(read, "second", after="first")
        outer.step(ship_order, "first", payload={"order_id": 2})
        outer.step(inner, "part", after="first")
        outer.step(read, "third", after="part")
        run = outer.start()
        run_jobs(check=True)
    assert step(run, "part").result == "order 1"
    assert step(run, "third").result == "order 2"
    assert Job.objects.filter(status="dead").count() == 0


@pytest.mark.processes
def test_workers_take_the_branch_and_the_part_to_their_end(
    start_worker: Callable[..., Any], workflow: Declare
) -> None:
    inner, outer = workflow("test.inner"), workflow("test.outer")
    inner.step(ask_for, "first", payload={"fate": "discard"})
    ask = outer.wait("ask")
    outer.step(inner, "yes", after={ask: If("approved", equals=True)})
    outer.step(noop, "no", after={ask: If("approved", equals=False)})
    outer.step(noop, "after", after="yes")
    outer.step(noop, "last", after=["after", "no"], when="finished")
    run = outer.start()
    assert run.signal("ask", {"approved": True})
    start_worker()
    until(lambda: ended(run) == "failed")
    found = states(run)
    assert (found["yes"], found["no"]) == ("cancelled (failed)", "cancelled (unneeded)")
    run.retry()
    until(lambda: ended(run) == "succeeded")
    again = dict.fromkeys(("ask", "yes.first", "yes", "after", "last"), "succeeded")
    assert states(run) == again | {"no": "cancelled (unneeded)"}


def spawn_two() -> None:
    run = current_run()
    assert run is not None
    run.spawn(ask_for, [{"fate": "discard"}, {"fate": "snooze"}])


@pytest.mark.django_db(transaction=True)
def test_a_part_waits_for_what_its_steps_spawn(workflow: Declare) -> None:
    inner, outer = workflow("test.inner"), workflow("test.outer")
    with declared(spawn_two, name="test.spawn_two") as spawner:
        inner.step(spawner)
        outer.step(inner, "part")
        run = outer.start()
        run_jobs()
        assert (ended(run), states(run)["part"]) == ("failed", "cancelled (failed)")
        run.retry()
        run_jobs(check=True)
    assert (ended(run), states(run)["part"]) == ("succeeded", "succeeded")
