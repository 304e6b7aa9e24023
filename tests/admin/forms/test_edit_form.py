"""A form that was open while another person saved does not set back what they saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobs.models import Queue, Resource, Schedule, Tenant
from tests.admin.schedules.scheduling import new_schedule, schedulable
from tests.admin.walking import Page, change_url

pytestmark = pytest.mark.django_db

ROWS: list[Callable[[], Any]] = [
    lambda: Queue.objects.get(name="bulk"),
    lambda: Resource.objects.create(name="stripe", max_concurrency=4),
    lambda: Tenant.objects.create(name="acme", weight=2),
    lambda: new_schedule(job_type="app.report", payload={"customer": 1}),
]
FIELDS = {
    Queue: ("max_concurrency", "max_attempts", "Maximum concurrency"),
    Resource: ("max_concurrency", "rate", "Maximum concurrency"),
    Tenant: ("max_concurrency", "weight", "Maximum concurrency"),
    Schedule: ("overlap_limit", "priority", "Overlap limit"),
}


@pytest.fixture(autouse=True)
def _job_types() -> Iterator[None]:
    with schedulable():
        yield


def opened(page: Page, row: Any) -> dict[str, Any]:
    """What a browser would send of the form, with nothing changed."""
    form = page.client.get(change_url(type(row), row.pk)).context["adminform"].form
    shown = {name: form[name].value() for name in form.fields}
    assert f'name="opened" value="{shown["opened"]}"' in page.text(change_url(type(row), row.pk))
    return {
        name: value for name, value in shown.items() if value is not None and value is not False
    }


@pytest.mark.parametrize("make", ROWS)
def test_a_form_is_not_saved_over_what_another_person_saved(
    page: Page, make: Callable[[], Any]
) -> None:
    row = make()
    url, (theirs, mine, label) = change_url(type(row), row.pk), FIELDS[type(row)]
    form = opened(page, row)
    saved = page.client.post(url, form | {theirs: "7"})
    assert saved.status_code == 302, saved.context["adminform"].form.errors
    answer = page.client.post(url, form | {mine: "3"})
    (problem,) = answer.context["adminform"].form.non_field_errors()
    assert "changed since this form was opened" in problem
    assert label in problem
    row.refresh_from_db()
    assert getattr(row, theirs) == 7
    assert getattr(row, mine) != 3
    again = answer.context["adminform"].form
    assert again[theirs].value() == (str(form[theirs]) if theirs in form else None)
    assert again[mine].value() == "3"
    sent = form | {mine: "3", "opened": again["opened"].value()}
    assert page.client.post(url, sent).status_code == 302
    row.refresh_from_db()
    assert getattr(row, mine) == 3


def test_arguments_of_a_schedule_are_part_of_its_state(page: Page) -> None:
    schedule = new_schedule(job_type="app.report", payload={"customer": 1})
    form, url = opened(page, schedule), change_url(Schedule, schedule.pk)
    assert page.client.post(url, form | {"argument_customer": "2"}).status_code == 302
    assert page.client.post(url, form | {"priority": "9"}).status_code == 200
    assert Schedule.objects.get().payload == {"customer": 2}


def test_a_pause_while_the_form_is_open_does_not_stand_in_its_way(page: Page) -> None:
    row = Tenant.objects.create(name="acme")
    form, url = opened(page, row), change_url(Tenant, row.pk)
    Tenant.objects.update(paused_at="2026-01-01T00:00Z", paused_by="otto")
    assert page.client.post(url, form | {"weight": "3"}).status_code == 302
    row.refresh_from_db()
    assert (row.weight, row.paused_by) == (3, "otto")
