"""A step gets arguments from other steps. Its stored payload lacks them, and it can run even so."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_jobs import OperationRefused, PayloadError
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.models import Dependency, Job, WorkflowRun
from tests.app.flow_jobs import charge_card, refund_card, reserve_stock, send_parcel, ship_order
from tests.factories import run_sql
from tests.lifecycle.test_opening import DEAD, finish
from tests.workflows import states, step

pytestmark = pytest.mark.django_db


@pytest.fixture
def order(workflow: Callable[..., Workflow]) -> Workflow:
    """Reserved, charged, sent: the parcel needs what was reserved, and the refund the charge."""
    flow = workflow("test.order")
    reserve = flow.step(reserve_stock)
    charge = flow.step(charge_card, after=reserve)
    flow.step(send_parcel, after=charge, takes={"stock": reserve})
    return flow


def failed(order: Workflow) -> WorkflowRun:
    run = order.start(order_id=7)
    finish({"send_parcel": DEAD})
    run.refresh_from_db()
    assert run.status == "failed"
    return run


def test_a_run_is_retried_from_a_step_that_takes_a_result(order: Workflow) -> None:
    run = failed(order)
    run.retry("mended")
    assert states(run)["send_parcel"] == "ready"


def test_a_dead_step_that_takes_a_result_is_replayed(order: Workflow) -> None:
    run = failed(order)
    call_command("jobreplay", str(step(run, "send_parcel").pk), stdout=StringIO())
    assert states(run)["send_parcel"] == "ready"


def test_a_compensation_that_needs_the_result_of_its_step_is_retried(
    workflow: Callable[..., Workflow],
) -> None:
    flow = workflow("test.saga")
    charge = flow.step(charge_card, compensate=refund_card)
    flow.step(ship_order, after=charge)
    run = flow.start(order_id=7)
    finish({"ship_order": DEAD, "undo charge_card": DEAD})
    run.retry("the bank is open")
    assert finish() == ["undo charge_card"]


def test_a_step_that_takes_another_result_is_not_retried(order: Workflow) -> None:
    run = failed(order)
    Dependency.objects.filter(child_id=step(run, "send_parcel").pk).update(takes=None)
    with pytest.raises(OperationRefused, match="missing a required argument: 'stock'"):
        run.retry("mended")


def test_steps_that_take_results_are_jobs_that_this_code_can_run(order: Workflow) -> None:
    run = order.start(order_id=7)
    assert jobcheck() == "Checked 3 live jobs and 0 schedules.\n"
    run_sql("UPDATE django_jobs_job SET workflow_run_id = NULL WHERE step = 'send_parcel'")
    with pytest.raises(CommandError, match="cannot run 1 job"):
        jobcheck()
    assert states(run)["reserve_stock"] == "ready"


def test_a_job_beside_such_a_step_is_tried_by_itself(order: Workflow) -> None:
    order.start(order_id=7)
    odd = send_parcel.enqueue(order_id=8, stock=1)
    Job.objects.filter(pk=odd.pk).update(payload={"order_id": 8})
    out = StringIO()
    with pytest.raises(CommandError, match="cannot run 1 job"):
        call_command("jobcheck", "--pending", stdout=out)
    assert str(odd.pk) in out.getvalue()


def jobcheck() -> str:
    out = StringIO()
    call_command("jobcheck", "--pending", stdout=out)
    return out.getvalue()


def test_the_payload_of_such_a_step_is_edited_without_the_result(order: Workflow) -> None:
    job = step(failed(order), "send_parcel")
    job.edit(payload={"order_id": 8})
    assert (job.status, job.payload) == ("ready", {"order_id": 8})
    with pytest.raises(PayloadError, match="missing a required argument: 'order_id'"):
        job.edit(payload={})
