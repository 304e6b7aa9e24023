"""What Celery's worker does around its tasks: the signals of its processes, and what it does about
a task that ended with its process. Celery's own code does it."""

from __future__ import annotations

import signal
import socket
from types import SimpleNamespace
from typing import Any, cast

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.exceptions import WorkerLostError

from .... import registry
from ....conf import conf
from ....domain.states import JobState, RunState
from ....lifecycle.workflows.results import parents_after
from ....models import Job, Progress
from ....worker.context.attempt import NOTES
from ....worker.context.run_context import RunContext
from ..messages.requests import in_worker
from .attempts import request_of


def process_started(app: Any, kind: str, **_: Any) -> None:
    """Send what Celery sends in a process of this kind."""
    if kind != "jobworker":
        signals.worker_process_init.send(sender=None)
        return
    for fixup in filter(None, app._fixups):
        # It would close the connections of Django after each task, which our worker looks after.
        fixup.worker_fixup = SimpleNamespace(install=lambda: None)
    worker = _Worker(app)
    signals.worker_init.send(sender=worker)
    signals.worker_ready.send(sender=worker)


def process_ended(app: Any, kind: str, *, pid: int, **_: Any) -> None:
    """Send what Celery sends at the end of a process of this kind."""
    if kind == "jobworker":
        signals.worker_shutdown.send(sender=_Worker(app))
    else:
        signals.worker_process_shutdown.send(sender=None, pid=pid, exitcode=0)


class _Worker:
    def __init__(self, app: Any) -> None:
        self.app, self.hostname = app, f"jobworker@{socket.gethostname()}"


def attempt_failed(_: Any, job_type: str, *, job_id: int, outcome: str, **fields: Any) -> None:
    """Do what Celery's main process does about a task that its time limit, the end of its process
    or a ``revoke`` has ended: these end no task in its own code."""
    known = registry.find(job_type)
    app = getattr(known and known.handler, "celery_app", None)
    expired = str(fields["error"]).startswith("Expired")
    if app is None or not (expired or outcome in ENDED_OUTSIDE):
        return
    job = Job.objects.using(conf().database).get(pk=job_id)
    if expired:
        task_revoked(app, job, expired=True)
    elif outcome == RunState.TIMED_OUT:
        _request(app, job).on_timeout(False, job.timeout)
    elif outcome == RunState.CANCELLED:
        if job.cancel_requested_at is not None:  # and not by the task, which raised Ignore
            task_revoked(app, job, terminated=job.force_requested_at is not None)
    elif job.status == JobState.DEAD:
        _request(app, job).on_failure(_raised(WorkerLostError(fields["error"])))


def task_revoked(app: Any, job: Job, *, terminated: bool = False, expired: bool = False) -> None:
    """Send the signal of a task that is not run, or not to its end."""
    signals.task_revoked.send(
        app.tasks[job.job_type],
        request=_request(app, job)._context,
        terminated=terminated,
        signum=signal.SIGTERM if terminated else None,
        expired=expired,
    )


ENDED_OUTSIDE = (RunState.TIMED_OUT, RunState.LOST, RunState.RELEASED, RunState.CANCELLED)


def _request(app: Any, job: Job) -> Any:
    task = app.tasks[job.job_type]
    return in_worker(app, request_of(task, job.payload, _attempt_of(job), []))


def _attempt_of(job: Job) -> RunContext:
    """The attempt that has ended, as far as its request needs it."""
    progress = Progress.objects.using(conf().database).filter(job=job.pk).first()
    claimed = SimpleNamespace(**{**vars(job), "available_at": job.available_at.timestamp()})
    attempt = SimpleNamespace(
        _attempt=SimpleNamespace(job=claimed),
        attempt=job.attempt,
        headers={name: value for name, value in job.headers.items() if name not in NOTES},
        idempotency_key=job.idempotency_key,
        job_id=job.pk,
        queue=job.queue,
        scheduled_for=job.scheduled_for,
        saved_checkpoint=None if progress is None else progress.checkpoint,
        children=lambda: parents_after(cast(Any, job), 0)[0],
    )
    return cast(RunContext, attempt)


def _raised(error: Exception) -> ExceptionInfo:
    try:
        raise error
    except Exception:
        return ExceptionInfo()
