"""The job that starts a workflow: by a schedule, or by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs import PayloadError, enqueue, registry, schedule
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.models import Job, WorkflowRun
from tests.app.flow_jobs import reserve_stock
from tests.app.jobs import noop
from tests.factories import claim_ready, due_schedule, look, register_worker
from tests.worker.attempts import Desk

Declare = Callable[..., Workflow]


def test_a_workflow_is_a_job_type_with_the_arguments_of_start(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock)
    job_type = registry.get("test.flow")
    assert job_type.signature == flow.signature
    assert (job_type.delivery, job_type.schedulable) == ("exactly_once", False)
    assert job_type.handler_path == "tests.api.workflows.conftest.Workflow('test.flow').start"
    missing = r"missing a required (keyword-only )?argument: 'order_id'"  # as Python 3.12 says
    with pytest.raises(PayloadError, match=missing):
        job_type.bind()


def test_the_highest_version_is_started_by_name(workflow: Declare) -> None:
    highest, lower = workflow(version=2), workflow(version=1)
    lower.step(reserve_stock)
    highest.step(noop)
    assert registry.get("test.flow").signature == highest.signature
    workflow(version=3).step(reserve_stock, payload={"order_id": 1})
    assert str(registry.get("test.flow").signature) == "(*, warehouse: 'str' = 'main')"
    assert not registry.clashes()


def test_a_handler_of_the_same_name_is_a_clash(workflow: Declare) -> None:
    workflow("app.noop")
    assert registry.find("app.noop") is noop
    assert [name for name, _, _ in registry.clashes()] == ["app.noop"]
    registry.forget_workflow("app.noop")
    assert registry.find("app.noop") is noop
    assert registry.clashes() == []


def test_a_schedule_names_a_workflow_and_its_arguments(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock)
    try:
        schedule("nightly", "test.flow", cron="@daily", payload={"order_id": 7})
        assert registry.schedules()["nightly"]["job_type"] == "test.flow"
    finally:
        registry.forget_schedule("nightly")


@pytest.mark.django_db(transaction=True)
def test_the_job_starts_a_run_and_ends_in_one_transaction(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock)
    job = enqueue("test.flow", {"order_id": 7})
    (held,) = claim_ready(register_worker())
    Desk().make(held)
    job.refresh_from_db()
    run = WorkflowRun.objects.get()
    assert (job.status, job.result) == ("succeeded", {"workflow_run": run.pk})
    assert (run.idempotency_key, run.payload) == (f"job:{job.pk}", {"order_id": 7})
    assert Job.objects.get(workflow_run=run).step == "reserve_stock"


@pytest.mark.django_db(transaction=True)
def test_the_steps_get_the_tenant_and_the_priority_of_the_job(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock)
    flow.step(noop, after="reserve_stock")
    enqueue("test.flow", {"order_id": 7}, tenant="acme", priority=-50)
    (run,) = made_runs()
    assert run.tenant == "acme"
    assert list(run.steps.values_list("tenant", "priority")) == [("acme", -50)] * 2


@pytest.mark.django_db(transaction=True)
def test_the_steps_keep_what_they_declare_if_the_job_has_no_priority(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock.using(priority=30))
    enqueue("test.flow", {"order_id": 7})
    (run,) = made_runs()
    assert run.tenant is None
    assert list(run.steps.values_list("tenant", "priority")) == [(None, 30)]


@pytest.mark.django_db(transaction=True)
def test_a_scheduled_workflow_gives_its_tenant_to_its_steps(workflow: Declare) -> None:
    flow = workflow(tenant="shop-{warehouse}")
    flow.step(reserve_stock)
    due_schedule(job_type="test.flow", payload={"order_id": 7}, priority=20)
    look()
    assert Job.objects.values_list("tenant", "priority").get() == ("shop-main", 20)
    (run,) = made_runs()
    assert run.tenant == "shop-main"
    assert list(run.steps.values_list("tenant", "priority")) == [("shop-main", 20)]


@pytest.mark.django_db
def test_the_tenant_follows_from_the_arguments_unless_another_is_chosen(workflow: Declare) -> None:
    flow = workflow(tenant="shop-{warehouse}")
    flow.step(reserve_stock)
    assert flow.start(order_id=7, warehouse="north").tenant == "shop-north"
    assert flow.using(tenant="acme").start(order_id=8).tenant == "acme"


def made_runs() -> list[WorkflowRun]:
    """The runs after the job that starts one has run."""
    Job.objects.update(status="ready")
    (held,) = claim_ready(register_worker())
    Desk().make(held)
    return list(WorkflowRun.objects.all())


@pytest.mark.django_db(transaction=True)
def test_a_start_that_is_refused_fails_its_job(workflow: Declare) -> None:
    flow = workflow()
    flow.step(reserve_stock)
    enqueue("test.flow", {"order_id": 7})
    (held,) = claim_ready(register_worker())
    registry.forget_workflow("test.flow")
    changed = workflow()
    changed.step(noop)
    assert "unexpected keyword argument 'order_id'" in str(Desk().make(held))
    assert not WorkflowRun.objects.exists()
