"""A run is started by hand, with a form made of the arguments of its workflow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Now
from django.urls import reverse

from django_jobs import registry
from django_jobs.admin.forms.arguments import MORE, arguments_of
from django_jobs.admin.workflows.starting import start_by_hand
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.models import Job, WorkflowDefinition, WorkflowRun
from tests.admin.test_safety import EVIL
from tests.admin.walking import Live, Page, change_url, list_url, message_of
from tests.app.flow_jobs import charge_card, gather, refund_card, reserve_stock, ship_order

pytestmark = pytest.mark.django_db

URL = reverse("admin:django_jobs_workflowrun_start")
ORDER = f"{URL}?workflow=test.order"
Declare = Callable[..., Workflow]


@pytest.fixture
def order(workflow: Declare) -> Workflow:
    flow = workflow("test.order", version=2)
    reserve = flow.step(reserve_stock)
    flow.step(charge_card, after=reserve, takes={"stock": reserve}, compensate=refund_card)
    flow.step(ship_order, after="charge_card")
    return flow


def given(**values: Any) -> dict[str, Any]:
    blank = {"argument_order_id": "7", "argument_warehouse": "", "argument_express": ""}
    return {**blank, "idempotency_key": "", "overrides": "", **values}


@pytest.mark.usefixtures("order")
def test_the_newest_version_of_each_workflow_is_offered(page: Page, workflow: Declare) -> None:
    workflow("test.order", version=1).step(reserve_stock)
    text = page.read(URL)
    assert f'<a href="{ORDER}">test.order v2</a>' in text
    assert "reserve_stock, charge_card, ship_order" in text
    assert "v1<" not in text
    assert f'href="{URL}"' in page.read(list_url(WorkflowRun))


@pytest.mark.usefixtures("order")
def test_the_form_has_a_field_for_each_argument(page: Page) -> None:
    text = page.read(ORDER)
    assert 'type="number" name="argument_order_id"' in text
    assert 'type="text" name="argument_warehouse"' in text
    assert '<select name="argument_express"' in text
    assert "Empty: main." in text
    assert "argument_stock" not in text
    assert "argument_result" not in text
    assert Live(text).alarms == []


@pytest.mark.usefixtures("order")
def test_a_run_is_started_and_logged(page: Page) -> None:
    answered = page.client.post(ORDER, given(argument_warehouse="north", argument_express="0"))
    run = WorkflowRun.objects.get()
    assert answered.url == change_url(WorkflowRun, run.pk)
    assert message_of(answered) == f"The run test.order #{run.pk} was started."
    assert run.payload == {"order_id": 7, "warehouse": "north", "express": True}
    assert run.definition is not None
    assert run.definition.version == 2
    assert Job.objects.filter(workflow_run=run).count() == 3
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_id) == (ADDITION, str(run.pk))
    assert entry.change_message == "started by hand"


@pytest.mark.usefixtures("order")
def test_arguments_of_one_step_may_be_overridden(page: Page) -> None:
    page.client.post(ORDER, given(overrides='{"ship_order": {"order_id": 8}}'))
    assert Job.objects.get(step="ship_order").payload["order_id"] == 8
    assert Job.objects.get(step="reserve_stock").payload["order_id"] == 7


@pytest.mark.usefixtures("order")
def test_a_running_run_with_the_key_is_not_started_twice(page: Page) -> None:
    first = page.client.post(ORDER, given(idempotency_key="7"))
    second = page.client.post(ORDER, given(idempotency_key="7"))
    assert first.url == second.url
    assert "No other was started." in message_of(second)
    assert LogEntry.objects.count() == WorkflowRun.objects.count() == 1


@pytest.mark.usefixtures("order")
def test_a_form_that_is_sent_twice_starts_one_run(page: Page) -> None:
    assert 'name="form_number" value="' in page.text(ORDER)
    first, second = (page.client.post(ORDER, given(form_number="f" * 32)) for _ in range(2))
    assert first.url == second.url
    assert "This form was sent twice. It started one run." in message_of(second)
    page.client.post(ORDER, given(form_number="e" * 32))
    assert LogEntry.objects.count() == WorkflowRun.objects.count() == 2


@pytest.mark.usefixtures("order")
def test_a_form_that_is_sent_again_after_its_run_ended_starts_no_other(page: Page) -> None:
    sent = given(form_number="f" * 32)
    first = page.client.post(ORDER, sent)
    WorkflowRun.objects.update(status="succeeded", finished_at=Now())
    second = page.client.post(ORDER, sent)
    assert first.url == second.url
    assert "This form was sent twice. It started one run." in message_of(second)
    WorkflowRun.objects.update(started_at=Now() - timedelta(hours=1, seconds=1))
    page.client.post(ORDER, sent)
    assert LogEntry.objects.count() == WorkflowRun.objects.count() == 2


@pytest.mark.usefixtures("order")
def test_a_typed_key_is_free_once_its_run_has_ended(page: Page) -> None:
    for _ in range(2):
        page.client.post(ORDER, given(idempotency_key="7", form_number="f" * 32))
        WorkflowRun.objects.update(status="succeeded", finished_at=Now())
    assert WorkflowRun.objects.count() == 2


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize(
    "values, problem",
    [
        ({"argument_order_id": ""}, "This field is required."),
        ({"argument_order_id": "x"}, "Enter a whole number."),
        ({"overrides": "[1]"}, "Enter an object such as"),
        ({"overrides": '{"shop": {}}'}, "shop"),
        ({"overrides": '{"ship_order": {"x": 1}}'}, "app.ship_order does not take"),
        ({"overrides": '{"ship_order": 1}'}, "overrides are dicts of arguments"),
        ({"idempotency_key": "a" * 201}, "at most 200 characters"),
        ({"overrides": '{"ship_order": {"express": "\\u0000"}}'}, "NUL"),
    ],
)
def test_wrong_values_are_refused_and_nothing_is_started(
    page: Page, values: dict[str, str], problem: str
) -> None:
    answered = page.client.post(ORDER, given(**values))
    assert answered.status_code == 200
    assert problem in answered.context["form"].errors.as_text()
    assert Live(answered.content.decode()).alarms == []
    assert not WorkflowRun.objects.exists()


def test_other_arguments_are_entered_as_json(page: Page, workflow: Declare) -> None:
    workflow("test.anything").step(gather)
    url = f"{URL}?workflow=test.anything"
    values = {MORE: '{"a": [1]}', "idempotency_key": "", "overrides": ""}
    assert page.client.post(url, values).status_code == 302
    assert WorkflowRun.objects.get().payload == {"a": [1]}


def test_the_page_of_the_newest_version_links_to_the_form(
    page: Page, page_of: Callable[..., Page], order: Workflow
) -> None:
    order.start(order_id=1)
    row = WorkflowDefinition.objects.get()
    assert f'href="{ORDER}"' in page.read(change_url(WorkflowDefinition, row.pk))
    viewer = page_of("view_workflowdefinition", "view_workflowrun")
    assert ORDER not in viewer.read(change_url(WorkflowDefinition, row.pk))
    assert URL not in viewer.read(list_url(WorkflowRun))
    WorkflowDefinition.objects.update(version=1)
    assert ORDER not in page.read(change_url(WorkflowDefinition, row.pk))


def test_a_start_needs_its_permission(page_of: Callable[..., Page], order: Workflow) -> None:
    viewer = page_of("view_workflowdefinition", "view_workflowrun")
    viewer.text(URL, status=403)
    viewer.text(ORDER, status=403)
    assert viewer.client.post(ORDER, given()).status_code == 403
    with pytest.raises(PermissionDenied):
        start_by_hand(order, {}, actor=AnonymousUser())
    assert not WorkflowRun.objects.exists()
    starter = page_of("view_workflowrun", "start_workflow", name="otto")
    assert starter.client.post(ORDER, given()).status_code == 302


def test_an_unknown_workflow_is_not_found(page: Page) -> None:
    for name in ("gone", "", EVIL):
        assert page.client.get(URL, {"workflow": name}).status_code == 404
    assert page.client.get(URL).status_code == 200


def test_the_form_of_a_schedule_of_a_workflow_has_typed_fields(order: Workflow) -> None:
    fields = {one.name: one.field for one in arguments_of(registry.get(order.name))}
    kinds = {name: type(field).__name__ for name, field in fields.items()}
    assert kinds == {
        "order_id": "IntegerField",
        "warehouse": "CharField",
        "express": "ChoiceField",
    }
