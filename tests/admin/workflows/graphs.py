"""Runs of workflows in any state, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from django.utils import timezone

from django_jobs.domain.graph import GraphStep, document_of, fingerprint
from django_jobs.models import Dependency, Job, WorkflowDefinition, WorkflowRun
from tests.app.jobs import noop
from tests.factories import register_worker

ENDED = ("succeeded", "dead", "cancelled")


class Row(NamedTuple):
    """A step: its status, and those that it comes after, each with its condition."""

    status: str = "waiting"
    after: Mapping[str, str] = {}
    fields: Mapping[str, Any] = {}


def step(status: str, *after: str, **fields: Any) -> Row:
    """A step after others. One with ``-`` in front has to fail, one with ``*`` to end."""
    when = {"-": "failed", "*": "finished"}
    edges = {one.lstrip("-*"): when.get(one[0], "succeeded") for one in after}
    return Row(status, edges, fields)


def run_of(graph: Mapping[str, Row], **fields: Any) -> WorkflowRun:
    """A run that has these steps by name."""
    now = timezone.now()
    fields = {"name": "orders.fulfil", "status": "running", "ends_left": 1, **fields}
    run = WorkflowRun.objects.create(started_at=now - timedelta(minutes=5), **fields)
    template = Job.objects.get(pk=noop.using(delay=900).enqueue().pk)
    columns = {one.attname: getattr(template, one.attname) for one in Job._meta.concrete_fields}
    worker = register_worker()
    jobs = []
    for name, row in graph.items():
        own: dict[str, Any] = {"id": None, "workflow_run_id": run.pk, "step": name}
        own |= {"status": row.status, "reason": ""}
        if row.status in (*ENDED, "running"):
            own |= {"attempt": 1, "claimed_at": now - timedelta(minutes=4)}
        if row.status == "running":
            own["worker_id"] = worker
        if row.status in ENDED:
            own |= {"started_at": own["claimed_at"], "finished_at": now - timedelta(minutes=3)}
        jobs.append(Job(**{**columns, **own, **row.fields}))
    Job.objects.bulk_create(jobs)
    ids = dict(Job.objects.filter(workflow_run=run).values_list("step", "pk"))
    Dependency.objects.bulk_create(_dependencies(run, graph, ids))
    template.delete()
    return run


def _dependencies(
    run: WorkflowRun, graph: Mapping[str, Row], ids: Mapping[Any, int]
) -> Iterable[Dependency]:
    for name, row in graph.items():
        for parent, when in row.after.items():
            yield Dependency(workflow_run=run, parent_id=ids[parent], child_id=ids[name], when=when)


def definition_of(name: str, *steps: GraphStep, version: int = 1) -> WorkflowDefinition:
    """A version of a workflow with these steps."""
    graph = document_of(steps)
    return WorkflowDefinition.objects.create(
        name=name,
        version=version,
        fingerprint=fingerprint(graph),
        graph=graph,
        created_at=timezone.now(),
    )


def order(**fields: Any) -> WorkflowRun:
    """A run in which a step failed."""
    return run_of(
        {
            "reserve_stock": step("succeeded", job_type="shop.reserve_stock"),
            "charge_card": step(
                "dead",
                "reserve_stock",
                job_type="shop.charge_card",
                attempt=5,
                reason="failed 5 times of 5",
            ),
            "ship_order": step(
                "cancelled",
                "charge_card",
                job_type="shop.ship_order",
                attempt=0,
                claimed_at=None,
                started_at=None,
                skipped="failed",
                reason="skipped: charge_card failed",
            ),
            "apologise": step("running", "-charge_card", job_type="shop.apologise"),
            "close": step("waiting", "*apologise", "*ship_order", job_type="shop.close_order"),
        },
        **fields,
    )


def images(number: int = 500, **fields: Any) -> WorkflowRun:
    """A run with as many parts, most of which succeeded."""
    states = {0: "dead", 1: "running", 2: "running", 3: "ready"}
    parts = {
        f"part {at}": step(states.get(at, "succeeded"), "list_images", job_type="media.resize")
        for at in range(number)
    }
    return run_of(
        {
            "list_images": step("succeeded", job_type="media.list_images"),
            **parts,
            "publish": step("waiting", *(f"*{part}" for part in parts), job_type="media.publish"),
        },
        name="media.publish_all",
        **fields,
    )
