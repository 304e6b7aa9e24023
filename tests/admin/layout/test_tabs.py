"""The tabs and breadcrumbs of all pages of the console."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import RequestFactory
from django.urls import reverse

from django_jobs.admin.layout import tabs
from django_jobs.admin.layout.tabs import Section, tabs_of
from django_jobs.models import Job, Queue, Run, Schedule, Worker
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import noop
from tests.factories import due_schedule, register_worker

pytestmark = pytest.mark.django_db

NAVIGATION = re.compile(r'<nav class="jobs-tabs".*?</nav>', re.DOTALL)
LINK = re.compile(r'<li><a href="([^"]*)"(?: aria-current="(\w+)")?>([^<]*)</a></li>')


def links(text: str) -> list[tuple[str, str]]:
    """The labels of the tabs of a page, each with its ``aria-current``."""
    (navigation,) = NAVIGATION.findall(text)
    return [(label, current) for _, current, label in LINK.findall(navigation)]


def labels(text: str) -> list[str]:
    return [label for label, _ in links(text)]


def crumbs(text: str) -> str:
    """The breadcrumbs as a person reads them, on each Django."""
    (inner,) = re.findall(r'<(?:div|ol) class="breadcrumbs">(.*?)</(?:div|ol)>', text, re.DOTALL)
    words = re.sub(r"<[^>]+>|&rsaquo;", " ", inner)
    return " > ".join(part for part in map(str.strip, words.splitlines()) if part)


def test_the_pages_of_lists_rows_and_forms_have_the_tabs(page: Page) -> None:
    job, worker, schedule = noop.enqueue(), register_worker(), due_schedule()
    for url in (
        list_url(Job),
        change_url(Job, job.pk),
        reverse("admin:django_jobs_job_history", args=[job.pk]),
        f"{list_url(Run)}cost/",
        f"{list_url(Worker)}doctor/",
        change_url(Worker, worker),
        reverse("admin:django_jobs_queue_add"),
        reverse("admin:django_jobs_schedule_delete", args=[schedule.pk]),
        reverse("admin:django_jobs_schedule_backfill", args=[schedule.pk]),
        f"{list_url(Schedule)}add/",
        reverse("admin:app_list", args=["django_jobs"]),
    ):
        assert {"Jobs", "Failures", "Queues", "Workers"} <= set(labels(page.text(url))), url
    assert "Jobs" in labels(page.ask(Job, "cancel_jobs", job.pk).content.decode())


def test_the_tab_of_the_page_is_the_current_one(page: Page) -> None:
    job = noop.enqueue()
    current = [link for link in links(page.text(list_url(Job))) if link[1]]
    assert current == [("Jobs", "true"), ("Jobs", "page")]
    current = [link for link in links(page.text(change_url(Job, job.pk))) if link[1]]
    assert current == [("Jobs", "true"), ("Jobs", "true")]
    current = [link for link in links(page.text(list_url(Run))) if link[1]]
    assert current == [("Jobs", "true"), ("Runs", "page")]
    current = [link for link in links(page.text(list_url(Queue))) if link[1]]
    assert current == [("Queues", "page")]


def test_a_user_sees_only_the_tabs_of_pages_that_they_may_see(
    page_of: Callable[..., Page],
) -> None:
    text = page_of("view_queue", "view_run").text(list_url(Queue))
    assert [label for label in labels(text) if label != "Overview"] == ["Jobs", "Queues"]
    assert f'href="{list_url(Run)}">Jobs<' in text
    assert list_url(Job) not in text.replace(list_url(Run), "")


def test_a_page_is_left_out_until_its_address_resolves(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = Section("Deploys", ("worker",), page="django_jobs_deploys")
    monkeypatch.setattr(tabs, "SECTIONS", (section,))
    assert labels(page.text(list_url(Worker))) == ["Deploys"]
    monkeypatch.setattr(tabs, "_address", lambda request, name: f"/{name}/")
    assert links(page.text(list_url(Worker))) == [
        ("Deploys", "true"),
        ("Deploys", ""),
        ("Workers", "page"),
    ]


def test_other_apps_give_no_tabs() -> None:
    entries = [{"object_name": "Job", "name": "Jobs", "admin_url": "/jobs/"}]
    request = RequestFactory().get("/")
    assert tabs_of(request, [{"app_label": "shop", "models": entries}], "job") == []
    (tab,) = tabs_of(request, [{"app_label": "django_jobs", "models": entries}], "")
    assert (tab.label, tab.url, tab.current) == ("Jobs", "/jobs/", "")


def test_breadcrumbs_lead_through_the_list(page: Page) -> None:
    job, schedule = noop.enqueue(), due_schedule()
    asked = page.ask(Job, "cancel_jobs", job.pk).content.decode()
    assert crumbs(asked) == f"Home > Background jobs > Jobs > Cancel: {job}?"
    assert f'<a href="{list_url(Job)}">Jobs</a>' in asked
    backfill = page.text(reverse("admin:django_jobs_schedule_backfill", args=[schedule.pk]))
    assert crumbs(backfill) == f"Home > Background jobs > Schedules > {schedule} > Backfill"
    doctor = page.text(f"{list_url(Worker)}doctor/")
    assert crumbs(doctor) == "Home > Background jobs > Workers > Doctor"


def test_a_page_is_never_stored_and_needs_its_permission(page_of: Callable[..., Page]) -> None:
    url = f"{list_url(Run)}cost/"
    answer = page_of("view_run").client.get(url)
    assert "no-store" in answer["Cache-Control"]
    assert page_of("view_job", name="rita").client.get(url).status_code == 403
