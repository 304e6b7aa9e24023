"""A schedule is run now with other arguments, by its form and from code."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.urls import reverse

from django_jobs import OperationRefused, PayloadError, run_now
from django_jobs.models import Job, Schedule, Tick
from tests.admin.editing.test_edit import filled
from tests.admin.schedules.scheduling import in_code, new_schedule, schedulable
from tests.admin.walking import Page, change_url, list_url, message_of
from tests.factories import make_user, run_sql

pytestmark = pytest.mark.django_db

MAY = ("view_schedule", "run_schedule", "view_job_payload")
OWN = {"customer": 7, "note": "old", "api_key": "k-secret", "parts": [1, 2]}


@pytest.fixture(autouse=True)
def _schedulable() -> Iterator[None]:
    with schedulable():
        yield


def url_of(schedule: Schedule) -> str:
    return reverse("admin:django_jobs_schedule_run", args=[schedule.pk])


def send(page: Page, schedule: Schedule, **changes: str) -> Any:
    return page.client.post(url_of(schedule), filled(page.text(url_of(schedule))) | changes)


def test_its_form_is_filled_in_and_makes_one_job(page_of: Callable[..., Page]) -> None:
    page, schedule = page_of(*MAY), new_schedule(job_type="app.report", payload=OWN)
    assert f'href="{url_of(schedule)}"' in page.text(change_url(Schedule, schedule.pk))
    form = page.text(url_of(schedule))
    assert "k-secret" not in form
    assert filled(form)["argument_note"] == "old"
    done = send(page, schedule, argument_note="new")
    job = Job.objects.get()
    assert job.payload == {**OWN, "note": "new"}
    assert done.url == change_url(Schedule, schedule.pk)
    assert f">#{job.pk}</a>" in message_of(done)
    schedule.refresh_from_db()
    assert schedule.payload == OWN
    tick = Tick.objects.get()
    assert tick.reason.startswith("run now by olga, with other arguments, form ")
    for url in (change_url(Schedule, schedule.pk), change_url(Tick, tick.pk), list_url(Tick)):
        text = page.text(url)
        assert "run now by olga, with other arguments" in text
        assert ", form " not in text
    assert LogEntry.objects.get().change_message == "run now with other arguments"


def test_a_form_that_is_sent_twice_makes_one_job(page: Page) -> None:
    schedule = new_schedule(job_type="app.report", payload=OWN)
    data = filled(page.text(url_of(schedule)))
    page.client.post(url_of(schedule), data)
    again = page.client.post(url_of(schedule), data)
    assert "This form was sent twice. It made one job." in message_of(again)
    page.client.post(url_of(schedule), data | {"argument_note": "another"})
    assert Job.objects.count() == LogEntry.objects.count() == 2


def test_what_is_wrong_is_shown_and_nothing_is_made(page: Page) -> None:
    schedule = new_schedule(job_type="app.report", payload=OWN)
    answer = send(page, schedule, argument_customer="x")
    assert "Enter a whole number." in html.unescape(answer.content.decode())
    Schedule.objects.update(queue="gone")
    answer = send(page, schedule)
    assert "no queue is named" in html.unescape(answer.content.decode())
    assert not Job.objects.exists()


def test_one_that_code_declares_has_it_too_and_one_without_arguments_not(page: Page) -> None:
    with in_code("nightly", payload={}) as schedule:
        assert url_of(schedule) not in page.text(change_url(Schedule, schedule.pk))
    with in_code("daily", job_type="app.add", payload={"first": 1}) as schedule:
        assert url_of(schedule) in page.text(change_url(Schedule, schedule.pk))
        send(page, schedule, argument_first="2")
    assert Job.objects.get().payload == {"first": 2}


@pytest.mark.parametrize("lacking", MAY[1:])
def test_it_needs_both_permissions(page_of: Callable[..., Page], lacking: str) -> None:
    page = page_of(*(one for one in MAY if one != lacking))
    schedule = new_schedule(job_type="app.report", payload=OWN)
    assert url_of(schedule) not in page.text(change_url(Schedule, schedule.pk))
    assert page.client.get(url_of(schedule)).status_code == 403
    assert page.client.post(url_of(schedule), {"argument_customer": "1"}).status_code == 403
    assert not Job.objects.exists()


def test_a_payload_that_cannot_be_read_and_an_unknown_type(page: Page) -> None:
    schedule = new_schedule(job_type="app.report", payload=OWN)
    run_sql("UPDATE django_jobs_schedule SET payload = '[1]'")
    assert filled(page.text(url_of(schedule)))["argument_customer"] == ""
    Schedule.objects.update(job_type="app.gone")
    assert page.client.get(url_of(schedule)).status_code == 404
    assert page.client.get("/admin/django_jobs/schedule/99/run/").status_code == 404


def test_from_code() -> None:
    schedule = new_schedule(job_type="app.report", payload=OWN)
    job = run_now("hourly", payload={"customer": 8})
    assert (job.payload, job.schedule_id) == ({"customer": 8}, schedule.pk)
    assert run_now("hourly", by="nina").payload == OWN
    assert list(Tick.objects.order_by("id").values_list("reason", flat=True)) == [
        "run now by code, with other arguments",
        "run now by nina",
    ]
    with pytest.raises(OperationRefused, match="did you mean 'hourly'"):
        run_now("hourl")
    wrong: Any = [1]
    for payload in ({"customers": 8}, {"customer": 8, "more": 1}, wrong):
        with pytest.raises(PayloadError):
            run_now("hourly", payload=payload)
    with pytest.raises(PermissionDenied):
        run_now("hourly", actor=make_user("view_schedule"))
    assert Job.objects.count() == 2
