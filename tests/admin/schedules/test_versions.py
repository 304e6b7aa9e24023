"""The payload of a schedule, and the code of before and after it was written."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import registry, schedule
from django_jobs.api.schedules import request_of, synchronise
from django_jobs.lifecycle.schedules.due import take_due
from django_jobs.models import Job, Schedule
from tests.admin.schedules.scheduling import add_url, filled_in
from tests.admin.walking import Page, change_url
from tests.app.version_jobs import greet
from tests.factories import due_schedule, look

pytestmark = pytest.mark.django_db
OLD: dict[str, Any] = {"job_type": "app.greet", "payload": {"name": "Ada Lovelace"}}


def test_the_jobs_of_an_old_schedule_have_an_upgraded_payload() -> None:
    row = due_schedule(**OLD)
    look()
    job = Job.objects.get(schedule=row)
    assert job.payload == {"first": "Ada", "last": "Lovelace", "greeting": "Dear"}
    assert job.payload_version == 3
    row.refresh_from_db()
    assert row.payload == OLD["payload"]


def test_a_schedule_of_an_old_name_is_fired_through_the_alias() -> None:
    row = due_schedule(job_type="app.old_name")
    look()
    assert Job.objects.get(schedule=row).job_type == "app.present_name"


def test_a_schedule_with_a_newer_payload_stays_due_for_newer_workers() -> None:
    row = due_schedule(**{**OLD, "payload_version": 4})
    assert take_due(registry.versions(), 10) == []
    assert take_due({"app.greet": 4}, 10) == [row.pk]
    look()
    row.refresh_from_db()
    assert (row.error, Job.objects.count()) == ("", 0)
    assert row.next_due_at is not None


def test_a_schedule_that_cannot_be_upgraded_gets_a_readable_error() -> None:
    row = due_schedule(**{**OLD, "payload": {"who": "Ada"}})
    look()
    row.refresh_from_db()
    assert "the upgrade from version 1 raised KeyError" in row.error


@pytest.mark.parametrize("job_type", [greet, "app.greet"])
def test_declared_schedules_have_the_current_payload_version(
    monkeypatch: pytest.MonkeyPatch, job_type: Any
) -> None:
    monkeypatch.setattr(registry, "_schedules", {})
    payload = {"first": "Ada", "last": "Lovelace"}
    schedule("nightly", job_type, every=60, payload=payload)
    synchronise("default")
    row = Schedule.objects.get()
    assert (row.payload_version, row.payload) == (3, payload)
    Schedule.objects.update(payload_version=1)
    synchronise("default")
    assert Schedule.objects.get().payload_version == 3


def test_a_schedule_by_an_old_name_has_the_version_of_its_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_schedules", {})
    schedule("nightly", "app.old_name", every=60)
    schedule("gone", "app.gone", every=60)
    synchronise("default")
    assert set(Schedule.objects.values_list("payload_version", flat=True)) == {1}


def test_the_form_shows_and_saves_upgraded_arguments(page: Page) -> None:
    row = Schedule.objects.create(name="tick", every=60, **OLD)
    text = page.read(change_url(Schedule, row.pk))
    assert 'value="Lovelace"' in text
    values = filled_in(
        name="tick",
        argument_first="Grace",
        argument_last="Hopper",
        argument_greeting="Dear",
    )
    answered = page.client.post(change_url(Schedule, row.pk), values)
    assert answered.status_code == 302, answered.context["adminform"].form.errors
    row.refresh_from_db()
    assert row.payload_version == 3
    assert row.payload == {"first": "Grace", "last": "Hopper", "greeting": "Dear"}
    assert request_of(row)[0].payload_version == 3


def test_a_new_schedule_has_the_current_payload_version(page: Page) -> None:
    values = filled_in(argument_first="Ada", argument_last="Lovelace")
    assert page.client.post(add_url("app.greet"), values).status_code == 302
    assert Schedule.objects.get().payload_version == 3


def test_a_schedule_that_cannot_be_upgraded_is_shown_as_stored(page: Page) -> None:
    row = Schedule.objects.create(
        name="tick",
        every=60,
        job_type="app.greet",
        payload_version=9,
        payload={"first": "Grace", "title": "Rear Admiral"},
    )
    text = page.read(change_url(Schedule, row.pk))
    assert 'value="Grace"' in text
    assert "Rear Admiral" not in text
    row.refresh_from_db()
    assert row.payload_version == 9
