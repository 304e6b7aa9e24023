"""Graphs of no-op steps, written as one step a word: ``b: a`` comes after ``a``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django_jobs.domain.workflows import When
from django_jobs.lifecycle.compensating import FAILED, as_json
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Job, WorkflowRun
from django_jobs.models.database import fetch_named
from tests.app.jobs import noop

WHEN = {"+": When.SUCCEEDED, "-": When.FAILED, "*": When.FINISHED}


def steps_of(graph: Mapping[str, str], **options: Any) -> list[NewStep]:
    """The steps of a graph: of each, the names of those that it waits for. A name with ``-`` in
    front has to fail, one with ``*`` to end. One that ends with ``?`` is optional."""
    new = noop.using(**options).request()
    places = {name.rstrip("?"): place for place, name in enumerate(graph)}
    return [
        NewStep(
            name=name.rstrip("?"),
            new=new,
            payload="{}",
            after={places[one.lstrip("-*")]: _when(one) for one in after.split()},
            optional=name.endswith("?"),
        )
        for name, after in graph.items()
    ]


def start_graph(graph: Mapping[str, str], key: str | None = None, **options: Any) -> WorkflowRun:
    """A run of this graph."""
    return start(NewRun(name="graph", idempotency_key=key), steps_of(graph, **options))


def saga(*names: str) -> WorkflowRun:
    """A run of steps with compensations, one after the other, and after them the step ``last``."""
    graph = dict(zip((*names, "last"), ("", *names), strict=True))
    undo = steps_of({f"undo {name}": "" for name in names})
    compensations = as_json(dict(zip(names, undo, strict=True)))
    return start(NewRun(name="saga", compensations=compensations), steps_of(graph))


def states(run: WorkflowRun) -> dict[str, str]:
    """The status of each step, with why it was skipped."""
    rows = Job.objects.filter(workflow_run=run).order_by("id")
    return {
        str(job.step): job.status + (f" ({job.skipped})" if job.skipped else "") for job in rows
    }


def step(run: WorkflowRun, name: str) -> Job:
    return Job.objects.get(workflow_run=run, step=name)


def _when(name: str) -> When:
    return WHEN.get(name[0], When.SUCCEEDED)


def failed_compensations(most: int) -> list[dict[str, Any]]:
    """The newest runs of which compensations failed, and were not replayed, skipped or dismissed:
    ``id``, ``name``, ``finished_at``, and the names of those ``steps``."""
    return fetch_named(FAILED, {"most": most})
