"""All that changes something in the console: one POST each, and the permission that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.urls import reverse

from django_jobs.domain.workflows import WAIT
from django_jobs.lifecycle.editing.edits import stored_job
from django_jobs.lifecycle.operations import bulk, limits, quarantines
from django_jobs.models import (
    BulkOperation,
    DeadLetter,
    Job,
    Quarantine,
    Queue,
    Resource,
    Schedule,
    Tenant,
    WorkflowRun,
)
from tests.app.jobs import add, noop
from tests.factories import claim_ready, failure, make_dead, register_worker, settle_one
from tests.workflows import start_graph, step

from .base.test_actions import ACTIONS
from .limits.test_resources import form as resource_form
from .schedules.scheduling import add_url, backfill_url, filled_in, new_schedule
from .test_safety import queue_form
from .walking import change_url, list_url

FAILURES = reverse("admin:django_jobs_failures")
START = reverse("admin:django_jobs_workflowrun_start")
Sent = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """``make`` writes rows and returns the address and what a browser posts there. ``action`` is
    the model and the name of an action of its list. It is for users without the permissions
    ``lacking``. ``again``: what is sent twice does it twice."""

    permission: str
    make: Callable[[], Sent]
    action: tuple[Any, str] | None = None
    lacking: frozenset[str] = frozenset()
    again: bool = False


def of_rows(
    model: Any, action: str, permission: str, make: Callable[[], int], **given: Any
) -> Verb:
    """An action on one row, confirmed."""

    def post() -> Sent:
        data = {"action": action, "_selected_action": make(), "select_across": 0, "confirmed": 1}
        return list_url(model), {**data, **given}

    return Verb(permission=permission, make=post, action=(model, action))


def of_all(model: Any, action: str, permission: str, make: Callable[[], Any]) -> Verb:
    """An action on all that match, which the workers are asked to do."""

    def post() -> Sent:
        for _ in range(3):
            make()
        data = {"action": action, "_selected_action": 0, "select_across": 1, "confirmed": 1}
        ceiling = {"max_id": Job.objects.latest("id").pk}
        return list_url(model), {**data, **ceiling, "instead": "background"}

    return Verb(permission=permission, make=post)


def row_of(model: Any, **fields: Any) -> Callable[[], int]:
    return lambda: int(model.objects.create(**fields).pk)


def at(url: str, **data: Any) -> Callable[[], Sent]:
    return lambda: (url, data)


def page_of(make: Callable[[], int], model: Any, **data: Any) -> Callable[[], Sent]:
    """The form of a row."""
    return lambda: (change_url(model, make()), data)


def deleted(make: Callable[[], int], model: Any) -> Callable[[], Sent]:
    name = f"admin:django_jobs_{model._meta.model_name}_delete"
    return lambda: (reverse(name, args=[make()]), {"post": "yes"})


def add_to(model: Any) -> str:
    return reverse(f"admin:django_jobs_{model._meta.model_name}_add")


def quarantined() -> int:
    quarantines.quarantine("app.noop")
    return Quarantine.objects.get().pk


def pending_operation() -> int:
    return bulk.start("cancel", {"queue": "default"}).pk


def stopped_operation() -> int:
    pk = pending_operation()
    BulkOperation.objects.filter(pk=pk).update(status="stopped")
    return pk


def paused(model: Any, pause: Callable[..., Any]) -> Callable[[], int]:
    def make() -> int:
        pk = row_of(model, name="stripe")()
        pause(["stripe"])
        return pk

    return make


def live_run() -> int:
    return start_graph({"a": "", "b": "a"}).pk


def failed_run() -> int:
    run = start_graph({"a": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    settle_one(held, failure(final=True))
    return run.pk


def waiting_step() -> int:
    return step(start_graph({"a": "", "b": "a"}), "b").pk


def waiting_job() -> int:
    pk = noop.using(delay=900).enqueue().pk
    Job.objects.filter(pk=pk).update(status="waiting", awaits="approved")
    return pk


SHARE = {"weight": "1", "rate_seconds": "1", "slo_target": "0.99"}


def asked_step() -> int:
    pk = waiting_job()
    payload = {"name": "approved", "fields": [["approved", "bool"]]}
    Job.objects.filter(pk=pk).update(job_type=WAIT, payload=payload)
    return pk


def edit() -> Sent:
    pk = add.enqueue(1).pk
    stored = stored_job(pk)
    assert stored is not None
    given = {"argument_first": "7", "queue": "default", "priority": "0", "reason": "a typo"}
    url = reverse("admin:django_jobs_job_edit", args=[pk])
    return url, {**given, "confirmed": 1, "state": stored.state}


def plan() -> Sent:
    terms = f'{{"error": "{make_dead().fingerprint}"}}'
    numbers = {"first": 1, "then": 20, "rate": 10, "most_failed": 20}
    return reverse("admin:django_jobs_replay_plan"), {"begin": 1, "terms": terms, **numbers}


def backfill() -> Sent:
    end = datetime.now(UTC).replace(minute=30) - timedelta(hours=1)
    begin = end - timedelta(hours=3)
    span = {"begin_0": begin.date(), "begin_1": begin.time(), "end_0": end.date()}
    return backfill_url(new_schedule()), {**span, "end_1": end.time(), "confirmed": "3"}


def skip_occurrence() -> Sent:
    schedule = new_schedule()
    url = reverse("admin:django_jobs_schedule_occurrence", args=[schedule.pk])
    assert schedule.next_due_at is not None
    return url, {"due": schedule.next_due_at.isoformat(), "does": "skip", "reason": "why"}


def run_with() -> Sent:
    url = reverse("admin:django_jobs_schedule_run", args=[own_schedule()])
    return url, {"argument_where": "there", "form_number": "f" * 32}


def enqueue() -> Sent:
    url = reverse("admin:django_jobs_job_enqueue")
    return f"{url}?job_type=app.collect", {"argument_where": "here", "form_number": "f" * 32}


def own_schedule() -> int:
    return new_schedule(job_type="app.collect", payload={"where": "here"}).pk


def queue() -> int:
    return Queue.objects.get(name="bulk").pk


def stripe(**fields: Any) -> Callable[[], int]:
    return row_of(Resource, name="stripe", **fields)


def exported(url: str) -> Callable[[], Sent]:
    def make() -> Sent:
        make_dead()
        return url, {"export": "csv"}

    return make


LISTED = {
    name: of_rows(model, action, permission, make, **given)
    for name, (model, action, permission, make, given, _becomes) in ACTIONS.items()
}
for asked_again in ("inspect", "run a schedule"):
    LISTED[asked_again] = replace(LISTED[asked_again], again=True)
OTHERS = {
    "stop an operation": of_rows(
        BulkOperation, "stop_operations", "cancel_job", pending_operation
    ),
    "continue an operation": of_rows(
        BulkOperation, "continue_operations", "cancel_job", stopped_operation
    ),
    "cancel all in the background": of_all(Job, "cancel_jobs", "cancel_job", noop.enqueue),
    "dismiss all in the background": of_all(DeadLetter, "dismiss_jobs", "dismiss_job", make_dead),
    "replay all in the background": of_all(DeadLetter, "replay_jobs", "replay_job", make_dead),
    "begin a plan": Verb(permission="replay_job", make=plan),
    "lift a quarantine": of_rows(
        Quarantine, "lift_quarantines", "quarantine_job_type", quarantined
    ),
    "quarantine": Verb(
        permission="quarantine_job_type", make=at(add_to(Quarantine), job_type="app.noop")
    ),
    "pause a resource": of_rows(Resource, "pause_resources", "pause_resource", stripe()),
    "resume a resource": of_rows(
        *(Resource, "resume_resources", "pause_resource"), paused(Resource, limits.pause_resources)
    ),
    "open a breaker": of_rows(
        *(Resource, "open_breakers", "change_resource"), stripe(breaker_failures=3)
    ),
    "close a breaker": of_rows(
        *(Resource, "close_breakers", "change_resource"),
        stripe(breaker_failures=3, breaker_state="open"),
    ),
    "pause a tenant": of_rows(
        Tenant, "pause_tenants", "pause_tenant", row_of(Tenant, name="acme")
    ),
    "resume a tenant": of_rows(
        Tenant, "resume_tenants", "pause_tenant", paused(Tenant, limits.pause_tenants)
    ),
    "cancel a run": of_rows(WorkflowRun, "cancel_workflow_runs", "cancel_workflowrun", live_run),
    "retry a run": of_rows(WorkflowRun, "retry_workflow_runs", "retry_workflowrun", failed_run),
    "skip a step": of_rows(Job, "skip_steps", "skip_workflowstep", waiting_step, reason="why"),
    "signal": of_rows(
        *(Job, "signal_jobs", "signal_workflowrun", waiting_job), name="approved", value="1"
    ),
    "approve": of_rows(Job, "approve_steps", "signal_workflowrun", asked_step),
    "reject": of_rows(Job, "reject_steps", "signal_workflowrun", asked_step, reason="no"),
    "edit": Verb(permission="edit_job", make=edit),
    "reveal": Verb(
        permission="reveal_job",
        make=lambda: (reverse("admin:django_jobs_job_reveal", args=[make_dead().pk]), {}),
        lacking=frozenset({"view_job_payload", "view_job_error"}),
    ),
    "export jobs": Verb(permission="export_job", make=exported(list_url(DeadLetter))),
    "export failures": Verb(permission="export_job", make=exported(FAILURES)),
    "enqueue": Verb(permission="enqueue_job", make=enqueue),
    "start a run": Verb(
        permission="start_workflow",
        make=at(f"{START}?workflow=test.flow", form_number="f" * 32),
    ),
    "backfill": Verb(permission="backfill_schedule", make=backfill),
    "skip a due time": Verb(permission="move_schedule", make=skip_occurrence),
    "run a schedule with": Verb(permission="run_schedule", make=run_with),
    "add a schedule": Verb(
        permission="add_schedule",
        make=at(add_url("app.collect"), **filled_in(argument_where="here")),
    ),
    "change a schedule": Verb(
        permission="change_schedule",
        make=page_of(own_schedule, Schedule, **filled_in(name="hourly", argument_where="there")),
    ),
    "delete a schedule": Verb(permission="delete_schedule", make=deleted(own_schedule, Schedule)),
    "add a queue": Verb(permission="add_queue", make=at(add_to(Queue), **queue_form())),
    "change a queue": Verb(
        permission="change_queue",
        make=page_of(queue, Queue, **queue_form(name="bulk", max_concurrency="3")),
    ),
    "add a resource": Verb(
        permission="add_resource", make=at(add_to(Resource), **resource_form(name="stripe"))
    ),
    "change a resource": Verb(
        permission="change_resource",
        make=page_of(stripe(), Resource, **resource_form(max_concurrency="2")),
    ),
    "add a tenant": Verb(permission="add_tenant", make=at(add_to(Tenant), name="acme", **SHARE)),
    "change a tenant": Verb(
        permission="change_tenant",
        make=page_of(row_of(Tenant, name="acme"), Tenant, **(SHARE | {"weight": "3"})),
    ),
    "delete a tenant": Verb(
        permission="delete_tenant", make=deleted(row_of(Tenant, name="acme"), Tenant)
    ),
}  # fmt: skip
VERBS: dict[str, Verb] = {**LISTED, **OTHERS}
VIEWS = {"edit", "reveal", "enqueue", "start", "backfill", "replay_plan", "occurrence", "run"}
"""The pages that change something, besides those that each model has, by the end of their name."""
READ = {
    "preview",
    "calendar",
    "cost",
    "deploys",
    "doctor",
    "failures",
    "failure_group",
    "paused",
    "job_file",
}
