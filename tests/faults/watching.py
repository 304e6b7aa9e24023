"""What the tests of dying and stopped workers wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from django_jobs.models import Job, Worker
from tests.app.models import Effect
from tests.worker import processes
from tests.worker.processes import JobWorker


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for ``condition``; returns its value."""
    return processes.until(condition, what=what)


def settled(job: Job, status: str = "succeeded") -> Job:
    """Wait until the job has come to that."""
    return processes.until_status(job, status)


def said(worker: JobWorker, text: str) -> None:
    """Wait until the worker has logged that."""
    until(lambda: text in worker.text(), f"the worker says {text!r}")


def running_workers(number: int) -> list[Worker]:
    """Wait until so many workers run."""

    def found() -> list[Worker] | None:
        workers = list(Worker.objects.filter(status="running").order_by("started_at"))
        return workers if len(workers) == number else None

    workers: list[Worker] = until(found, f"{number} workers run")
    return workers


def effects(job: Job) -> int:
    """Rows that its handler left."""
    return Effect.objects.filter(job_id=job.pk).count()


def gone(pid: int) -> bool:
    """Whether that process is no more."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
