"""What a running job is doing, as text."""

from __future__ import annotations

from typing import Any

from ..conf import conf
from ..models import Inspection, Job, Progress, Worker
from ..models.database import database_time


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
    """The same for a terminal."""
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
