"""Actions: asked, permitted, carried out by one verb, reported, written down."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry

from django_jobs.admin.base import actions
from django_jobs.admin.jobs.detail import JobPage
from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Backfill, DeadLetter, Job, Queue, Schedule, Worker
from django_jobs.testing import run_jobs
from tests.admin.schedules.scheduling import new_schedule
from tests.admin.walking import Page, change_url, list_url, message_of
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    make_dead,
    register_worker,
    run_sql,
)
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db


def ready_job() -> int:
    return noop.enqueue().pk


def scheduled_job() -> int:
    return noop.using(delay=900).enqueue().pk


def running_job() -> int:
    return enqueue_and_claim().id


def dead_job() -> int:
    return make_dead().pk


def open_queue() -> int:
    return Queue.objects.get(name="bulk").pk


def paused_queue() -> int:
    job_operations.pause(["bulk"])
    return open_queue()


def open_schedule() -> int:
    return new_schedule().pk


def paused_schedule() -> int:
    pk = new_schedule(name="paused").pk
    schedule_operations.pause([pk])
    return pk


def live_backfill() -> int:
    schedule = new_schedule(name="backfilled")
    end = schedule.created_at
    return schedule_operations.backfill(schedule, end - timedelta(hours=3), end, request_of).pk


def live_worker() -> int:
    return register_worker()


def state_of(model: Any, pk: int) -> dict[str, Any]:
    return model._base_manager.filter(pk=pk).values().get()


def changed_to(model: Any, pk: int, **expected: Any) -> bool:
    row = state_of(model, pk)
    return all(
        bool(row[name]) is value if isinstance(value, bool) else row[name] == value
        for name, value in expected.items()
    )


ACTIONS: dict[str, tuple[Any, str, str, Callable[[], int], dict[str, Any], dict[str, Any]]] = {
    # name: model, action, permission, a row, what is filled in, what becomes of the row
    "cancel": (Job, "cancel_jobs", "cancel_job", ready_job, {}, {"status": "cancelled"}),
    "stop by force": (
        Job, "stop_jobs", "stop_job", running_job, {"reason": "it loops"},
        {"status": "running", "force_requested_at": True},
    ),
    "reprioritize": (
        Job, "reprioritize_jobs", "reprioritize_job", ready_job, {"priority": "-7"},
        {"priority": -7},
    ),
    "inspect": (Job, "inspect_jobs", "inspect_job", running_job, {}, {"status": "running"}),
    "run now": (Job, "run_jobs_now", "run_job", scheduled_job, {}, {"status": "ready"}),
    "replay": (Job, "replay_jobs", "replay_job", dead_job, {}, {"status": "ready"}),
    "replay a dead letter": (
        DeadLetter, "replay_jobs", "replay_job", dead_job, {}, {"status": "ready"},
    ),
    "dismiss": (Job, "dismiss_jobs", "dismiss_job", dead_job, {}, {"status": "cancelled"}),
    "dismiss a dead letter": (
        DeadLetter, "dismiss_jobs", "dismiss_job", dead_job, {}, {"status": "cancelled"},
    ),
    "pause": (Queue, "pause_queues", "pause_queue", open_queue, {}, {"paused_at": True}),
    "resume": (Queue, "resume_queues", "pause_queue", paused_queue, {}, {"paused_at": False}),
    "pause a schedule": (
        Schedule, "pause_schedules", "pause_schedule", open_schedule, {}, {"paused_at": True},
    ),
    "resume a schedule": (
        Schedule, "resume_schedules", "pause_schedule", paused_schedule, {}, {"paused_at": False},
    ),
    "run a schedule": (Schedule, "run_schedules_now", "run_schedule", open_schedule, {}, {}),
    "cancel a backfill": (
        Backfill, "cancel_backfills", "backfill_schedule", live_backfill, {},
        {"cancelled_at": True},
    ),
    "stop a command": (
        Worker, "stop_commands", "stop_worker", live_worker, {}, {"drain_requested_at": True},
    ),
    "stop a host": (
        Worker, "stop_hosts", "stop_worker", live_worker, {}, {"drain_requested_at": True},
    ),
    "stop": (Worker, "stop_workers", "stop_worker", live_worker, {}, {"drain_requested_at": True}),
}  # fmt: skip
OF_EACH_MODEL = {model: make for model, _, _, make, _, _ in ACTIONS.values()}
each_action = pytest.mark.parametrize("name", ACTIONS)
VIEW = ("view_job", "view_run", "view_queue", "view_worker", "view_schedule")


@each_action
def test_an_action_confirms_executes_reports_and_logs(page: Page, name: str) -> None:
    model, action, _permission, make, given, becomes = ACTIONS[name]
    pk = make()
    before = state_of(model, pk)
    asked = page.ask(model, action, pk)
    assert asked.status_code == 200
    assert b'name="confirmed"' in asked.content
    assert state_of(model, pk) == before
    assert not LogEntry.objects.exists()
    done = page.confirm(model, action, pk, **given)
    assert done.status_code == 302
    assert changed_to(model, pk, **becomes)
    assert "1 " in message_of(done)
    entry = LogEntry.objects.get()
    assert entry.user.username == "ada"
    assert entry.object_id == str(pk)
    assert entry.content_type.model_class() is model._meta.concrete_model
    name = "job" if model is DeadLetter else model._meta.model_name
    assert entry.change_message in page.read(f"/admin/django_jobs/{name}/{pk}/history/")


@pytest.mark.parametrize("model", OF_EACH_MODEL)
def test_the_view_permission_offers_no_action(page_of: Callable[..., Page], model: Any) -> None:
    pk, page = OF_EACH_MODEL[model](), page_of(*VIEW)
    for url in (list_url(model), change_url(model, pk)):
        assert 'name="action"' not in page.text(url)


@each_action
def test_actions_require_the_view_permission(page_of: Callable[..., Page], name: str) -> None:
    model, action, permission, make, given, _becomes = ACTIONS[name]
    pk = make()
    before = state_of(model, pk)
    assert page_of(permission).confirm(model, action, pk, **given).status_code == 403
    assert state_of(model, pk) == before


@each_action
def test_the_button_on_the_page_asks_and_leads_back(page: Page, name: str) -> None:
    model, action, _permission, make, given, becomes = ACTIONS[name]
    pk = make()
    text = page.text(change_url(model, pk))
    assert f'action="{list_url(model)}"' in text
    assert f'name="action" value="{action}"' in text
    data = {"action": action, "_selected_action": pk, "from_page": 1}
    asked = page.client.post(list_url(model), data)
    assert b'name="from_page"' in asked.content
    done = page.client.post(list_url(model), {**data, "confirmed": 1, **given})
    assert done["Location"] == change_url(Job if model is DeadLetter else model, pk)
    assert changed_to(model, pk, **becomes)
    offered = f'name="action" value="{action}"' in page.text(done["Location"])
    assert offered == (name in ("reprioritize", "run a schedule", "inspect"))


@pytest.mark.parametrize("priority", ["", "101", "-101", "1.5", "high", "9" * 30])
def test_a_wrong_priority_is_refused_on_the_same_page(page: Page, priority: str) -> None:
    pk = ready_job()
    answered = page.confirm(Job, "reprioritize_jobs", pk, priority=priority)
    assert answered.status_code == 200
    assert b"errorlist" in answered.content
    assert Job.objects.get(pk=pk).priority == 0


def test_a_cancel_counts_stopped_jobs_and_jobs_asked_to_stop(page: Page) -> None:
    running, ready, other = enqueue_and_claim().id, ready_job(), ready_job()
    message = page.act(Job, "cancel_jobs", running, ready, other)
    assert message == "2 jobs were cancelled. | 1 running job was asked to stop."
    running = enqueue_and_claim().id
    assert page.act(Job, "cancel_jobs", running) == "1 running job was asked to stop."


def test_reasons_are_kept(page: Page) -> None:
    pk = ready_job()
    page.act(Job, "cancel_jobs", pk, reason="wrong customer")
    assert Job.objects.get(pk=pk).reason == "wrong customer"
    assert LogEntry.objects.get().change_message == "cancelled: wrong customer"
    page.act(Queue, "pause_queues", open_queue(), reason="maintenance")
    assert "maintenance" in page.read(list_url(Queue))
    dead = make_dead(noop)
    page.act(DeadLetter, "replay_jobs", dead.pk, reason="mended")
    (told_of,) = Job.objects.get(pk=dead.pk).headers["replays"]
    assert (told_of["by"], told_of["why"]) == ("ada", "mended")


@pytest.mark.parametrize("reason", ["x" * 301, "nul\x00"])
def test_a_reason_that_cannot_be_stored_is_refused(page: Page, reason: str) -> None:
    pk = ready_job()
    assert page.confirm(Job, "cancel_jobs", pk, reason=reason).status_code == 200
    assert Job.objects.get(pk=pk).status == "ready"


def test_a_job_that_moved_meanwhile_is_reported(page: Page) -> None:
    pk, other = ready_job(), ready_job()
    page.ask(Job, "reprioritize_jobs", pk, other)
    job_operations.cancel([pk])
    message = message_of(page.confirm(Job, "reprioritize_jobs", pk, other, priority="5"))
    assert "The priority of 1 job was changed." in message
    assert f"1 was not changed. #{pk}: it is cancelled" in message
    assert LogEntry.objects.get().object_id == str(other)


def test_a_dead_letter_that_was_replayed_meanwhile_is_reported(page: Page) -> None:
    pk = dead_job()
    page.ask(DeadLetter, "replay_jobs", pk)
    job_operations.replay([pk], check=lambda job: None)
    done = page.confirm(DeadLetter, "replay_jobs", pk, from_page=1)
    assert f"#{pk}: it no longer exists" in message_of(done)
    assert done["Location"] == change_url(Job, pk)
    assert Job.objects.get(pk=pk).replays == 1
    assert not LogEntry.objects.exists()


def test_a_chosen_job_stays_chosen_although_the_filter_no_longer_matches(page: Page) -> None:
    pk = scheduled_job()
    page.ask(Job, "cancel_jobs", pk, query="?status=scheduled")
    job_operations.run_now([pk])
    page.confirm(Job, "cancel_jobs", pk, query="?status=scheduled")
    assert Job.objects.get(pk=pk).status == "cancelled"


def test_a_running_job_is_asked_to_stop(page: Page) -> None:
    held = enqueue_and_claim()
    page.act(Job, "cancel_jobs", held.id)
    job = Job.objects.get(pk=held.id)
    assert job.status == "running"
    assert job.cancel_requested_at is not None


def test_a_stop_by_force_says_who_else_runs_there(page: Page) -> None:
    one, other, alone, unknown = (enqueue_and_claim() for _ in range(4))
    started = [[one.id, 9.0, None], [other.id, 9.0, None], [alone.id, 9.0, 50], "odd"]
    Worker.objects.filter(pk=one.worker).update(started_jobs=started)
    Job.objects.filter(pk__in=[one.id, other.id, alone.id]).update(worker=one.worker)
    said = "1 other job runs in the same process."
    assert said in page.ask(Job, "stop_jobs", one.id).content.decode()
    for chosen in ([one.id, other.id], [alone.id], [unknown.id]):
        assert "in the same process" not in page.ask(Job, "stop_jobs", *chosen).content.decode()


def test_a_stop_by_force_is_told_and_logged(page: Page) -> None:
    held = enqueue_and_claim()
    page.act(Job, "cancel_jobs", held.id)
    message = page.act(Job, "stop_jobs", held.id, reason="it loops")
    assert message == "1 running job is being stopped by force."
    job = Job.objects.get()
    assert job.status == "running"
    assert re.fullmatch("stopped by force by .+: it loops", job.reason)
    entries = LogEntry.objects.order_by("pk").values_list("change_message", flat=True)
    assert list(entries) == ["cancelled", "stopped by force: it loops"]
    assert "stop_jobs" not in page.text(change_url(Job, held.id))


def test_only_five_refusals_are_named(page: Page) -> None:
    pks = [ready_job() for _ in range(8)]
    job_operations.cancel(pks)
    message = page.act(Job, "cancel_jobs", *pks)
    assert "8 were not changed." in message
    assert message.count("it is cancelled") == 5
    assert "and 3 more" in message


def test_a_replay_is_refused_while_a_live_job_holds_the_key(page: Page) -> None:
    dead = make_dead(noop, idempotency_key="order 7")
    holder = noop.using(idempotency_key="order 7").enqueue()
    message = page.act(DeadLetter, "replay_jobs", dead.pk)
    assert f"job {holder.pk} (ready) holds its idempotency key 'order 7'" in message
    assert Job.objects.get(pk=dead.pk).status == "dead"


def test_a_replay_without_a_handler_is_refused(page: Page) -> None:
    dead = make_dead(noop)
    run_sql("UPDATE django_jobs_job SET job_type = 'app.gone'")
    message = page.act(DeadLetter, "replay_jobs", dead.pk)
    assert "no handler is registered for 'app.gone'" in message


def across(page: Page, model: Any, action: str, query: str = "", **more: Any) -> Any:
    return page.ask(model, action, 0, query=query, select_across=1, **more)


def test_all_matching_takes_all_rows_of_the_filter(page: Page) -> None:
    kept, pks = ready_job(), [scheduled_job() for _ in range(3)]
    asked = across(page, Job, "cancel_jobs", "?status=scheduled")
    assert "This changes 3 jobs." in asked.content.decode()
    choice = asked.context["choice"]
    done = page.confirm(
        Job, "cancel_jobs", 0, query="?status=scheduled", select_across=1, max_id=choice.max_id
    )
    assert "3 jobs were cancelled" in message_of(done)
    assert {Job.objects.get(pk=pk).status for pk in pks} == {"cancelled"}
    assert Job.objects.get(pk=kept).status == "ready"


def test_all_matching_excludes_rows_added_after_the_confirmation(page: Page) -> None:
    pk = ready_job()
    max_id = across(page, Job, "cancel_jobs").context["choice"].max_id
    late = ready_job()
    page.confirm(Job, "cancel_jobs", 0, select_across=1, max_id=max_id)
    assert Job.objects.get(pk=pk).status == "cancelled"
    assert Job.objects.get(pk=late).status == "ready"


@pytest.mark.parametrize("max_id", [None, "", "x", "-1", "9" * 40])
def test_all_matching_without_a_bound_is_asked_again(page: Page, max_id: str | None) -> None:
    pk = ready_job()
    more = {} if max_id is None else {"max_id": max_id}
    answered = page.confirm(Job, "cancel_jobs", 0, select_across=1, **more)
    assert answered.status_code == 200
    assert Job.objects.get(pk=pk).status == "ready"


def test_all_matching_stops_at_the_limit_and_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "ADMIN_BULK_LIMIT", 3)
    monkeypatch.setattr(actions, "CHUNK", 2)
    pks = [ready_job() for _ in range(5)]
    asked = across(page, Job, "cancel_jobs")
    text = " ".join(asked.content.decode().split())
    assert "More than 3 jobs match. This changes the newest 3 of them." in text
    done = page.confirm(Job, "cancel_jobs", 0, select_across=1, max_id=pks[-1])
    assert "3 jobs were cancelled" in message_of(done)
    assert Job.objects.filter(status="cancelled").count() == 3
    assert Job.objects.filter(pk__in=pks[:2], status="ready").count() == 2


def test_more_than_a_hundred_rows_share_one_log_entry(page: Page) -> None:
    noop.enqueue_many([{}] * 101)
    newest = Job.objects.latest("pk").pk
    page.confirm(Job, "cancel_jobs", 0, select_across=1, max_id=newest, reason="flood")
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == (None, "101 jobs")
    assert entry.change_message == "cancelled: flood"
    assert "101 jobs" in page.text("/admin/")


def test_completed_chunks_are_logged_although_a_later_one_fails(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "CHUNK", 1)
    first, second = ready_job(), ready_job()
    real = job_operations.fetch

    def failing(sql: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        if first in parameters["ids"]:
            raise RuntimeError("the database went away")
        return real(sql, parameters)

    monkeypatch.setattr(job_operations, "fetch", failing)
    with pytest.raises(RuntimeError):
        page.confirm(Job, "cancel_jobs", first, second)
    assert LogEntry.objects.get().object_id == str(second)


@pytest.mark.parametrize("wrong", ["x", "-1", "1.5", "9" * 30, "", "\u0661"])
def test_an_invalid_row_number_is_refused(page: Page, wrong: str) -> None:
    ready_job()
    data = {"action": "cancel_jobs", "_selected_action": wrong, "confirmed": 1}
    done = page.client.post(list_url(Job), data)
    assert done.status_code == 302
    assert not Job.objects.filter(status="cancelled").exists()


def test_the_action_checks_the_permission_again(
    page_of: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobPage, "has_cancel_permission", lambda self, request: True)
    pk = ready_job()
    assert page_of("view_job").confirm(Job, "cancel_jobs", pk).status_code == 403
    assert Job.objects.get(pk=pk).status == "ready"


def test_buttons_are_shown_only_if_their_action_applies(page: Page) -> None:
    held = enqueue_and_claim(add, 1)
    text = page.text(change_url(Job, held.id))
    assert 'value="cancel_jobs"' in text
    for action in ("replay_jobs", "run_jobs_now", "reprioritize_jobs"):
        assert f'value="{action}"' not in text
    assert claim_ready(held.worker) == []


def test_the_button_says_what_it_does_and_to_how_many(page: Page) -> None:
    ids = [noop.enqueue().pk for _number in range(2)]
    for chosen, button in ((ids[:1], "Cancel 1 job"), (ids, "Cancel 2 jobs")):
        text = page.ask(Job, "cancel_jobs", *chosen).content.decode()
        assert f'<input type="submit" class="default" value="{button}">' in text
        assert ">Back</a>" in text


def question(page: Page, model: Any, action: str, *pks: int, **given: Any) -> str:
    asked = page.ask(model, action, *pks, **given).content.decode()
    return html.unescape(" ".join(re.sub(r"<(?!input|label|a )[^>]*>", " ", asked).split()))


def test_a_question_repeats_the_filters_and_the_search(page: Page) -> None:
    job = noop.enqueue()
    query = "?queue=default&status=ready&q=type:app.noop"
    chosen = "status ready, queue default, search “type:app.noop”."
    text = question(page, Job, "cancel_jobs", 0, query=query, select_across=1)
    assert f"All that match: {chosen}" in text
    text = question(page, Job, "cancel_jobs", job.pk, query=query)
    assert f"Chosen from: {chosen}" in text
    assert "All of the list." in question(page, Job, "cancel_jobs", 0, select_across=1)
    text = question(page, Job, "cancel_jobs", job.pk)
    assert "All of the list." not in text
    assert "Chosen from" not in text


def test_a_question_names_the_failure_as_its_user_may_see_it(
    page: Page, page_of: Callable[..., Page]
) -> None:
    dead = make_dead()
    query = f"?job_type=app.noop&fingerprint={dead.fingerprint}"
    text = question(page, DeadLetter, "replay_jobs", 0, query=query, select_across=1)
    assert "All that match: job type app.noop, failure ValueError: boom." in text
    olga = page_of("view_job", "replay_job")
    text = question(olga, DeadLetter, "replay_jobs", 0, query=query, select_across=1)
    assert "failure ValueError." in text
    assert "boom" not in text


def test_the_question_of_unknown_rows_and_the_one_that_changes_nothing(page: Page) -> None:
    pk = running_job()
    assert "This asks 1 job, and changes nothing." in question(page, Job, "inspect_jobs", pk)
    text = question(page, Job, "cancel_jobs", pk + 1)
    assert f"Not found among the jobs: #{pk + 1}. They may have been deleted." in text
    assert 'type="submit"' not in text


def test_a_question_offers_only_what_can_change_something(page: Page) -> None:
    ended, live = noop.enqueue().pk, 0
    run_jobs()
    live = noop.enqueue().pk
    text = question(page, Job, "cancel_jobs", ended)
    assert "Nothing that was chosen can be changed." in text
    assert 'type="submit"' not in text
    assert "Reason" not in text
    text = question(page, Job, "cancel_jobs", ended, live)
    assert "This changes 1 job." in text
    assert "1 more was chosen and cannot be changed." in text
    assert 'value="Cancel 1 job"' in text
    text = question(page, Job, "cancel_jobs", 0, query="?status=succeeded", select_across=1)
    assert "None of the jobs that match can be changed." in text
    assert "Reason" not in text


def test_a_label_of_a_required_field_is_marked(page: Page) -> None:
    step = Job.objects.get(workflow_run=start_graph({"a": ""}))
    asked = page.ask(Job, "skip_steps", step.pk).content.decode()
    assert re.search(r'class="form-row required">\s*<div><div class="flex-container"><label', asked)
    optional = page.ask(Job, "cancel_jobs", step.pk).content.decode()
    assert "form-row required" not in optional
