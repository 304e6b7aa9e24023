"""The page of a worker: what it runs, for how long, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import django
import pytest
from django.db.models.functions import Now

from django_jobs.models import Job, Progress, Worker
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import noop
from tests.factories import claim_ready, enqueue_and_claim, register_worker, run_sql

pytestmark = pytest.mark.django_db


def test_the_jobs_of_a_worker_those_that_run_longest_first(page: Page) -> None:
    worker = register_worker()
    for _ in range(3):
        noop.enqueue()
    first, second, waiting = claim_ready(worker)
    Worker.objects.filter(pk=worker).update(
        started_jobs=[[second.id, 90.0, 55], [first.id, 30.0, None]],
        rss_mb=1_234,
        ended_runs=5_000,
        failed_runs=7,
    )
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = now() - interval '5 s'")
    text = page.read(change_url(Worker, worker))
    places = [text.index(f">#{job.id}</a>") for job in (second, first, waiting)]
    assert places == sorted(places)
    assert "1 min 3" in text
    assert "isolated, 55 MB" in text
    assert "a thread" in text
    assert "claimed" in text
    assert "1,234 MB" in text
    assert "5,000 ended, 7 failed" in text


def test_an_idle_worker_says_so_and_an_ended_one_nothing(page: Page) -> None:
    worker = register_worker()
    assert "It has no job now." in page.read(change_url(Worker, worker))
    Worker.objects.update(status="stopped")
    assert "What it does" not in page.read(change_url(Worker, worker))


def test_the_page_refreshes_itself_until_the_worker_has_ended(page: Page) -> None:
    worker = register_worker()
    text = page.text(change_url(Worker, worker))
    live = text.index("data-live-region")
    assert live < text.index("It has no job now.")
    if django.VERSION < (6, 1):  # which has the buttons before the content
        assert live < text.index("jobs-tool")
    assert 'data-refresh="5"' in text[:live]
    assert "django_jobs/refresh.js" in text
    Worker.objects.update(status="stopped")
    assert "data-refresh=" not in page.text(change_url(Worker, worker))


@pytest.mark.parametrize("stored", ['{"a": 1}', "[1, [2]]", '[["x", "y", "z"]]', "null"])
def test_a_row_that_no_worker_wrote_is_shown(page: Page, stored: str) -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_worker SET started_jobs = %s::jsonb", [stored])
    assert f">#{held.id}</a>" in page.read(change_url(Worker, held.worker))


def test_jobs_need_the_permission_to_see_jobs(page_of: Callable[..., Page]) -> None:
    held = enqueue_and_claim()
    assert "What it does" not in page_of("view_worker").text(change_url(Worker, held.worker))


@pytest.mark.usefixtures("no_time_limit")
def test_the_queries_of_the_page_do_not_grow_with_the_jobs(
    page: Page, django_assert_max_num_queries: Any
) -> None:
    worker = register_worker()
    for _ in range(30):
        noop.enqueue()
    claim_ready(worker)
    with django_assert_max_num_queries(6):
        page.text(change_url(Worker, worker))


def test_the_list_of_what_runs_now_has_worker_time_progress_and_stop(
    page_of: Callable[..., Page], page: Page
) -> None:
    worker = register_worker()
    for _ in range(3):
        noop.enqueue()
    first, asked, waiting = claim_ready(worker)
    Worker.objects.filter(pk=worker).update(started_jobs=[[first.id, 90.0, None]])
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = now() - interval '5 s'")
    Progress.objects.create(
        job_id=first.id, attempt=first.attempt, fraction=0.42, note="<half>", reported_at=Now()
    )
    Job.objects.filter(pk=asked.id).update(cancel_requested_at=Now())
    url = f"{list_url(Job)}?status=running"
    text = page.text(url)
    assert re.search(r"1 min [345]\d s", " ".join(text.split()))
    assert "42 % · &lt;half&gt;" in text
    assert text.count(">claimed<") == 2
    assert f">{Worker.objects.get(pk=worker)}</a>" in text
    buttons = re.findall(r'form="row-(\w+)" name="_selected_action" value="(\d+)"', text)
    assert buttons == [
        ("cancel_jobs", str(waiting.id)),
        ("stop_jobs", str(asked.id)),
        ("cancel_jobs", str(first.id)),
    ]
    Progress.objects.update(attempt=7)  # of another attempt
    assert "42 %" not in page.read(url)
    looks = page_of("view_job").read(url)
    assert "jobs-row-button" not in looks
    assert "1 min " in looks
