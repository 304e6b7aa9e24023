"""The list of operations, and the page of one: progress, stop, continue, report."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.lifecycle.operations import bulk, dead_letters
from django_jobs.maintenance import bulk_operations
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, Job
from tests.admin.walking import Live, Page, change_url, list_url
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, make_dead, register_worker, run_sql

pytestmark = pytest.mark.django_db


@pytest.fixture
def half_done(monkeypatch: pytest.MonkeyPatch) -> BulkOperation:
    monkeypatch.setattr(bulk_operations, "CHUNK", 10)
    noop.enqueue_many({} for _ in range(20))
    operation = bulk.start("cancel", {"queue": "default"}, by="ada (jobcancel)", reason="a typo")
    run_chunk()
    return operation


def shown(page: Page, operation: BulkOperation) -> str:
    return " ".join(page.read(change_url(BulkOperation, operation.pk)).split())


def test_the_page_shows_count_share_and_the_time_left(page: Page, half_done: BulkOperation) -> None:
    run_sql("UPDATE django_jobs_bulkoperation SET started_at = now() - interval '30 h'")
    text = shown(page, half_done)
    assert "10 of about 20 jobs. About 1 d 6 h left." in text
    assert "<strong>50%</strong>" in text
    assert 'data-refresh="3"' in text
    assert "ada (jobcancel)" in text
    assert "a typo" in text


def test_the_list_shows_each_operation_in_one_line(page: Page, half_done: BulkOperation) -> None:
    text = page.read(list_url(BulkOperation))
    for part in (f"#{half_done.pk}", "cancel", "queue default", "running", "10 (50%)"):
        assert part in text


def named(text: str) -> list[str]:
    return re.findall(r'field-which_line"><span title="(.*?)">', text)


def test_an_operation_is_named_by_job_type_and_error(page: Page) -> None:
    dead = make_dead()
    terms = {"status": "dead", "job_type": "app.noop", "error": dead.fingerprint}
    operation = bulk.start("replay", terms)
    assert named(page.text(list_url(BulkOperation))) == ["app.noop: ValueError"]
    text = shown(page, operation)
    assert f"replay app.noop: ValueError #{operation.pk}" in text
    assert dead.fingerprint not in text.replace(f"fingerprint={dead.fingerprint}", "")
    bulk.stop([operation.pk])
    run_chunk()
    dead_letters.dismiss([dead.pk])  # so that no job has the fingerprint any more
    page.act(BulkOperation, "continue_operations", operation.pk)
    run_chunk()
    assert named(page.text(list_url(BulkOperation))) == ["app.noop: ValueError"]
    entry = LogEntry.objects.latest("pk")
    assert entry.object_repr == f"replay app.noop: ValueError #{operation.pk}"


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        ({"error": "0" * 16, "job_type": "app.add"}, "app.add: 0000000000000000"),
        ({"error": "", "job_type": "app.add", "queue": "bulk"}, "app.add: no error, queue bulk"),
        ({"error": ""}, "no error"),
        ({"status": "dead"}, "status dead"),
        ({"status": "dead", "queue": "bulk"}, "queue bulk"),
    ],
)
def test_an_operation_whose_error_no_job_has_is_named_by_its_terms(
    page: Page, terms: dict[str, str], name: str
) -> None:
    bulk.start("replay", terms)
    assert named(page.text(list_url(BulkOperation))) == [name]


def test_a_pending_operation_says_what_it_waits_for(page: Page) -> None:
    operation = bulk.start("cancel", {"queue": "default"})
    assert "No worker has started it yet. No worker is alive." in shown(page, operation)
    register_worker()
    assert "No worker is alive" not in shown(page, operation)


def test_it_is_stopped_and_continued_by_buttons(page: Page, half_done: BulkOperation) -> None:
    assert 'value="stop_operations"' in shown(page, half_done)
    assert page.act(BulkOperation, "stop_operations", half_done.pk) == (
        "1 operation was asked to stop."
    )
    assert "It stops after this chunk: ada asked for it." in shown(page, half_done)
    assert 'value="stop_operations"' not in shown(page, half_done)
    run_chunk()
    text = shown(page, half_done)
    assert "Stopped after 10 jobs: stopped by ada." in text
    assert "data-refresh" not in text
    page.act(BulkOperation, "continue_operations", half_done.pk)
    run_chunk()
    assert "Completed in" in shown(page, half_done)
    again = page.act(BulkOperation, "continue_operations", half_done.pk)
    assert "it was not stopped" in again
    messages = LogEntry.objects.filter(object_id=str(half_done.pk)).order_by("pk")
    assert [entry.change_message for entry in messages] == [
        "asked to stop",
        "continued",
        "completed: 20 done, 0 left",
    ]


def test_the_report_says_what_was_left_and_why(page: Page) -> None:
    held = enqueue_and_claim()
    operation = bulk.start("reprioritize", {"queue": "default"}, arguments={"priority": 5})
    run_chunk()
    text = shown(page, operation)
    assert "Jobs that were not changed, with the reasons" in text
    assert f'<a href="{change_url(Job, held.id)}">#{held.id}</a>' in text
    assert "it is running" in text
    assert "change priority: 5" in text


def test_the_page_of_a_plan_shows_the_waves_and_what_it_waits_for(page: Page) -> None:
    dead = make_dead()
    operation = bulk.start("replay", {"status": "dead"}, plan=ReplayPlan(then=7))
    run_chunk()
    text = shown(page, operation)
    assert (
        "First 1, then 7, then the rest at 10 per second; it stops if more than 20 % fail" in text
    )
    assert f'Waits for the outcome of <a href="{change_url(Job, dead.pk)}">' in text


def test_the_time_left_of_a_plan_is_by_what_it_has_done(page: Page) -> None:
    operation = bulk.start("replay", {"status": "dead"}, plan=ReplayPlan(then=0, rate=1_000))
    run_sql(
        "UPDATE django_jobs_bulkoperation SET status = 'running', matched = 301, done = 101,"
        " started_at = now() - interval '40 h', progress = jsonb_build_object("
        " 'sent', 101, 'rest_since', extract(epoch FROM now() - interval '30 h'))"
    )
    assert "101 of about 301 jobs. About 2 d 12 h left." in shown(page, operation)


def test_a_user_sees_and_stops_only_what_they_may_do(
    page_of: Callable[..., Page], half_done: BulkOperation
) -> None:
    viewer = page_of("view_bulkoperation", name="vic")
    assert 'value="stop_operations"' not in shown(viewer, half_done)
    viewer.confirm(BulkOperation, "stop_operations", half_done.pk)
    other = page_of("replay_job", name="rob")
    assert 'value="stop_operations"' not in shown(other, half_done)
    refusal = f"1 was not changed. #{half_done.pk}: you may not do to jobs what it does"
    assert refusal in other.act(BulkOperation, "stop_operations", half_done.pk)
    page_of("view_job", name="job").text(list_url(BulkOperation), 403)
    half_done.refresh_from_db()
    assert half_done.stop_requested_by == ""


def test_of_chosen_operations_those_that_a_user_may_not_do_are_left(
    page_of: Callable[..., Page], half_done: BulkOperation
) -> None:
    make_dead()
    replay = bulk.start("replay", {"status": "dead"})
    rosa = page_of("cancel_job", name="rosa")
    assert 'value="stop_operations"' in shown(rosa, half_done)
    message = rosa.act(BulkOperation, "stop_operations", half_done.pk, replay.pk)
    assert "1 operation was asked to stop." in message
    assert f"#{replay.pk}: you may not do to jobs what it does" in message
    bulk.stop([replay.pk])
    for _ in range(2):
        run_chunk()
    message = rosa.act(BulkOperation, "continue_operations", half_done.pk, replay.pk)
    assert "1 operation continues." in message
    assert f"#{replay.pk}: you may not do to jobs what it does" in message
    replay.refresh_from_db()
    assert replay.status == "stopped"


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x onerror=a>'])
def test_what_people_wrote_is_escaped(page: Page, text: str) -> None:
    operation = bulk.start("cancel", {"queue": text}, by=text, reason=text)
    BulkOperation.objects.update(
        why=text,
        status="failed",
        reasons={text: {"count": 1, "jobs": [1]}},
        finished_at="2026-01-01T00:00:00Z",
    )
    for url in (list_url(BulkOperation), change_url(BulkOperation, operation.pk)):
        assert not Live(page.text(url)).alarms


def test_the_pages_take_few_queries(
    page: Page, half_done: BulkOperation, django_assert_max_num_queries: Any
) -> None:
    for url in (list_url(BulkOperation), change_url(BulkOperation, half_done.pk)):
        with django_assert_max_num_queries(15):
            page.text(url)
