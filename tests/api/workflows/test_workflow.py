"""What a workflow declares, and what it refuses where it is declared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_jobs import (
    Concurrency,
    EnqueueError,
    If,
    PayloadError,
    WorkflowError,
    chain,
    group,
    registry,
)
from django_jobs.api.workflows import edges
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.domain.workflows import When
from tests.app.flow_jobs import (
    apologise,
    book_entry,
    charge_card,
    gather,
    refund_card,
    reserve_stock,
    ship_order,
)
from tests.app.jobs import noop
from tests.factories import declared

Declare = Callable[..., Workflow]


@pytest.fixture
def fulfil(workflow: Declare) -> Workflow:
    """An order: reserved, charged, shipped."""
    fulfil = workflow("orders.fulfil", version=3)
    reserve = fulfil.step(reserve_stock)
    charged = fulfil.step(
        charge_card, after=reserve, takes={"stock": reserve}, compensate=refund_card
    )
    ship = fulfil.step(ship_order, after=charged)
    fulfil.step(apologise, after=ship, when="failed")
    return fulfil


def test_steps_are_named_after_their_handlers_and_kept_in_order(fulfil: Workflow) -> None:
    names = ["reserve_stock", "charge_card", "ship_order", "apologise"]
    assert [step.name for step in fulfil.steps] == names
    assert [step["name"] for step in fulfil.graph["steps"]] == names
    charge = fulfil.graph["steps"][1]
    assert charge == {
        "name": "charge_card",
        "job_type": "app.charge_card",
        "kind": "job",
        "after": {"reserve_stock": "succeeded"},
        "takes": {"stock": "reserve_stock"},
        "compensate": "app.refund_card",
    }


def test_a_step_may_wait_for_several_with_a_condition_for_each(workflow: Declare) -> None:
    flow = workflow()
    first = flow.step(noop, "first")
    second = flow.step(noop, "second")
    both = flow.step(noop, "both", after=[first, "second"], when="finished")
    mixed = flow.step(noop, "mixed", after={first: "failed", "both": "succeeded"})
    assert both.after == {"first": When.FINISHED, "second": When.FINISHED}
    assert mixed.after == {"first": When.FAILED, "both": When.SUCCEEDED}
    assert second.after == {}


def test_a_condition_on_a_result_is_in_the_graph(workflow: Declare) -> None:
    flow = workflow()
    score = flow.step(noop, "score")
    flow.step(noop, "review", after={score: If("approved", equals=True)})
    flow.wait("approval", after=score, when=If(at_least=3))
    assert [step["after"] for step in flow.graph["steps"][1:]] == [
        {"score": {"path": "approved", "equals": True}},
        {"score": {"path": "", "at_least": 3}},
    ]


def test_a_condition_on_a_field_that_a_wait_does_not_have_is_refused(workflow: Declare) -> None:
    flow, before = workflow(), workflow("test.before")
    flow.wait("ask", fields={"approved": bool, "note": str})
    for key in ("approved", "note", "by", "reason", "", "note.0"):
        flow.step(noop, f"after {key}".replace(".", " "), after={"ask": If(key, not_equals=1)})
    with pytest.raises(WorkflowError, match="'ask' has no field 'aproved'; did you mean 'appro"):
        flow.step(noop, after={"ask": If("aproved", equals=True)})
    with pytest.raises(WorkflowError, match="field 'x'; it has approved, note, by, reason"):
        flow.wait("b", after="ask", when=If("x.approved", equals=True))
    before.wait("any")
    before.step(noop, after={"any": If("whatever", equals=True)})


def test_an_optional_step_is_in_the_graph_and_cannot_fail(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop, "first", optional=True)
    flow.step(noop, "second", optional=False)
    assert [step.get("optional") for step in flow.graph["steps"]] == [True, None]
    assert "optional" not in flow.graph["steps"][1]
    with pytest.raises(WorkflowError, match="'first' is optional, so it never counts as failed"):
        flow.step(noop, "sorry", after={"second": "failed", "first": "failed"})


def test_start_takes_what_no_step_gives(fulfil: Workflow) -> None:
    assert str(fulfil.signature) == (
        "(*, order_id: 'int', warehouse: 'str' = 'main', express: 'bool' = False)"
    )
    fulfil.check_arguments({"order_id": 7, "express": True})


def test_an_argument_that_one_step_needs_is_required(workflow: Declare) -> None:
    flow = workflow()
    flow.step(book_entry, payload={"account": "a"})
    assert str(flow.signature) == "(*, amount: 'int' = 1)"

    flow.step(reserve_stock)
    flow.step(noop, "after it", after="reserve_stock")
    with pytest.raises(PayloadError, match="missing: order_id"):
        flow.check_arguments({"amount": 1})


def test_a_handler_that_takes_anything_lets_start_take_anything(workflow: Declare) -> None:
    flow = workflow()
    flow.step(gather)
    assert str(flow.signature) == "(**arguments)"
    flow.check_arguments({"any": 1})


def test_start_refuses_missing_and_unknown_arguments_with_their_names(fulfil: Workflow) -> None:
    with pytest.raises(PayloadError) as caught:
        fulfil.check_arguments({"oder_id": "secret"})
    assert str(caught.value) == (
        "workflow orders.fulfil v3.start(): missing: order_id (for reserve_stock); "
        "unknown: oder_id; did you mean 'order_id'? its arguments are: order_id, warehouse, express"
    )


def test_a_compensation_may_need_an_argument_of_start(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop, compensate=refund_card)
    assert str(flow.signature) == "(*, order_id: 'int')"


def test_a_compensation_gets_the_results_that_its_step_took(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock, payload={"order_id": 1})
    flow.step(
        ship_order, after="reserve_stock", takes={"order_id": "reserve_stock"},
        compensate=refund_card,
    )  # fmt: skip
    assert str(flow.signature) == "(*, warehouse: 'str' = 'main', express: 'bool' = False)"


@pytest.mark.parametrize("argument", ["order_id", "result"])
def test_a_compensation_has_no_gate_of_a_result(workflow: Declare, argument: str) -> None:
    flow = workflow()
    flow.step(reserve_stock, payload={"order_id": 1})
    gate = Concurrency(f"refund:{{{argument}}}")
    takes = {"order_id": "reserve_stock"}
    with (
        declared(refund_card.handler, name="app.gated_refund", concurrency=gate) as refund,
        pytest.raises(WorkflowError, match=f"compensate: concurrency .* needs '{argument}'"),
    ):
        flow.step(ship_order, after="reserve_stock", takes=takes, compensate=refund)


def test_a_step_has_the_options_of_its_job_type(workflow: Declare) -> None:
    flow = workflow()
    step = flow.step(noop.using(queue="bulk"), priority=7, max_attempts=2)
    assert (step.job_type.queue, step.job_type.priority) == ("bulk", 7)
    with pytest.raises(EnqueueError, match="priority is a whole number"):
        flow.step(noop, "other", priority=1000)


@pytest.mark.parametrize(
    ("option", "end"),
    [
        ("countdown", "did you mean 'delay'?"),
        ("afterr", "did you mean 'after'?"),
        ("depends_on", "did you mean 'after'?"),
        ("requires", "did you mean 'after'?"),
        ("wen", "did you mean 'when'?"),
        ("colour", "known are: after, when, "),
        ("discard_on", "it is an option of @job"),
    ],
)
def test_an_unknown_option_of_a_step_is_refused_with_those_that_there_are(
    workflow: Declare, option: str, end: str
) -> None:
    flow = workflow()
    for add, name in ((flow.step, noop), (flow.wait, "other"), (flow.sleep, "other")):
        given: dict[str, Any] = {option: 5} | ({"duration": 5} if add == flow.sleep else {})
        with pytest.raises(TypeError) as refused:
            add(name, **given)
        step = "noop" if name is noop else name
        assert f"step {step!r}: there is no option {option!r}; {end}" in str(refused.value)


def test_a_workflow_says_how_it_is_started(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop)
    for startable in (flow, chain(noop.step()), group(noop.step())):
        for name in ("enqueue", "aenqueue", "run", "delay", "apply_async"):
            with pytest.raises(AttributeError, match=r"write start\(\.\.\.\), with using"):
                getattr(startable, name)
        assert not hasattr(startable, "colour")
        assert copy.deepcopy(startable).name == startable.name
        with pytest.raises(PayloadError, match="takes its arguments by name"):
            startable.start(7)
        with pytest.raises(PayloadError, match="takes its arguments by name"):
            async_to_sync(startable.astart)(7)
        with pytest.raises(TypeError, match="there is no option 'countdown'; did you mean 'delay'"):
            startable.using(countdown=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"after": "chrage"},
            "there is no step 'chrage'; did you mean 'charge'[?] declared so far",
        ),
        ({"after": "new"}, "steps wait for each other in a circle: new -> new"),
        ({"after": ["charge", 7]}, "a step or its name is needed, not 7"),
        ({"after": noop}, "not <JobType app.noop>: step\\(\\) returns it"),
        ({"after": [noop]}, "a step or its name is needed, not <JobType app.noop>"),
        ({"after": "charge", "takes": "charge"}, "takes is a dict of arguments and the steps"),
        (
            {"after": {"charge": "fails"}},
            "when is 'succeeded', 'failed' or 'finished', or an If, not 'fails'",
        ),
        ({"after": "charge", "when": "suceeded"}, "did you mean 'succeeded'[?]"),
        ({"takes": {"express": "charge"}}, "takes 'express' from 'charge', which is not upstream"),
        (
            {"after": "other", "takes": {"express": "charge"}},
            "takes 'express' from 'charge', which is not upstream",
        ),
        ({"takes": {"express": "nope"}}, "there is no step 'nope'"),
        ({"name": "charge"}, "two steps are named 'charge'"),
        ({"name": ""}, "the name of a step has 0 characters"),
        ({"name": 7}, "the name of a step is an int, not text"),
        ({"idempotency_key": "k"}, "a step has no idempotency_key; it is one of a run"),
        ({"idempotency_key": "k", "unique_for": 5}, "a step has no idempotency_key"),
        ({"on_duplicate": "replace"}, "a step has no on_duplicate"),
        ({"key_scope": "tenant"}, "a step has no key_scope"),
    ],
)
def test_a_graph_that_cannot_work_is_refused_where_it_is_declared(
    workflow: Declare, options: dict[str, Any], message: str
) -> None:
    flow = workflow()
    flow.step(charge_card, "charge")
    flow.step(noop, "other")
    with pytest.raises(WorkflowError, match=f"^workflow test.flow v1: .*{message}"):
        flow.step(ship_order, **{"name": "new", **options})
    assert [step.name for step in flow.steps] == ["charge", "other"]


def test_a_compensation_needs_a_name_of_its_own(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop, "one", compensate=noop)
    flow.step(noop, "undo two")
    with pytest.raises(WorkflowError, match="two steps are named 'undo one'"):
        flow.wait("undo one")
    with pytest.raises(WorkflowError, match="two steps are named 'undo two'"):
        flow.step(noop, "two", compensate=noop)
    with pytest.raises(WorkflowError, match="compensate: the name of a step has 201 characters"):
        flow.step(noop, "x" * 196, compensate=noop)
    flow.step(noop, "x" * 196)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"payload": {"expres": True}},
            "app.ship_order does not take 'expres'; did you mean 'express'[?] its arguments are: "
            "order_id, express",
        ),
        ({"takes": {"orderid": "charge"}}, "does not take 'orderid'; did you mean 'order_id'"),
        ({"payload": [("express", 1)]}, "a payload is a dict, not a list"),
        ({"payload": {7: 1}}, "does not take 7"),
        ({"payload": {"express": {1}}}, "payload.express: a set is not JSON"),
        (
            {"payload": {"express": True}, "takes": {"express": "charge"}},
            "payload and takes both give 'express'",
        ),
    ],
)
def test_an_argument_that_cannot_be_given_is_refused_where_it_is_declared(
    workflow: Declare, options: dict[str, Any], message: str
) -> None:
    flow = workflow()
    flow.step(charge_card, "charge")
    with pytest.raises(PayloadError, match=message):
        flow.step(ship_order, after="charge", **options)


def test_a_result_may_come_from_far_upstream(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop, "a")
    flow.step(noop, "b", after="a")
    flow.step(noop, "c", after="b", when="finished")
    assert flow.step(gather, after="c", takes={"far": "a"}).takes == {"far": "a"}


def test_a_gate_cannot_need_a_result(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop)
    with pytest.raises(
        WorkflowError, match=r"concurrency 'account:{account}' needs 'account' when"
    ):
        flow.step(book_entry, after="noop", takes={"account": "noop"})
    flow.step(book_entry, after="noop", takes={"account": "noop"}, concurrency_key="one")


def test_too_many_steps_after_one_are_refused(
    workflow: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "MOST_CHILDREN", 1)
    flow = workflow()
    flow.step(noop)
    flow.step(noop, "other", after="noop")
    with pytest.raises(WorkflowError, match="step 'noop' has more than 1 steps"):
        flow.step(noop, "third", after="noop")
    flow.step(noop, "third", after="other")


def test_a_step_of_another_workflow_is_refused(workflow: Declare) -> None:
    other = workflow("test.other").step(noop)
    flow = workflow()
    flow.step(noop)
    with pytest.raises(WorkflowError, match="'noop' is not a step of this workflow"):
        flow.step(noop, "second", after=other)


@pytest.mark.parametrize("given", [lambda: None, "app.noop", None])
def test_a_step_is_a_job_type(workflow: Declare, given: Any) -> None:
    flow = workflow()
    with pytest.raises(TypeError, match="step takes a job type, made by @job"):
        flow.step(given)
    with pytest.raises(TypeError, match="compensate takes a job type"):
        flow.step(noop, compensate=given or "app.noop")


@pytest.mark.django_db
def test_the_graph_has_what_a_failure_does_only_if_it_is_not_the_default(
    workflow: Declare,
) -> None:
    plain, strict = workflow("plain"), workflow("strict", on_failure="cancel")
    assert (plain.graph, strict.graph) == ({"steps": []}, {"steps": [], "on_failure": "cancel"})
    assert plain.fingerprint != strict.fingerprint
    for flow in (plain, strict):
        flow.step(noop)
    runs = [flow.using(tenant="acme").start() for flow in (plain, strict)]
    assert [run.on_failure for run in runs] == ["continue", "cancel"]
    with pytest.raises(WorkflowError, match="on_failure is 'continue' or 'cancel', not 'stop'"):
        workflow("wrong", on_failure="stop")


@pytest.mark.parametrize(
    ("name", "version"), [("", 1), (7, 1), ("a" * 201, 1), ("a", 0), ("a", True), ("a", "1")]
)
def test_a_workflow_has_a_name_and_a_number(name: Any, version: Any) -> None:
    with pytest.raises(WorkflowError, match=r"name of a workflow|version is a whole number"):
        Workflow(name, version=version)
    assert not registry.workflows()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idempotency_key": ""}, "an idempotency key is text of 1 to 200"),
        ({"tenant": 7}, "tenant is an int, not text"),
        ({"priority": 101}, "priority is a whole number from -100 to 100"),
        ({"queue": "a b"}, "queue is 1 to 100 letters"),
        ({"headers": 7}, "headers are a dict"),
        ({"delay": -1}, "delay is 0 or more seconds"),
        ({"delay": timedelta(seconds=-1)}, "delay is 0 or more seconds"),
        ({"delay": "5m"}, "delay is 0 or more seconds"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at needs a time zone"),
        ({"overrides": {"ship": 7}}, "overrides are dicts of arguments by the name of a step"),
    ],
)
def test_an_unusable_option_of_a_run_is_refused(
    fulfil: Workflow, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnqueueError, match=f"^workflow orders.fulfil v3: {message}"):
        fulfil.using(**options)


def test_options_of_one_run_leave_the_workflow_as_it_is(fulfil: Workflow) -> None:
    chosen = fulfil.using(priority=5).using(tenant="acme")
    assert (chosen._options.priority, chosen._options.tenant) == (5, "acme")
    assert fulfil._options.priority is None
    assert chosen.steps == fulfil.steps
    assert registry.workflow("orders.fulfil") is fulfil


def test_versions_stand_side_by_side_and_the_highest_has_the_name(workflow: Declare) -> None:
    third, first = workflow(version=3), workflow(version=1)
    assert registry.workflow("test.flow") is third
    assert registry.workflows() == [first, third]
    assert registry.workflow("test.nope") is None
    assert registry.workflow_copies() == []


def test_a_version_declared_twice_is_remembered(workflow: Declare) -> None:
    first, second = workflow(), workflow()
    assert registry.workflow("test.flow") is first
    assert registry.workflow_copies() == [(first, second)]
    registry.forget_workflow("test.flow")
    assert registry.workflow_copies() == []


def test_a_step_may_wait_for_a_signal_or_a_time(workflow: Declare) -> None:
    flow = workflow()
    first = flow.step(noop.using(queue="bulk"))
    approval = flow.wait(
        "approval",
        after=first,
        timeout=timedelta(days=3),
        on_timeout="continue",
        permission="app.approve",
    )
    pause = flow.sleep("pause", timedelta(hours=1), after=approval, when="finished")
    flow.step(gather, after=pause, takes={"data": approval})
    assert approval.payload == {"name": "approval", "timeout": 259200.0, "on_timeout": "continue"}
    assert (approval.job_type.queue, pause.job_type.queue) == ("bulk", "bulk")
    assert pause.payload == {"seconds": 3600.0}
    assert flow.graph["steps"][1] == {
        "name": "approval",
        "job_type": "django_jobs.wait",
        "kind": "wait",
        "after": {"noop": "succeeded"},
        "takes": {},
        "compensate": None,
        "timeout": 259200.0,
        "on_timeout": "continue",
        "permission": "app.approve",
    }
    assert str(flow.signature) == "(**arguments)"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda flow: flow.wait("noop"), "two steps are named 'noop'"),
        (lambda flow: flow.wait("a", after="nope"), "there is no step 'nope'"),
        (lambda flow: flow.wait("a", timeout=0), "timeout is a positive number of seconds"),
        (lambda flow: flow.wait("a", timeout="3d"), "or a timedelta, not '3d'"),
        (lambda flow: flow.wait("a", on_timeout="skip"), "on_timeout is 'fail' or 'continue'"),
        (lambda flow: flow.wait("a", when="failed"), "step 'a': when needs after="),
        (lambda flow: flow.step(noop, "a", when=If(equals=1)), "step 'a': when needs after="),
        (
            lambda flow: flow.wait("a", after={"noop": If(equals=1)}, when="failed"),
            "step 'a': when is in the dict of after=",
        ),
        (lambda flow: flow.wait("a", fields={}), "fields are names with their types, not {}"),
        (lambda flow: flow.wait("a", fields=["ok"]), "fields are names with their types"),
        (lambda flow: flow.wait("a", fields={"by": str}), "other than 'by' and 'reason', not 'by'"),
        (lambda flow: flow.wait("a", fields={"a b": str}), "a field has a name like 'note'"),
        (
            lambda flow: flow.wait("a", fields={"ok": list[int]}),
            "float or str, not list",
        ),
        (
            lambda flow: flow.wait("a", fields={"ok": "bool"}),
            "float or str, not 'bool'",
        ),
        (lambda flow: flow.wait("a", permission="approve"), "permission is text such as"),
        (lambda flow: flow.wait("a", idempotency_key="k"), "a step has no idempotency_key"),
        (lambda flow: flow.sleep("a", timedelta(0)), "duration is a positive number of seconds"),
        (lambda flow: flow.sleep("", 5), "the name of a step has 0 characters"),
    ],
)
def test_a_wait_that_cannot_work_is_refused(
    workflow: Declare, declare: Callable[[Workflow], Any], message: str
) -> None:
    flow = workflow()
    flow.step(noop)
    with pytest.raises(WorkflowError, match=f"^workflow test.flow v1: .*{message}"):
        declare(flow)
    assert [step.name for step in flow.steps] == ["noop"]
