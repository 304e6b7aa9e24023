"""The page of the doctor."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.urls import reverse
from pytest_django import Settings

from django_jobs.doctor import examination
from django_jobs.doctor.examination import Examination
from django_jobs.doctor.findings import KINDS, Finding
from django_jobs.models import Worker
from django_jobs.models.database import fetch
from tests.app.jobs import noop
from tests.factories import run_sql
from tests.receivers import webhook

from .walking import Live, Page, list_url

pytestmark = pytest.mark.django_db

URL = reverse("admin:django_jobs_worker_doctor")


def test_only_users_with_the_permission_see_the_page_and_its_link(
    page_of: Callable[..., Page],
) -> None:
    viewer = page_of("view_worker", name="vera")
    assert URL not in viewer.text(list_url(Worker))
    viewer.text(URL, status=403)
    doctor = page_of("view_worker", "run_doctor", name="dora")
    assert URL in doctor.text(list_url(Worker))
    doctor.text(URL)


def test_a_finding_is_shown_with_what_to_do(page: Page) -> None:
    assert "D103" not in page.text(URL)
    run_sql("ALTER TABLE django_jobs_job_live SET (autovacuum_enabled = off)")
    text = page.read(URL)
    assert "django_jobs.D103" in text
    assert "ALTER TABLE django_jobs_job_live RESET (autovacuum_enabled);" in text


def test_what_could_not_be_examined_is_listed_with_its_reason(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> list[Finding]:
        fetch("TABLE no_such_table", {})
        return []

    broken = Examination(fails, ("D111",))
    monkeypatch.setattr(examination, "EXAMINATIONS", (broken,))
    text = page.read(URL)
    assert re.search(r"Examined <time .*UTC</time>, in [\d.]+ (ms|s)\.", text)
    looked_for = re.search(r"Nothing was found. It looked for (\d+) kinds of trouble.", text)
    assert looked_for
    assert 0 < int(looked_for[1]) <= len(KINDS)
    assert re.search(r"old snapshot.*django_jobs\.D111.*no_such_table", text, re.DOTALL)


def test_nothing_of_a_row_is_carried_out_by_a_browser(page: Page) -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET queue = '<img src=x onerror=alert(1)>'")
    text = page.text(URL)
    assert "&lt;img src=x" in text
    assert not Live(text).alarms


def test_a_test_of_an_alert_is_sent_by_who_may(
    page_of: Callable[..., Page], settings: Settings
) -> None:
    with webhook() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/secret"
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ALERTS": {"<b>ops": {"to": url}}}
        doctor = page_of("view_worker", "run_doctor", name="dora")
        assert "Send a test" not in doctor.text(URL)
        assert doctor.client.post(URL, {"alert": "<b>ops"}).status_code == 403
        tester = page_of("view_worker", "run_doctor", "test_alert", name="tess")
        text = tester.text(URL)
        assert "Send a test" in text
        assert "http://127.0.0.1/…" in text
        assert "/secret" not in text
        assert "<b>ops" not in text
        assert tester.client.post(URL, {"alert": "other"}).status_code == 403
        assert not receiver.received
        answer = tester.client.post(URL, {"alert": "<b>ops"}, follow=True)
        assert "A test of “&lt;b&gt;ops” was sent." in answer.content.decode()
        assert receiver.received == [{"rule": "<b>ops", "test": True, "situations": []}]
        receiver.status = 500
        answer = tester.client.post(URL, {"alert": "<b>ops"}, follow=True)
        assert "was not sent: the webhook answered 500." in answer.content.decode()
