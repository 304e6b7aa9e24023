"""A statement of a page that takes too long is stopped, and the answer says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.db.models.expressions import RawSQL
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobs.admin.base import actions
from django_jobs.admin.jobs.job_admin import JobAdmin
from django_jobs.admin.layout.console_page import time_limit
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import BulkOperation, DeadLetter, Job, JobStatus, Schedule
from tests.app.jobs import noop
from tests.factories import another_connection, due_schedule, make_dead, run_sql

from ..walking import Page, change_url, list_url, message_of

SLOW = RawSQL("(SELECT pg_sleep(20)::text)", ())


@pytest.fixture
def at_most(settings: Any) -> Callable[[float | None], None]:
    def at_most(seconds: float | None) -> None:
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_STATEMENT_TIMEOUT": seconds}

    return at_most


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, at_most: Callable[[float | None], None]) -> None:
    """Each row of the list of jobs takes 20 s; a page may take half of one."""
    monkeypatch.setattr(JobAdmin, "annotations", lambda page: {"slow": SLOW})
    at_most(0.5)


def assert_stopped(response: HttpResponse) -> None:
    text = response.content.decode()
    assert response.status_code == 503
    assert "The database took longer than 0.5 s, so this was stopped. Nothing was changed." in text
    assert "no-store" in response["Cache-Control"]


def session_limit() -> str:
    ((limit,),) = run_sql("SHOW statement_timeout")
    return str(limit)


@pytest.mark.django_db
@pytest.mark.usefixtures("slow")
def test_a_slow_list_is_stopped_and_says_how_to_narrow_it(page: Page) -> None:
    noop.enqueue()
    before = session_limit()
    response = page.client.get(f"{list_url(Job)}?queue=default")
    assert_stopped(response)
    assert '<a href="?">Clear search and filters</a>' in response.content.decode()
    # This test has a transaction around the request, as ATOMIC_REQUESTS has: it goes on.
    assert session_limit() == before
    assert Job.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.usefixtures("slow")
def test_a_slow_page_of_a_row_and_a_slow_question_are_stopped(page: Page) -> None:
    job = noop.enqueue()
    assert_stopped(page.client.get(change_url(Job, job.pk)))
    assert_stopped(page.ask(Job, "cancel_jobs", job.pk))


@pytest.mark.django_db
def test_a_slow_page_that_is_not_of_a_model_is_stopped(
    page: Page, monkeypatch: pytest.MonkeyPatch, at_most: Callable[[float | None], None]
) -> None:
    at_most(0.5)
    monkeypatch.setattr(
        "django_jobs.metrics.forecast.take_cost", lambda: run_sql("SELECT pg_sleep(20)")
    )
    assert_stopped(page.client.get(reverse("admin:django_jobs_run_cost")))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "page_name, sleeps",
    [
        ("schedule_preview", "django_jobs.admin.schedules.views.database_time"),
        ("schedule_backfill", "django_jobs.lifecycle.operations.schedules.backfill_times"),
        ("workflowrun_start", "django_jobs.registry.workflow"),
    ],
)
def test_a_slow_form_of_a_schedule_or_a_workflow_is_stopped(
    page: Page,
    monkeypatch: pytest.MonkeyPatch,
    at_most: Callable[[float | None], None],
    page_name: str,
    sleeps: str,
) -> None:
    at_most(0.5)
    arguments = [due_schedule().pk] if page_name == "schedule_backfill" else []
    url = reverse(f"admin:django_jobs_{page_name}", args=arguments)
    monkeypatch.setattr(sleeps, _sleep)
    if page_name == "workflowrun_start":
        assert_stopped(page.client.get(url, {"workflow": "any"}))
    else:
        given = {"begin_0": "2026-01-01", "begin_1": "00:00", "end_0": "2026-01-02"}
        assert_stopped(page.client.post(url, given | {"end_1": "00:00", "cron": "0 3 * * *"}))


@pytest.mark.django_db
def test_a_form_that_only_asks_is_stopped(
    page: Page, monkeypatch: pytest.MonkeyPatch, at_most: Callable[[float | None], None]
) -> None:
    at_most(0.5)
    job = noop.enqueue()
    monkeypatch.setattr("django_jobs.admin.editing.edit.differences", _sleep)
    url = reverse("admin:django_jobs_job_edit", args=[job.pk])
    assert_stopped(page.client.post(url, {"queue": "bulk", "priority": 1}))


@pytest.mark.django_db
@pytest.mark.parametrize("way", ["address", "action", "wrong form"])
def test_a_slow_dry_run_of_a_plan_is_stopped(
    page: Page, monkeypatch: pytest.MonkeyPatch, at_most: Callable[[float | None], None], way: str
) -> None:
    at_most(0.5)
    dead, address = make_dead(), reverse("admin:django_jobs_replay_plan")
    monkeypatch.setattr("django_jobs.lifecycle.operations.bulk.count", _sleep)
    if way == "address":
        response = page.client.get(address)
    elif way == "action":
        response = page.confirm(DeadLetter, "replay_jobs", dead.pk, instead="plan")
    else:
        response = page.client.post(address, {"begin": 1, "terms": '{"status": "dead"}'})
    assert_stopped(response)
    assert not BulkOperation.objects.exists()


def _sleep(*given: Any) -> Any:
    return run_sql("SELECT pg_sleep(20)")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("slow")
def test_the_limit_ends_with_the_page(page: Page, at_most: Callable[[float | None], None]) -> None:
    run_sql("DELETE FROM django_jobs_job")  # each row that is there takes 20 s
    before = session_limit()
    at_most(60)  # a page of a busy machine is in time
    assert page.client.get(list_url(Job)).status_code == 200
    assert session_limit() == before
    noop.enqueue()
    at_most(0.5)
    assert_stopped(page.client.get(list_url(Job)))
    assert session_limit() == before
    assert not connection.in_atomic_block


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("slow")
def test_requests_in_a_transaction_are_answered_and_can_commit(page: Page) -> None:
    with transaction.atomic():
        noop.enqueue()
        assert_stopped(page.client.get(list_url(Job)))
        noop.enqueue()
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_a_confirmed_action_whose_choice_takes_too_long_changes_nothing(
    page: Page, monkeypatch: pytest.MonkeyPatch, at_most: Callable[[float | None], None]
) -> None:
    job = noop.enqueue()
    at_most(0.5)
    # The rows are chosen by a filter that is slow.
    monkeypatch.setattr(
        JobAdmin,
        "get_search_results",
        lambda page, request, rows, text: (rows.alias(slow=SLOW).filter(slow=""), False),
    )
    response = page.confirm(Job, "cancel_jobs", 0, query="?q=x", select_across=1, max_id=job.pk)
    assert_stopped(response)
    job.refresh_from_db()
    assert job.status == JobStatus.READY
    assert not LogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_action_that_the_database_stops_says_what_was_done(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, free = noop.enqueue(), noop.enqueue()
    monkeypatch.setattr(actions, "CHUNK", 1)
    with another_connection() as other, other.cursor() as cursor:
        other.set_autocommit(False)
        cursor.execute("SELECT FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked.pk])
        run_sql("SET statement_timeout = '2s'")
        try:
            done = page.confirm(Job, "cancel_jobs", locked.pk, free.pk)
        finally:
            run_sql("RESET statement_timeout")
            other.rollback()
    assert done.status_code == 302
    text = message_of(done)
    assert "1 job was cancelled." in text
    assert "The database stopped it because of its time limit." in text
    states = dict(Job.objects.values_list("pk", "status"))
    assert states == {locked.pk: JobStatus.READY, free.pk: JobStatus.CANCELLED}
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(free.pk)]


@pytest.mark.django_db
def test_a_confirmed_deletion_has_no_limit(
    page: Page, monkeypatch: pytest.MonkeyPatch, at_most: Callable[[float | None], None]
) -> None:
    limits: list[str] = []
    monkeypatch.setattr(schedule_operations, "changed", lambda: limits.append(session_limit()))
    at_most(0.5)
    url = reverse("admin:django_jobs_schedule_delete", args=[due_schedule().pk])
    before = session_limit()
    assert page.client.post(url, {"post": "yes"}).status_code == 302
    assert limits == [before]
    assert not Schedule.objects.exists()


@pytest.mark.django_db
def test_none_is_no_limit(page: Page, at_most: Callable[[float | None], None]) -> None:
    at_most(None)
    with connection.execute_wrapper(_refuse_limits):
        assert page.client.get(list_url(Job)).status_code == 200


def _refuse_limits(execute: Any, sql: str, *rest: Any) -> Any:
    assert "statement_timeout" not in sql
    return execute(sql, *rest)


@pytest.mark.django_db(transaction=True)
def test_the_limit_takes_one_statement(page: Page, at_most: Callable[[float | None], None]) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            page.text(list_url(Job))
        return len([query for query in captured if query["sql"] not in ("BEGIN", "COMMIT")])

    limited = queries()
    at_most(None)
    assert limited == queries() + 1


@pytest.mark.django_db
def test_a_limit_within_another_one_takes_no_statement(
    at_most: Callable[[float | None], None],
) -> None:
    at_most(2)
    with time_limit(), CaptureQueriesContext(connection) as captured:
        with time_limit():
            assert session_limit() == "2s"
        assert session_limit() == "2s"
    assert len(captured) == 2  # those of session_limit()
