"""What the console must never do: change rows by a form, run a row's markup, tell a secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import override_settings
from django.urls import reverse

from django_jobs.api.schedules import request_of
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed
from django_jobs.lifecycle.operations import bulk, quarantines
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import (
    Backfill,
    BulkOperation,
    DeadLetter,
    Job,
    Quarantine,
    Queue,
    Resource,
    Run,
    Schedule,
    Tick,
    Worker,
    WorkflowDefinition,
    WorkflowRun,
)
from tests.app.jobs import add, noop, write_effect
from tests.factories import (
    declared,
    enqueue_and_claim,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)

from .schedules.scheduling import new_schedule
from .walking import Live, Page, change_url, list_url
from .workflows.graphs import definition_of, run_of, step

pytestmark = pytest.mark.django_db


def anything(**data: Any) -> None:
    """A handler that takes whatever it is given."""


EVIL = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'><b style=x>"


BY_FORMS = {Quarantine: "add", Queue: "add change", Resource: "add change"}
"""What may be done by a form to rows that are not all closed to it."""


def a_row(model: Any) -> int:
    """A row of this model, as the package makes it."""
    make_dead()
    Resource.objects.create(name="stripe")
    Backfill.objects.create(schedule=new_schedule(), begins_at=Now(), ends_at=Now())
    schedule_operations.run_now([Schedule.objects.get().pk], request_of)
    quarantines.quarantine("app.add")
    bulk.start("cancel", {"queue": "default"})
    run_of({"a": step("ready")}, definition=definition_of("orders"))
    return int(model._default_manager.latest("pk").pk)


@pytest.mark.parametrize(
    "model",
    [
        *(Job, DeadLetter, Run, Worker, Backfill, Tick, BulkOperation, WorkflowRun),
        *(WorkflowDefinition, *BY_FORMS),
    ],
)
def test_rows_are_neither_added_nor_changed_nor_deleted_by_hand(page: Page, model: Any) -> None:
    row = model._default_manager.filter(pk=a_row(model))
    before, by_forms = row.values().get(), BY_FORMS.get(model, "")
    prefix = f"admin:django_jobs_{model._meta.model_name}"
    for what, data in (("add", {}), ("change", {"status": "odd"}), ("delete", {"post": "yes"})):
        url = reverse(f"{prefix}_{what}", args=[] if what == "add" else [before["id"]])
        if what not in by_forms:
            assert page.client.post(url, data).status_code == 403, what
            assert what == "change" or page.client.get(url).status_code == 403, what
    page.confirm(model, "delete_selected", before["id"], post="yes")
    assert row.values().get() == before


def queue_form(**values: Any) -> dict[str, Any]:
    blank = dict.fromkeys(
        (
            "max_concurrency",
            "max_backlog",
            "max_attempts",
            "timeout",
            "backoff_curve",
            "retention_succeeded",
            "slo_seconds",
        ),
        "",
    )
    given = {"on_full": "raise", "priority_weight": "60", "slo_since": "due", "slo_target": "0.99"}
    return {"name": "fresh", **given, **blank, **values}


def test_a_queue_is_added_and_edited_but_keeps_its_name_and_its_pause(page: Page) -> None:
    add_url = reverse("admin:django_jobs_queue_add")
    page.text(add_url)
    assert page.client.post(add_url, queue_form()).status_code == 302
    queue = Queue.objects.get(name="fresh")
    job_operations.pause(["fresh"], reason="a while")
    changed = queue_form(name="other", max_concurrency="3", paused_at="", paused_reason="none")
    assert page.client.post(change_url(Queue, queue.pk), changed).status_code == 302
    queue = Queue.objects.get(pk=queue.pk)
    assert (queue.name, queue.max_concurrency) == ("fresh", 3)
    assert (queue.paused, queue.paused_reason) == (True, "a while")


@pytest.mark.parametrize(
    "values",
    [
        {"backoff_curve": "square", "backoff_base": "2"},
        {"backoff_curve": "fixed"},
        {"backoff_base": "2"},
        {"retention_succeeded": "soon"},
        {"retention_number": "0"},
        {"slo_seconds": "0"},
        {"slo_target": "1"},
        {"slo_target": "0.999"},
        {"slo_since": "blocked"},
        {"priority_weight": "1e300"},
        {"priority_weight": "nan"},
        {"max_concurrency": "0"},
        {"on_full": "drop_highest"},
        {"name": "no spaces"},
    ],
)
def test_a_setting_that_would_fail_in_the_worker_is_refused_by_the_form(
    page: Page, values: dict[str, str]
) -> None:
    answered = page.client.post(reverse("admin:django_jobs_queue_add"), queue_form(**values))
    assert answered.status_code == 200
    assert not Queue.objects.filter(name__in=["fresh", "no spaces"]).exists()


@pytest.mark.parametrize("name", ["max_concurrency", "max_backlog", "max_attempts"])
def test_the_lower_bound_of_a_limit_is_stated(page: Page, name: str) -> None:
    answered = page.client.post(reverse("admin:django_jobs_queue_add"), queue_form(**{name: "-1"}))
    (error,) = answered.context["adminform"].form.errors[name]
    assert "greater than or equal to 1" in error


def test_good_settings_are_taken(page: Page) -> None:
    values = queue_form(backoff_curve="fixed", backoff_base="5", retention_dead="180d")
    assert page.client.post(reverse("admin:django_jobs_queue_add"), values).status_code == 302
    queue = Queue.objects.get(name="fresh")
    assert (queue.backoff["base"], queue.retention) == (5, {"dead": "180d"})


def test_dead_letters_need_the_permission_to_view_jobs(page_of: Callable[..., Page]) -> None:
    dead = make_dead()
    page = page_of("view_job")
    page.text(list_url(DeadLetter))
    page.text(change_url(DeadLetter, dead.pk))
    stranger = page_of("view_queue", name="otto")
    stranger.text(list_url(DeadLetter), status=403)
    stranger.text(change_url(DeadLetter, dead.pk), status=403)


def evil_rows() -> None:
    """Markup in every text that somebody outside could have written."""
    worker = register_worker(EVIL)
    held = enqueue_and_claim(write_effect, EVIL, worker=worker, headers={"note": EVIL, EVIL: 1})
    error = ErrorReport(type=EVIL, message=f"{EVIL}\n{EVIL}", traceback=EVIL, fingerprint="f")
    settle_one(held, Failed(error=error, final=True))
    job_operations.replay([held.id], check=lambda job: None, actor=None, reason=EVIL)
    job_operations.cancel([held.id], reason=EVIL)
    job_operations.pause(["bulk"], reason=EVIL)
    make_dead(write_effect, EVIL)
    run_sql(
        "UPDATE django_jobs_job SET job_type = %s, queue = %s, reason = %s, last_error = %s,"
        " idempotency_key = id || %s, result = to_jsonb(%s::text)",
        [EVIL, EVIL, EVIL, EVIL, EVIL, EVIL],
    )
    run_sql("UPDATE django_jobs_worker SET host = %s, code_version = %s", [EVIL, EVIL[:90]])
    run_sql("UPDATE django_jobs_worker SET queues = to_jsonb(ARRAY[%s])", [EVIL])


@pytest.mark.parametrize("model", [Job, DeadLetter, Run, Queue, Worker])
def test_markup_in_rows_is_shown_and_not_run(page: Page, model: Any) -> None:
    evil_rows()
    texts = [page.text(list_url(model))]
    texts += [page.text(change_url(model, row.pk)) for row in model.objects.all()]
    for text in texts:
        assert Live(text).alarms == []
    assert any("&lt;script&gt;alert(1)" in text for text in texts)


def test_markup_in_questions_and_messages_is_not_run(page: Page) -> None:
    evil_rows()
    with declared(anything, name=EVIL):
        asked = page.client.get(list_url(Job))
        assert Live(asked.content.decode()).alarms == []
    pk = DeadLetter.objects.get().pk
    asked = page.ask(DeadLetter, "replay_jobs", pk)
    assert "&lt;script&gt;" in asked.content.decode()
    assert Live(asked.content.decode()).alarms == []
    page.confirm(DeadLetter, "replay_jobs", pk, reason=EVIL)
    page_text = page.text(list_url(DeadLetter))
    assert "no handler is registered for" in page_text
    assert Live(page_text).alarms == []


def test_the_address_of_a_list_is_not_carried_into_the_question_as_markup(page: Page) -> None:
    pk = noop.enqueue().pk
    asked = page.ask(Job, "cancel_jobs", pk, query='?q="><script>alert(1)</script>')
    assert Live(asked.content.decode()).alarms == []


def test_secrets_are_masked_at_any_depth(page: Page) -> None:
    payload = {
        "DB_PASSWORD": "s3cret-a",
        "nested": [{"Authorization": {"x": "s3cret-b"}}, {"my-token-2": ["s3cret-c"]}],
        "order": "visible-d",
    }
    with declared(anything, name="app.anything") as job_type:
        job = job_type.using(headers={"api_key": "s3cret-e"}).enqueue(**payload)
        text = page.text(change_url(Job, job.pk))
    assert "s3cret" not in text
    assert "visible-d" in text
    assert "DB_PASSWORD" in text


@override_settings(DJANGO_JOBS={"REDACT_KEYS": ["ORDER"]})
def test_the_setting_defines_secret_keys(page: Page) -> None:
    with declared(anything, name="app.anything") as job_type:
        job = job_type.enqueue(order_id="s3cret", password="shown")
        text = page.text(change_url(Job, job.pk))
    assert "s3cret" not in text
    assert "shown" in text


def test_payloads_and_results_need_their_own_permission(page_of: Callable[..., Page]) -> None:
    job = add.using(headers={"trace": "header-987"}).enqueue(1, second=987654321)
    without = page_of("view_job").read(change_url(Job, job.pk))
    assert "987654321" not in without
    assert "header-987" not in without
    assert "Hidden: requires the permission" in without
    with_it = page_of("view_job", "view_job_payload", name="otto").read(change_url(Job, job.pk))
    assert "987654321" in with_it
    assert "header-987" in with_it


@pytest.mark.parametrize(
    "lookup",
    ["payload__password__startswith", "payload__contains", "headers__x", "last_error__regex",
     "result__gt", "runs__traceback__contains", "worker__name"],
)  # fmt: skip
def test_the_address_of_a_list_cannot_reveal_secrets(page: Page, lookup: str) -> None:
    add.enqueue(1)
    assert page.client.get(list_url(Job), {lookup: "a"}).status_code == 400


def test_facets_cannot_be_requested(page: Page) -> None:
    add.enqueue(1)
    answered = page.client.get(list_url(Job), {"_facets": "True"})
    assert "Show counts" not in answered.content.decode()
    assert not answered.context["cl"].add_facets
