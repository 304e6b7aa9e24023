"""Runs of workflows as tables and as plain values, for ``jobworkflow``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db.models import Count, Q

from ..conf import conf
from ..domain.states import FINAL
from ..models import Dependency, Job, WorkflowRun
from .base import table

HEADS = ("RUN", "WORKFLOW", "STATUS", "STEPS", "STARTED", "FINISHED", "REASON")
STEP_HEADS = ("STEP", "JOB", "STATUS", "ATTEMPT", "AFTER", "REASON")
LONGEST_CELL = 60
MOST_STEPS = 1_000
"""Steps that ``show`` prints."""


def runs_as_rows(*, name: str | None, status: str | None, limit: int) -> list[dict[str, Any]]:
    """The newest runs."""
    runs = WorkflowRun.objects.using(conf().database).order_by("-id")
    if name is not None:
        runs = runs.filter(name=name)
    if status is not None:
        runs = runs.filter(status=status)
    return [_row(run) for run in runs.select_related("definition").defer("payload")[:limit]]


def run_as_row(id_: int) -> dict[str, Any]:
    """A run with its steps, in the order of their ids. Raises ``CommandError`` if there is none."""
    alias = conf().database
    run = WorkflowRun.objects.using(alias).select_related("definition").filter(pk=id_).first()
    if run is None:
        raise CommandError(f"there is no run {id_}")
    steps = list(
        Job.objects.using(alias)
        .filter(workflow_run=id_)
        .order_by("id")
        .values("id", "step", "job_type", "status", "skipped", "awaits", "attempt", "reason")[
            :MOST_STEPS
        ]
    )
    names = {step["id"]: step["step"] for step in steps}
    after: dict[int, list[str]] = {}
    edges = Dependency.objects.using(alias).filter(child__in=list(names)).order_by("parent_id")
    for parent, child, when in edges.values_list("parent_id", "child_id", "when"):
        name = names.get(parent) or f"#{parent}"
        after.setdefault(child, []).append(name if when == "succeeded" else f"{name} ({when})")
    return {
        **_row(run),
        "steps": [{**step, "after": after.get(step["id"], [])} for step in steps],
    }


def render_runs(rows: list[dict[str, Any]]) -> str:
    return table(HEADS, [_cells(row) for row in rows]) if rows else "There are no such runs."


def render_run(row: dict[str, Any]) -> str:
    steps = table(STEP_HEADS, [_step_cells(step) for step in row["steps"]])
    more = row["step_count"] - len(row["steps"])
    rest = f"\n... and {more:,} more steps" if more > 0 else ""
    return f"{render_runs([row])}\n\n{steps}{rest}"


def _row(run: WorkflowRun) -> dict[str, Any]:
    counts = Job.objects.using(conf().database).filter(workflow_run=run.pk)
    numbers = counts.aggregate(all=Count("id"), ended=Count("id", filter=Q(status__in=FINAL)))
    return {
        "id": run.pk,
        "name": run.name,
        "version": run.definition and run.definition.version,
        "status": run.status,
        "step_count": numbers["all"],
        "ended_count": numbers["ended"],
        "tenant": run.tenant,
        "idempotency_key": run.idempotency_key,
        "started_at": run.started_at.isoformat(),
        "finished_at": run.finished_at and run.finished_at.isoformat(),
        "cancel_requested": run.cancel_requested_at is not None,
        "reason": run.reason,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    version = f" v{row['version']}" if row["version"] is not None else ""
    asked = ", cancel requested" if row["cancel_requested"] and row["finished_at"] is None else ""
    return (
        str(row["id"]),
        row["name"] + version,
        row["status"] + asked,
        f"{row['ended_count']:,} of {row['step_count']:,}",
        row["started_at"][:19],
        (row["finished_at"] or "-")[:19],
        _cut(row["reason"]),
    )


def _step_cells(step: dict[str, Any]) -> tuple[str, ...]:
    waits = f" for {step['awaits']}" if step["awaits"] else ""
    skipped = f" ({step['skipped']})" if step["skipped"] else ""
    return (
        step["step"] or "-",
        str(step["id"]),
        step["status"] + waits + skipped,
        str(step["attempt"]),
        _cut(", ".join(step["after"])) or "-",
        _cut(step["reason"]),
    )


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_CELL else f"{line[: LONGEST_CELL - 1]}…"
