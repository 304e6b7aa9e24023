"""The remote control of a connected app: cancels jobs, and refuses what needs a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Never

from celery import signals

from ....api.shortcuts import cancel
from ....domain.states import JobState
from ..running.around import task_revoked
from .jobs import job_of

INSTEAD = {
    "inspect": "manage.py jobstatus",
    "ping": "manage.py jobstatus",
    "rate_limit": "manage.py joblimit",
    "time_limit": "the task's time_limit",
    "shutdown": "a SIGTERM to jobworker",
    "purge": "manage.py jobprune",
}


class RowsControl:
    """``app.control``. A revoked task is a cancelled job."""

    def __init__(self, app: Any = None) -> None:
        self.app = app

    def revoke(self, task_id: str | Iterable[str], terminate: bool = False, **more: Any) -> None:
        """Cancel the job of a task, or of several. One that runs is asked to stop, and with
        ``terminate`` stopped by force. ``signal`` makes no difference: no process is sent one."""
        for one in [task_id] if isinstance(task_id, str) else task_id:
            job = job_of(one)
            if job is None or not cancel(job.pk, force=bool(terminate)):
                continue
            if job.status != JobState.RUNNING and signals.task_revoked.receivers:
                task_revoked(self.app, job)

    def terminate(self, task_id: str | Iterable[str], signal: Any = None, **more: Any) -> None:
        """:meth:`revoke`, by force."""
        self.revoke(task_id, terminate=True)

    def __getattr__(self, name: str) -> Never:
        hint = f"; use {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"app.control.{name} asks workers of Celery, and there are none{hint}")
