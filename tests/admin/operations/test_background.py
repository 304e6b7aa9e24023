"""More rows than a request may change are offered to the workers, with the list's filter."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import ADDITION, LogEntry
from django.core.exceptions import PermissionDenied

from django_jobs.admin.base import actions
from django_jobs.admin.operations.background import SAME, SPAN_OF, described
from django_jobs.lifecycle.operations import bulk, dead_letters
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, DeadLetter, Job
from tests.admin.walking import Page, change_url, list_url, listed
from tests.app.jobs import add, noop
from tests.factories import (
    copies_of,
    due_schedule,
    make_dead,
    make_user,
    register_worker,
    run_sql,
)

pytestmark = pytest.mark.django_db
PLAN = {"first": 1, "then": 20, "rate": 10, "most_failed": 20}
OFFER = "Change all of them in the background"


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "ADMIN_BULK_LIMIT", 3)


def ask(page: Page, query: str = "", action: str = "cancel_jobs", model: Any = Job) -> str:
    answer = page.ask(model, action, 0, query=query, select_across=1)
    assert answer.status_code == 200
    return str(answer.content.decode())


def go(
    page: Page, query: str, action: str = "cancel_jobs", model: Any = Job, **given: Any
) -> BulkOperation:
    ceiling = Job.objects.latest("id").pk
    done = page.confirm(
        model,
        action,
        0,
        query=query,
        select_across=1,
        max_id=ceiling,
        instead="background",
        **given,
    )
    operation = BulkOperation.objects.get()
    assert (done.status_code, done.url) == (302, change_url(BulkOperation, operation.pk))
    return operation


def test_an_action_on_more_rows_than_the_limit_is_offered_to_the_workers(page: Page) -> None:
    noop.enqueue_many({} for _ in range(3))
    assert OFFER not in ask(page)
    noop.enqueue_many({} for _ in range(3))
    assert OFFER in ask(page)
    assert not BulkOperation.objects.exists()


def test_the_workers_change_all_that_matched_and_the_begin_and_the_end_are_logged(
    page: Page, superuser: Any
) -> None:
    noop.enqueue_many({} for _ in range(6))
    noop.using(queue="bulk").enqueue()
    operation = go(page, "?queue=default&status=ready", reason="wrong customer")
    noop.enqueue()
    assert operation.terms == {"queue": "default", "status": "ready"}
    assert run_chunk() == 1
    assert Job.objects.filter(status="cancelled", reason="wrong customer").count() == 6
    assert Job.objects.filter(status="ready").count() == 2
    begin, end = LogEntry.objects.filter(object_id=str(operation.pk)).order_by("pk")
    assert (begin.user, begin.action_flag) == (superuser, ADDITION)
    assert begin.change_message == "requested: queue default, status ready: wrong customer"
    assert end.change_message == "completed: 6 done, 0 left"


def test_the_form_of_the_action_is_kept(page: Page) -> None:
    noop.enqueue_many({} for _ in range(6))
    operation = go(page, "?queue=default", "reprioritize_jobs", priority=5)
    assert operation.arguments == {"priority": 5}


def test_a_form_with_an_error_starts_nothing(page: Page) -> None:
    noop.enqueue_many({} for _ in range(6))
    ceiling = Job.objects.latest("id").pk
    given = {"select_across": 1, "max_id": ceiling, "instead": "background", "priority": "x"}
    answer = page.confirm(Job, "reprioritize_jobs", 0, **given)
    assert answer.status_code == 200
    assert not BulkOperation.objects.exists()


def test_the_whole_list_is_every_job(page: Page) -> None:
    noop.enqueue_many({} for _ in range(6))
    assert go(page, "").terms == {"all": True}
    run_chunk()
    assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}


@pytest.mark.parametrize("instead", ["background", "plan", "<b>"])
def test_a_way_that_is_no_longer_offered_changes_nothing_and_is_asked_again(
    page: Page, instead: str
) -> None:
    dead = [make_dead() for _ in range(4)]
    given = {"select_across": 1, "max_id": dead[-1].pk, "instead": instead, "reason": "mended"}
    if instead == "background":  # is offered for more than three
        dead_letters.dismiss([dead[0].pk])
    query = "?q=error:boom"  # an operation has no such term
    answer = page.confirm(DeadLetter, "replay_jobs", 0, query=query, **given)
    text = answer.content.decode()
    assert answer.status_code == 200
    assert "Nothing was changed. “" in text
    assert "” is no longer offered for what was chosen." in text
    assert 'value="mended"' in text
    assert "<b>" not in text
    assert not Job.objects.filter(status="ready").exists()


@pytest.mark.parametrize("priority", ["101", "-101", "1e3", "1; DROP TABLE"])
def test_a_forged_priority_starts_nothing(page: Page, priority: str) -> None:
    noop.enqueue_many({} for _ in range(6))
    given = {"select_across": 1, "max_id": Job.objects.latest("id").pk, "instead": "background"}
    page.confirm(Job, "reprioritize_jobs", 0, priority=priority, **given)
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize(
    "query, terms",
    [
        ("?q=type:app.noop", {"job_type": "app.noop"}),
        ("?job_type=app.noop&q=type:app.noop", {"job_type": "app.noop"}),
        ("?created=1h&p=1", {"created_since"}),
        ("?queue=default&q=+", {"queue": "default"}),
    ],
)
def test_filters_and_searches_become_terms(page: Page, query: str, terms: Any) -> None:
    noop.enqueue_many({} for _ in range(6))
    stored = go(page, query).terms
    assert stored == terms or stored.keys() == terms


def test_the_jobs_of_one_failure_or_schedule_become_terms(page: Page) -> None:
    copies_of(make_dead(), 5, status="dead")
    fingerprint = Job.objects.latest("id").fingerprint
    operation = go(page, f"?fingerprint={fingerprint}", "dismiss_jobs", model=DeadLetter)
    assert operation.terms == {"status": "dead", "error": fingerprint}
    run_chunk()
    assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}
    operation.delete()
    schedule = due_schedule()
    noop.enqueue_many({} for _ in range(6))
    run_sql("UPDATE django_jobs_job_live SET schedule_id = %s", [schedule.pk])
    assert go(page, f"?schedule={schedule.name}").terms == {"schedule": schedule.pk}


@pytest.mark.parametrize("kind", ["error", "code"])
def test_a_search_by_the_last_run_changes_the_dead_jobs_of_its_list_only(
    page: Page, kind: str
) -> None:
    retried, *_others = [make_dead().pk for _ in range(5)]
    run_sql("UPDATE django_jobs_run SET error_code = '503'")
    run_sql("UPDATE django_jobs_job SET status = 'scheduled' WHERE id = %s", [retried])
    value = "503" if kind == "code" else Job.objects.get(pk=retried).fingerprint
    assert f"#{retried}" not in page.read(list_url(Job) + f"?q={kind}:{value}")
    operation = go(page, f"?q={kind}:{value}", "dismiss_jobs")
    assert operation.terms == {"status": "dead", kind: value}
    run_chunk()
    assert Job.objects.get(pk=retried).status == "scheduled"
    assert OFFER not in ask(page, f"?status=scheduled&q={kind}:{value}")


@pytest.mark.parametrize("model", [Job, DeadLetter])
def test_each_filter_of_the_lists_is_a_term_or_known_to_be_none(model: Any) -> None:
    names = {one.parameter_name for one in site.get_model_admin(model).list_filter}
    terms = {*SAME, *SPAN_OF, "workflow_run", "schedule", "fingerprint", "error"}
    assert names - terms <= {"day", "worker", "workflow"}


@pytest.mark.parametrize(
    "query, what",
    [
        ("?q=customer_id:42", "arguments"),
        ("?q=error:Timeout", "the text of an error"),
        ("?q=parent:{parent}", "the job that enqueued them"),
        ("?error=Timeout", "the text of an error"),
        ("?queue=default&worker={worker}", "worker"),
        ("?tag=a&q=tag:b", "two values of tag"),
        ("?q=tag:a tag:b", "two values of tag"),
    ],
)
def test_what_the_workers_cannot_find_is_named_and_not_offered(
    page: Page, query: str, what: str
) -> None:
    worker, parent = register_worker(), noop.enqueue().pk
    run_sql("DELETE FROM django_jobs_job_live")
    add.using(tags=["a", "b"]).enqueue_many([{"first": 42}] * 4)
    run_sql(
        "UPDATE django_jobs_job_live SET last_error = 'Timeout', status = 'running', attempt = 1,"
        " worker_id = %s, claimed_at = now(), payload = '{\"customer_id\": 42}',"
        " headers = jsonb_build_object('django_jobs.parent', %s)",
        [worker, parent],
    )
    text = ask(page, query.format(worker=worker, parent=parent))
    assert OFFER not in text
    assert f"operations do not choose jobs by {what}. Narrow the list to reach them." in text
    run_sql(
        "DELETE FROM django_jobs_job_live WHERE id = (SELECT max(id) FROM django_jobs_job_live)"
    )
    assert "operations do not choose" not in ask(page, query.format(worker=worker, parent=parent))


@pytest.fixture
def scoped(settings: Any) -> None:
    scope = "tests.admin.access.test_scope.emails_only"
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": scope}


@pytest.mark.usefixtures("scoped")
def test_an_operation_of_a_user_with_a_scope_is_about_its_jobs_alone(
    page_of: Callable[..., Page], page: Page
) -> None:
    noop.using(queue="emails").enqueue_many({} for _ in range(4))
    noop.using(queue="bulk").enqueue_many({} for _ in range(2))
    olga = page_of("view_job", "cancel_job")
    operation = go(olga, "?status=ready")
    assert operation.terms == {"status": "ready", "scope": {"queues": ["emails"]}}
    assert run_chunk() == 1
    operation.refresh_from_db()
    assert (operation.status, operation.matched, operation.done) == ("completed", 4, 4)
    assert set(Job.objects.filter(status="ready").values_list("queue", flat=True)) == {"bulk"}
    begin = LogEntry.objects.filter(object_id=str(operation.pk)).earliest("pk")
    assert begin.change_message == "requested: status ready, within emails"
    other = bulk.start("cancel", {"queue": "bulk"})
    assert listed(olga, BulkOperation) == [operation.pk]
    assert listed(page, BulkOperation) == [other.pk, operation.pk]
    assert "within emails" in olga.text(change_url(BulkOperation, operation.pk))
    assert olga.client.get(change_url(BulkOperation, other.pk)).status_code == 302


@pytest.mark.usefixtures("scoped")
def test_who_has_another_scope_neither_stops_nor_continues_an_operation() -> None:
    ada, otto = make_user("cancel_job"), make_user("cancel_job", name="otto")  # who has none
    whole, mine = (
        bulk.start("cancel", {"all": True}),
        bulk.start("cancel", {"all": True}, actor=ada),
    )
    with pytest.raises(PermissionDenied, match="may act on other queues and job types"):
        bulk.stop([whole.pk], actor=ada)
    assert bulk.stop([mine.pk], actor=otto) == [mine.pk]
    BulkOperation.objects.update(status="stopped")
    with pytest.raises(PermissionDenied, match="may act on other queues and job types"):
        bulk.resume([whole.pk], actor=ada)
    assert bulk.resume([mine.pk], actor=ada) == [mine.pk]


@pytest.mark.usefixtures("scoped")
@pytest.mark.parametrize("asked", ["before the scope", "in the scope"])
def test_an_operation_ends_if_the_scope_of_its_user_has_changed(settings: Any, asked: str) -> None:
    scope = settings.DJANGO_JOBS["ADMIN_SCOPE"]
    others = {"before the scope": "", "in the scope": scope.replace("emails_only", "charges")}
    first, then = (others[asked], scope) if not others[asked] else (scope, others[asked])
    job = noop.using(queue="emails").enqueue()
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": first}
    operation = bulk.start("cancel", {"all": True}, actor=make_user("cancel_job"))
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": then}
    assert run_chunk() == 1
    operation.refresh_from_db()
    assert operation.status == "failed"
    assert "may act on other queues and job types" in operation.why
    assert Job.objects.get(pk=job.pk).status == "ready"


@pytest.mark.usefixtures("scoped")
def test_a_plan_counts_the_jobs_of_the_scope_alone(page_of: Callable[..., Page]) -> None:
    make_dead(queue="emails")
    make_dead()
    olga = page_of("view_job", "replay_job")
    address = f"{list_url(BulkOperation)}plan/"
    assert "Replay plan: 1 dead job" in olga.text(f"{address}?type=app.noop")
    forged = json.dumps({"status": "dead", "scope": {"queues": ["default"]}})
    answer = olga.client.post(address, {**PLAN, "terms": forged, "begin": 1})
    assert answer.status_code == 302
    assert BulkOperation.objects.get().terms["scope"] == {"queues": ["emails"]}


def test_who_may_not_do_it_to_one_may_not_do_it_to_all(page_of: Callable[..., Page]) -> None:
    noop.enqueue_many({} for _ in range(6))
    olga = page_of("view_job", "replay_job")
    ceiling = Job.objects.latest("id").pk
    olga.confirm(Job, "cancel_jobs", 0, select_across=1, max_id=ceiling, instead="background")
    assert not BulkOperation.objects.exists()


def test_dead_letters_are_terms_of_dead_jobs(page: Page) -> None:
    for _ in range(5):
        make_dead(add, 1)
    assert OFFER in ask(page, "?job_type=app.add", "replay_jobs", DeadLetter)
    ceiling = Job.objects.latest("id").pk
    page.confirm(
        DeadLetter,
        "replay_jobs",
        0,
        query="?job_type=app.add",
        select_across=1,
        max_id=ceiling,
        instead="background",
        reason="again",
    )
    assert BulkOperation.objects.get().terms == {"status": "dead", "job_type": "app.add"}
    run_chunk()
    assert set(Job.objects.values_list("status", flat=True)) == {"ready"}
    assert "#" in page.read(list_url(BulkOperation))


def test_a_failure_without_an_error_is_dismissed_in_the_background(page: Page) -> None:
    other = make_dead()
    empty = make_dead()
    run_sql("UPDATE django_jobs_job SET fingerprint = '' WHERE id = %s", [empty.pk])
    copies_of(Job.objects.get(pk=empty.pk), 4, status="dead")
    query = "?job_type=app.noop&fingerprint=none"
    assert OFFER in ask(page, query, "dismiss_jobs", DeadLetter)
    operation = go(page, query, "dismiss_jobs", DeadLetter)
    assert operation.terms == {"status": "dead", "job_type": "app.noop", "error": ""}
    assert "no error" in page.read(change_url(BulkOperation, operation.pk))
    run_chunk()
    operation.refresh_from_db()
    assert operation.done == 5
    other.refresh_from_db()
    assert other.status == "dead"


@pytest.mark.parametrize(
    "stored, shown",
    [
        (
            "2025-11-27T21:48:06.393435+00:00",
            "finished since Nov 27, 2025, 21:48:06\N{NO-BREAK SPACE}UTC",
        ),
        ("yesterday", "finished since yesterday"),
        (7, "finished since 7"),
    ],
)
def test_a_time_among_the_terms_is_written_as_elsewhere(stored: Any, shown: str) -> None:
    assert described({"finished_since": stored}) == shown
