"""The page of quarantines: look, quarantine, release."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.urls import reverse

from django_jobs.lifecycle.operations import jobs, quarantines
from django_jobs.models import Job, Quarantine
from django_jobs.models.job import QUARANTINED
from tests.app.jobs import noop
from tests.factories import run_sql

from .walking import Live, Page, change_url, list_url, message_of

pytestmark = pytest.mark.django_db

ADD = reverse("admin:django_jobs_quarantine_add")


def held_type(reason: str = "eats memory") -> Quarantine:
    noop.enqueue_many({} for _ in range(3))
    quarantines.quarantine("app.noop", reason=reason, by="ada")
    quarantines.block("default")
    return Quarantine.objects.get()


def test_the_list_shows_reason_operator_and_blocked_jobs(page: Page) -> None:
    held_type()
    text = page.read(list_url(Quarantine))
    for shown in ("app.noop", "quarantined", "eats memory", "ada", " ago"):
        assert shown in text
    assert '<a href="/admin/django_jobs/job/?job_type=app.noop&status=blocked">3</a>' in text


def test_a_job_that_was_cancelled_with_that_word_is_not_counted(page: Page) -> None:
    cancelled = noop.enqueue()
    jobs.cancel([cancelled.pk], reason=QUARANTINED)
    held_type()
    assert 'status=blocked">3</a>' in page.read(list_url(Quarantine))


def test_jobs_that_wait_at_their_gates_are_counted_while_it_is_in_force(page: Page) -> None:
    noop.using(concurrency_key="one").enqueue_many({} for _ in range(2))
    held_type()
    link = '<a href="/admin/django_jobs/job/?job_type=app.noop&status=blocked">5</a>'
    assert link in page.read(list_url(Quarantine))
    assert link in page.read(change_url(Quarantine, Quarantine.objects.get().pk))
    quarantines.lift("app.noop")
    assert "status=blocked" not in page.read(list_url(Quarantine))


def test_quarantines_in_force_come_first_and_lifted_ones_stay(page: Page) -> None:
    quarantines.quarantine("app.add")
    quarantines.lift("app.add")
    quarantines.quarantine("app.noop")
    text = page.read(list_url(Quarantine))
    assert text.index(">app.noop<") < text.index(">app.add<")
    assert "lifted" in text
    assert "a worker" in text


def test_quarantining_by_the_form_is_logged(page: Page) -> None:
    text = page.read(ADD)
    assert '<option value="app.noop">' in text
    assert "app.old_name" not in text
    answered = page.client.post(ADD, {"job_type": "app.noop", "reason": "eats memory"})
    assert answered.status_code == 302
    assert "app.noop" in message_of(answered)
    row = Quarantine.objects.get()
    assert (row.job_type, row.reason, row.by, row.in_force) == (
        *("app.noop", "eats memory", "ada", True),
    )
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_id) == (ADDITION, str(row.pk))


def test_a_lifted_type_can_be_quarantined_again(page: Page) -> None:
    quarantines.quarantine("app.noop")
    quarantines.lift("app.noop")
    assert page.client.post(ADD, {"job_type": "app.noop"}).status_code == 302
    assert Quarantine.objects.get().in_force


def test_a_quarantined_and_an_unknown_type_are_refused(page: Page) -> None:
    quarantines.quarantine("app.noop")
    assert (
        "This job type is already quarantined."
        in page.client.post(ADD, {"job_type": "app.noop"}).content.decode()
    )
    assert page.client.post(ADD, {"job_type": "app.gone"}).status_code == 200
    assert Quarantine.objects.count() == 1


def test_lifting_a_quarantine_is_confirmed_and_logged(page: Page) -> None:
    row = held_type()
    assert page.act(Quarantine, "lift_quarantines", row.pk) == "1 quarantine was lifted."
    assert set(Job.objects.values_list("status", flat=True)) == {"ready"}
    row.refresh_from_db()
    assert not row.in_force
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.change_message) == (CHANGE, "lifted")
    again = page.act(Quarantine, "lift_quarantines", row.pk)
    assert "it is not quarantined" in again


def test_the_row_has_a_page_with_a_button_while_it_is_in_force(page: Page) -> None:
    row = held_type()
    assert 'value="lift_quarantines"' in page.read(change_url(Quarantine, row.pk))
    done = page.confirm(Quarantine, "lift_quarantines", row.pk, from_page=1)
    assert done.url == change_url(Quarantine, row.pk)
    assert 'value="lift_quarantines"' not in page.read(done.url)


def test_the_permission_to_quarantine_is_enough(page_of: Callable[..., Page]) -> None:
    operator = page_of("quarantine_job_type")
    assert operator.client.post(ADD, {"job_type": "app.noop"}).status_code == 302
    row = Quarantine.objects.get()
    assert row.by == "olga"
    assert operator.act(Quarantine, "lift_quarantines", row.pk) == "1 quarantine was lifted."


def test_without_any_permission_there_is_no_page(page_of: Callable[..., Page]) -> None:
    page_of("view_job").text(list_url(Quarantine), status=403)
    page_of("view_quarantine", name="vera").text(ADD, status=403)


def test_markup_in_rows_is_shown_and_not_run(page: Page) -> None:
    row = held_type(reason="<img src=x onerror=alert(1)>")
    run_sql("UPDATE django_jobs_quarantine SET job_type = '<script>alert(1)</script>'")
    for url in (list_url(Quarantine), change_url(Quarantine, row.pk)):
        assert Live(page.text(url)).alarms == Live(page.text(ADD)).alarms
    asked = page.ask(Quarantine, "lift_quarantines", row.pk)
    assert "<script>alert" not in asked.content.decode()
