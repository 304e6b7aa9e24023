"""What commands print about a job, a workflow and the load."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.db.models import Count, Q

from ..conf import conf
from ..domain.states import FINAL
from ..domain.workflows import condition_text
from ..metrics.forecast import take_cost, take_sizing
from ..models import Dependency, Inspection, Job, Progress, Worker, WorkflowRun
from ..models.database import database_time
from .base import cell, counted, json_text, row_of, table

HEADS = ("RUN", "WORKFLOW", "STATUS", "STEPS", "STARTED", "FINISHED", "REASON")
STEP_HEADS = ("STEP", "JOB", "STATUS", "ATTEMPT", "AFTER", "REASON")
MOST_STEPS = 1_000
"""Steps that ``show`` prints."""


def runs_as_rows(*, name: str | None, status: str | None, limit: int) -> list[dict[str, Any]]:
    runs = WorkflowRun.objects.using(conf().database).order_by("-id")
    if name is not None:
        runs = runs.filter(name=name)
    if status is not None:
        runs = runs.filter(status=status)
    return [_row(run) for run in runs.select_related("definition").defer("payload")[:limit]]


def run_as_row(id_: int) -> dict[str, Any]:
    """A run with its steps, in the order of their ids. Raises ``CommandError`` if there is none."""
    alias = conf().database
    run = row_of(WorkflowRun.objects.using(alias).select_related("definition"), id_, "run")
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
    columns = "parent_id", "child_id", "when", "condition"
    for parent, child, when, condition in edges.values_list(*columns):
        name = names.get(parent) or f"#{parent}"
        text = condition_text(condition) if condition else when
        after.setdefault(child, []).append(name if text == "succeeded" else f"{name} ({text})")
    return {**_row(run), "steps": [{**step, "after": after.get(step["id"], [])} for step in steps]}


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
        cell(row["reason"]),
    )


def _step_cells(step: dict[str, Any]) -> tuple[str, ...]:
    waits = f" for {step['awaits']}" if step["awaits"] else ""
    skipped = f" ({step['skipped']})" if step["skipped"] else ""
    return (
        step["step"] or "-",
        str(step["id"]),
        step["status"] + waits + skipped,
        str(step["attempt"]),
        cell(", ".join(step["after"])) or "-",
        cell(step["reason"]),
    )


SIZING_HEADS = ("QUEUE", "RUNS/S", "MEAN", "P95", "NEEDS", "THREADS", "SLOTS")
COST_HEADS = ("JOB TYPE", "RUNS", "TIME", "CPU", "MEMORY", "QUERIES", "IN QUERIES")


def sizing_text(as_json: bool) -> str:
    """The load of each queue, then what is too small."""
    sizing = take_sizing()
    if as_json:
        return json_text({**asdict(sizing), "problems": sizing.problems})
    if not sizing.queues:
        return "No run ended in the last hour."
    rows = [
        (
            queue.queue,
            f"{queue.rate:.3g}",
            f"{queue.mean_seconds:.3g}s",
            f"{queue.p95_seconds:.3g}s",
            f"{queue.slots_needed:.1f}",
            "-" if queue.on_loop else str(queue.slots),
            str(queue.slots) if queue.on_loop else "-",
        )
        for queue in sizing.queues
    ]
    source = _source(sizing.runs, sizing.seconds)
    return "\n\n".join([source, table(SIZING_HEADS, rows), *sizing.problems])


def _source(runs: int, seconds: float) -> str:
    span = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return f"From {counted(runs, 'run')} of the last {span}."


def cost_text(as_json: bool) -> str:
    cost = take_cost()
    if as_json:
        return json_text(asdict(cost))
    if not cost.types:
        return "No run ended in the last hour."
    rows = [
        (
            of.job_type,
            str(of.runs),
            f"{of.seconds:.3g}s",
            "-" if of.cpu_seconds is None else f"{of.cpu_seconds:.3g}s",
            "-" if of.max_rss_kb is None else f"{of.max_rss_kb / 1024:.0f} MB",
            "-" if of.queries is None else str(of.queries),
            "-" if of.query_seconds is None else f"{of.query_seconds:.3g}s",
        )
        for of in cost.types
    ]
    source = _source(sum(of.runs for of in cost.types), cost.seconds)
    return f"{source}\n\n{table(COST_HEADS, rows)}"


def as_dict(job: Job, question: Inspection | None) -> dict[str, Any]:
    """All that is known about the attempt that runs. The stack is null without an answer."""
    alias = conf().database
    worker = Worker.objects.using(alias).filter(pk=job.worker_id or 0).first()
    report = Progress.objects.using(alias).filter(job_id=job.pk, attempt=job.attempt).first()
    answered = question if question is not None and question.answered_at else None
    assert job.claimed_at is not None
    return {
        "job": job.pk,
        "job_type": job.job_type,
        "queue": job.queue,
        "attempt": job.attempt,
        "claimed_seconds": (database_time() - job.claimed_at).total_seconds(),
        "cancel_requested": job.cancel_requested_at is not None,
        "worker": job.worker_id,
        "worker_name": None if worker is None else worker.name,
        "host": None if worker is None else worker.host,
        "code_version": None if worker is None else worker.code_version,
        "process": answered.process if answered else None,
        "thread": answered.thread if answered else None,
        "ran_seconds": answered.ran_seconds if answered else None,
        "progress": None if report is None else report.fraction,
        "note": None if report is None else report.note,
        "stack": answered.stack if answered else None,
    }


def render(shown: dict[str, Any]) -> str:
    lines = [
        f"job       {shown['job']} {shown['job_type']} on {shown['queue']}",
        f"attempt   {shown['attempt']}, claimed {shown['claimed_seconds']:.1f} s ago"
        + (", its cancellation was requested" if shown["cancel_requested"] else ""),
        f"worker    {shown['worker_name'] or 'unknown'} #{shown['worker']} on {shown['host']}",
    ]
    if shown["note"] is not None:
        share = "" if shown["progress"] is None else f"{shown['progress']:.0%} "
        lines.append(f"progress  {share}{shown['note']}".rstrip())
    if shown["stack"] is not None:
        lines.append(f"process   {shown['process']}, {shown['thread'] or 'no thread'}")
        lines.append(f"running   for {shown['ran_seconds']:.1f} s")
        lines += ["", shown["stack"].rstrip()]
    return "\n".join(lines)
