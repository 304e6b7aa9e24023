"""The rows of a run that was started: arguments, edges, options."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from pytest_django import Settings

from django_jobs import EnqueueError, PayloadError, QueueFull, WorkflowError
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.models import Dependency, Job, Queue, WorkflowRun
from tests.app import hooks
from tests.app.flow_jobs import (
    book_entry,
    charge_card,
    gather,
    refund_card,
    reserve_stock,
    ship_order,
)
from tests.app.jobs import add, noop
from tests.lifecycle.test_opening import DEAD, finish
from tests.moments import moment

pytestmark = pytest.mark.django_db

Declare = Callable[..., Workflow]


def steps(run: WorkflowRun) -> dict[str, Job]:
    return {str(job.step): job for job in Job.objects.filter(workflow_run=run).order_by("id")}


def edges(run: WorkflowRun) -> set[tuple[str, str, str, tuple[str, ...]]]:
    names = {job.pk: name for name, job in steps(run).items()}
    return {
        (names[one.parent_id], names[one.child_id], one.when, tuple(one.takes or ()))
        for one in Dependency.objects.filter(workflow_run=run)
    }


@pytest.fixture
def order(workflow: Declare) -> Workflow:
    """Reserved, charged, shipped."""
    flow = workflow("test.order")
    reserve = flow.step(reserve_stock)
    charge = flow.step(charge_card, after=reserve, takes={"stock": reserve})
    flow.step(ship_order, after=charge, payload={"express": True})
    return flow


def test_each_step_gets_the_arguments_that_its_handler_takes(order: Workflow) -> None:
    run = order.start(order_id=7, warehouse="north")
    assert (run.name, run.status) == ("test.order", "running")
    assert run.payload == {"order_id": 7, "warehouse": "north"}
    assert {name: job.payload for name, job in steps(run).items()} == {
        "reserve_stock": {"order_id": 7, "warehouse": "north"},
        "charge_card": {"order_id": 7},
        "ship_order": {"order_id": 7, "express": True},
    }
    assert [job.status for job in steps(run).values()] == ["ready", "waiting", "waiting"]


def test_an_edge_has_its_condition_and_the_arguments_that_it_gives(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop, "a")
    flow.step(noop, "b", after="a")
    flow.step(gather, "c", after={"b": "failed"}, takes={"far": "a", "near": "b", "same": "b"})
    assert edges(flow.start()) == {
        ("a", "b", "succeeded", ()),
        ("b", "c", "failed", ("near", "same")),
        ("a", "c", "finished", ("far",)),
    }


def test_an_argument_may_be_overridden_for_one_run(order: Workflow) -> None:
    chosen = order.using(overrides={"ship_order": {"express": False, "order_id": 8}})
    assert steps(chosen.start(order_id=7))["ship_order"].payload == {
        "order_id": 8,
        "express": False,
    }
    assert steps(order.start(order_id=7))["ship_order"].payload["express"] is True


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (
            {"ship_ordr": {}},
            WorkflowError,
            "there is no step 'ship_ordr'; did you mean 'ship_order'",
        ),
        ({"ship_order": {"expres": 1}}, PayloadError, "app.ship_order does not take 'expres'"),
        ({"charge_card": {"stock": 1}}, PayloadError, "payload and takes both give 'stock'"),
        ({"ship_order": {"express": {1}}}, PayloadError, "payload.express: a set is not JSON"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(
    order: Workflow, overrides: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        order.using(overrides=overrides).start(order_id=7)
    assert not WorkflowRun.objects.exists()


def test_an_override_of_a_step_that_waits_is_refused(workflow: Declare) -> None:
    flow = workflow()
    flow.wait("approval", permission="shop.approve_order")
    flow.sleep("rest", 60, after="approval")
    for step, override in (
        ("approval", {"timeout": 0, "on_timeout": "continue"}),
        ("rest", {"seconds": 0}),
    ):
        with pytest.raises(WorkflowError, match=rf"'{step}' is a (wait|sleep) step"):
            flow.using(overrides={step: override}).start()


def test_options_of_a_run_hold_for_all_steps(order: Workflow) -> None:
    order.step(noop.using(headers={"own": 1}, queue="bulk"), after="ship_order")
    run = order.using(priority=9, tenant="acme", headers={"trace": "t"}).start(order_id=7)
    jobs = steps(run)
    assert run.tenant == "acme"
    assert {(job.priority, job.tenant) for job in jobs.values()} == {(9, "acme")}
    assert jobs["noop"].headers == {"own": 1, "trace": "t"}
    assert [job.queue for job in jobs.values()] == ["default", "default", "default", "bulk"]
    assert jobs["reserve_stock"].status == "blocked"
    emails = steps(order.using(queue="emails").start(order_id=7))
    assert {job.queue for job in emails.values()} == {"emails"}


def test_tags_that_can_be_read_once_are_those_of_all_steps_and_runs(order: Workflow) -> None:
    chosen = order.using(tags=(tag for tag in ("vip", "eu")))
    for _ in range(2):
        run = chosen.start(order_id=7)
        assert [job.tags for job in steps(run).values()] == [["eu", "vip"]] * 3


def test_a_step_has_the_gates_of_its_job_type(workflow: Declare) -> None:
    flow = workflow()
    flow.step(book_entry)
    job = steps(flow.start(account="a7"))["book_entry"]
    assert (job.concurrency_key, job.status) == ("account:a7", "blocked")


def test_a_running_run_with_the_key_is_returned(order: Workflow) -> None:
    first = order.using(idempotency_key="order 7").start(order_id=7)
    again = order.using(idempotency_key="order 7").start(order_id=7)
    assert (again.pk, again.deduplicated, first.deduplicated) == (first.pk, True, False)
    assert order.start(order_id=7).pk != first.pk
    assert Job.objects.count() == 6


def test_a_start_that_is_refused_writes_nothing(order: Workflow) -> None:
    with pytest.raises(PayloadError, match="unknown: order"):
        order.start(order=7)
    with pytest.raises(PayloadError, match=r"arguments.order_id: a set is not JSON|payload"):
        order.start(order_id={7})
    with pytest.raises(EnqueueError, match="no queue is named 'nope'"):
        order.using(queue="nope").start(order_id=7)
    assert not WorkflowRun.objects.exists()


def test_a_workflow_without_steps_does_not_start(workflow: Declare) -> None:
    with pytest.raises(EnqueueError, match=r"test.flow: a run needs at least one step"):
        workflow().start()


def test_a_full_queue_refuses_the_steps_that_would_start_at_once(workflow: Declare) -> None:
    flow = workflow()
    for name in "abc":
        flow.step(noop, name)
    flow.step(noop, "d", after="c")
    Queue.objects.filter(name="default").update(max_backlog=2)
    Queue.objects.forget_recent()
    with pytest.raises(QueueFull, match="has room for 2 of 3 jobs"):
        flow.start()
    assert not WorkflowRun.objects.exists()


def test_a_full_queue_drops_for_a_new_run(workflow: Declare) -> None:
    """The lowest jobs go, as for an enqueue, also those of the run itself."""
    flow = workflow()
    for name in "abc":
        flow.step(noop, name)
    flow.step(noop, "d", after="c")
    Queue.objects.filter(name="default").update(max_backlog=2, on_full="drop_lowest")
    Queue.objects.forget_recent()
    low = [noop.using(priority=-10).enqueue().pk for _ in range(2)]
    run = flow.start()
    assert Job.objects.filter(status="ready").count() == 2
    assert set(Job.objects.filter(pk__in=low).values_list("status", "reason")) == {
        ("cancelled", "dropped: queue default was full")
    }
    assert run.status == "running"
    assert {name: job.status for name, job in steps(run).items()} == {
        "a": "ready",
        "b": "ready",
        "c": "dead",
        "d": "cancelled",
    }


def test_a_run_that_a_full_queue_has_no_room_for_is_returned_as_failed(
    workflow: Declare,
) -> None:
    flow = workflow()
    flow.step(noop, "a")
    flow.step(noop, "b", after="a")
    Queue.objects.filter(name="default").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    high = noop.using(priority=10).enqueue()
    run = flow.start()
    assert (run.status, run.reason) == ("failed", "a failed")
    assert [job.status for job in steps(run).values()] == ["dead", "cancelled"]
    assert flow.using(priority=20).start().status == "running"
    assert Job.objects.get(pk=high.pk).status == "cancelled"


@pytest.mark.parametrize("how", ["delay", "run_at"])
def test_a_run_may_begin_later(workflow: Declare, how: str) -> None:
    """Its first steps are scheduled. A later one keeps its own delay, from its opening."""
    flow = workflow()
    flow.step(noop, "a")
    flow.step(noop, "b")
    flow.step(noop.using(delay=60), "c", after="a", compensate=noop)
    hour = timedelta(hours=1)
    due = timezone.now() + hour
    with moment() as now:
        run = (flow.using(delay=hour) if how == "delay" else flow.using(run_at=due)).start()
    rows = steps(run)
    assert {name: job.status for name, job in rows.items()} == {
        "a": "scheduled",
        "b": "scheduled",
        "c": "waiting",
    }
    for name in "ab":
        at = rows[name].available_at
        assert at - hour in now if how == "delay" else at == due
    assert rows["c"].available_at - rows["c"].created_at == timedelta(seconds=60)
    assert rows["a"].rank - rows["c"].rank > 3_000
    (undo,) = WorkflowRun.objects.get(pk=run.pk).compensations or ()
    assert undo["new"]["delay"] == 0


def test_a_run_begins_at_a_time_or_after_one(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop)
    with pytest.raises(EnqueueError, match="give run_at or delay, not both"):
        flow.using(delay=1, run_at=timezone.now())
    with pytest.raises(EnqueueError, match="run_at"):
        flow.using(run_at=timezone.now().replace(tzinfo=None)).start()
    assert not WorkflowRun.objects.exists()


def test_what_undoes_a_step_is_stored_with_the_run(workflow: Declare) -> None:
    flow = workflow()
    flow.step(charge_card, compensate=refund_card)
    run = flow.start(order_id=7)
    (stored,) = run.compensations or ()
    assert (stored["undoes"], stored["name"]) == ("charge_card", "undo charge_card")
    assert stored["payload"] == '{"order_id":7}'
    assert stored["new"]["job_type"] == "app.refund_card"


def test_what_undoes_a_step_takes_what_the_step_took(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock, payload={"order_id": 7})
    takes = {"stock": "reserve_stock", "order_id": "reserve_stock"}
    flow.step(charge_card, after="reserve_stock", takes=takes, compensate=gather)
    flow.step(noop, "last", after="charge_card")
    run = flow.start(account="a", stock=1)
    finish({"last": DEAD})
    assert steps(run)["undo charge_card"].payload == {"account": "a"}
    assert {edge for edge in edges(run) if edge[1] == "undo charge_card"} == {
        ("reserve_stock", "undo charge_card", "finished", ("stock", "order_id")),
        ("charge_card", "undo charge_card", "finished", ("result",)),
    }


@pytest.mark.parametrize("how", ["start", "payload", "overrides"])
def test_compensations_that_are_too_large_together_are_refused(
    workflow: Declare, how: str, settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_PAYLOAD_BYTES": 1_000}
    big = {"order_id": "x" * 900}

    def start(count: int) -> WorkflowRun:
        flow = workflow(f"test.flow{count}")
        for number in range(count):
            payload = big if how == "payload" else {}
            flow.step(charge_card, f"step{number}", payload=payload, compensate=refund_card)
        overrides = (
            {f"step{number}": big for number in range(count)} if how == "overrides" else None
        )
        arguments = {} if how == "payload" else big if how == "start" else {"order_id": 7}
        return flow.using(overrides=overrides).start(**arguments)

    with pytest.raises(PayloadError, match=r"36 compensations are 32,940 .* more than 32,000"):
        start(36)
    assert not WorkflowRun.objects.exists()
    assert len(start(34).compensations or ()) == 34


def test_async_code_starts_a_run(order: Workflow) -> None:
    run = async_to_sync(order.astart)(order_id=7)
    assert len(steps(run)) == 3


def test_the_start_of_a_workflow_is_one_event_and_all_its_jobs_have_the_headers(
    hooked: Callable[..., None], workflow: Callable[..., Workflow]
) -> None:
    flow = workflow("test.flow")
    first = flow.step(noop)
    flow.step(add, after=first, compensate=noop)
    hooked("inner", "tenants")
    hooks.tenant.set("acme")
    run = flow.using(headers={"given": 1}, queue="bulk").start(first=1, second=2)
    assert hooks.seen == [
        ("inner", "enqueue", "test.flow", "bulk", {"given": 1}),
        ("inner left", "enqueue", {"first": 1, "second": 2}, None, None),
    ]
    written = {"given": 1, "tenant": "acme"}
    assert list(run.steps.values_list("headers", flat=True)) == [written] * 2
    assert "acme" in str(WorkflowRun.objects.get(pk=run.pk).compensations)
