"""Finds the job of a task, reads what its rows say, and cancels it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from signal import SIGTERM
from typing import Any, Never

from celery import signals, states
from celery.exceptions import Retry, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from django.core.exceptions import SynchronousOnlyOperation
from django.db.models import Exists, OuterRef
from kombu.utils.functional import maybe_list

from .... import registry
from ....api.shortcuts import cancel
from ....conf import conf
from ....domain.states import LIVE, JobState, RunState
from ....lifecycle.workflows.results import result_in
from ....models import Dependency, Job, Queue, Run
from ....models.database import jobs_connection
from ..messages.arguments import arguments_of, revived
from ..messages.options import ALL, job_id_of, read, task_id_of
from ..running.attempts import ARGUMENTS, STORED, hostname, task_revoked

ENDED: dict[str, Callable[[Job, str], Any]] = {
    "Expired": lambda job, message: TaskRevokedError("expired"),
    "TimedOut": lambda job, message: TimeLimitExceeded(*_limit_of(job)),
    "Crashed": lambda job, message: WorkerLostError(message),
    "WorkerLost": lambda job, message: WorkerLostError(message),
    "django_jobs.exceptions.Retry": lambda job, message: Retry(message),
    "SystemExit": lambda job, message: WorkerLostError(f"{EXITED}: exitcode {_code_in(message)}."),
}
"""What ``get()`` raises where no exception of the task ended the job, by the class of the error."""
OF_AN_ATTEMPT = (states.FAILURE, states.RETRY)
"""The states that Celery's trace stores with an exception."""
DEFAULT_SIGNALS = (None, "SIGTERM", "TERM", SIGTERM)
EXITED = "Worker exited prematurely"

WRITTEN_SINCE_BEGIN = (
    "SELECT created_at >= transaction_timestamp() FROM django_jobs_job WHERE id = %s"
)
"""Whether the open transaction has most likely written the row, so that no worker sees it."""

ASYNC = (
    "results are rows, which async code cannot read: write `await sync_to_async(result.get)()`, or "
    "`await sync_to_async(lambda: result.state)()`, with sync_to_async of asgiref.sync"
)


def is_newer_than_transaction(job: Job) -> bool:
    """Whether the job was enqueued since the open transaction began."""
    with jobs_connection().cursor() as cursor:
        cursor.execute(WRITTEN_SINCE_BEGIN, [job.pk])
        return bool(cursor.fetchone() == (True,))


def job_of(task_id: str) -> Job | None:
    """The job with this task id, the newest if several have it, with its progress and its worker;
    None if there is none, or retention has deleted it.

    An id that was given by ``apply_async(task_id=)`` is the idempotency key of the job. While the
    job is live an index finds it; among the ended ones no index does.
    """
    jobs = Job.objects.using(conf().database).select_related("progress", "worker")
    try:
        if (job_id := job_id_of(task_id)) is not None:
            return jobs.filter(pk=job_id).first()
        keyed = jobs.filter(idempotency_key=task_id)
        live = keyed.filter(queue__in=Queue.objects.names(), status__in=LIVE)
        return live.first() or keyed.order_by("-pk").first()
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(ASYNC) from None


def failed_before(job: Job) -> Job | None:
    """The first dead job of the run of a step."""
    steps = Job.objects.using(conf().database).filter(workflow_run=job.workflow_run_id)
    return steps.filter(status=JobState.DEAD).order_by("finished_at").first()


def is_after_several(job: Job) -> bool:
    """Whether the step is the body of a chord, which may have a single task before it."""
    before = Dependency.objects.using(conf().database).filter(child=job.pk)
    return read(job.headers)[1].get("upstream") == ALL or before.count() > 1


def last_run(job: Job) -> Run | None:
    runs = Run.objects.using(conf().database).filter(job=job.pk).select_related("worker")
    return runs.order_by("-attempt").first()


def kept_of(job: Job) -> dict[str, Any]:
    progress = getattr(job, "progress", None)
    kept = None if progress is None else progress.checkpoint
    return kept if isinstance(kept, dict) else {}


def stored_of(job: Job) -> dict[str, Any]:
    """What the backend was given of the job, if it was."""
    stored = kept_of(job).get(STORED)
    return stored if isinstance(stored, dict) else {}


def steps_after(job: Job, task_id: str) -> list[Any]:
    """The steps that follow this one alone, as the children that Celery has of it: the next one of
    a chain, or a group. The body of a chord is no child of its header."""
    others = Dependency.objects.using(conf().database).filter(child=OuterRef("child"))
    after = Dependency.objects.using(conf().database).filter(parent=job.pk)
    after = after.exclude(Exists(others.exclude(parent=job.pk))).order_by("child")
    steps = [((task_id_of(one), None), None) for one in after.values_list("child", flat=True)]
    return steps if len(steps) < 2 else [((task_id, None), steps)]


def extended(job: Job, status: str) -> dict[str, Any]:
    """What Celery stores with ``result_extended``. The retries are those of the last attempt."""
    own, run, job_type = read(job.headers)[1], last_run(job), registry.find(job.job_type)
    worker = job.worker if run is None else run.worker
    more = {one: own[one] for one in ("by_position", "orders") if one in own}
    now = kept_of(job).get(ARGUMENTS, {"payload": job.payload, "more": more})
    args = kwargs = None
    if job_type is not None:
        args, kwargs = arguments_of(job_type, now["payload"], now["more"])
        if "upstream" in own and ARGUMENTS not in kept_of(job):
            before = Dependency.objects.using(conf().database).filter(child=job.pk)
            parents = Job.objects.using(conf().database).filter(pk__in=before.values("parent"))
            results = [revived(result_in(one)) for one in parents.order_by("pk")]
            args[0] = results if own["upstream"] == ALL else results[0]
    return {
        "name": job.job_type,
        "args": args,
        "kwargs": kwargs,
        "worker": None if worker is None else hostname(worker.host),
        "retries": max(job.failures - (status in OF_AN_ATTEMPT), 0),
        "queue": job.queue,
    }


def has_failed(job: Job) -> bool:
    """Whether the task failed by itself after a ``revoke``, which lets it run."""
    stored = stored_of(job) if job.force_requested_at is None else {}
    return (stored.get("status"), stored.get("failures")) == (states.FAILURE, job.failures)


def end_of(job: Job) -> float | None:
    return None if job.finished_at is None else job.finished_at.timestamp()


def why_revoked(job: Job) -> str:
    if job.status == JobState.DEAD:
        return "expired"
    if job.force_requested_at is not None:
        return "terminated"
    return job.reason if job.cancel_requested_at is None else "revoked"


def _limit_of(job: Job) -> list[float]:
    """The time limit of a job, as a whole number if it is one."""
    return (
        [] if job.timeout is None else [int(job.timeout) if job.timeout % 1 == 0 else job.timeout]
    )


def error_of(job: Job, run: Run, made: Callable[[Any], Any]) -> Exception | None:
    """What ended an attempt. Celery's trace has given it to the backend, or else the row has its
    class and its text; ``made`` makes it. A ``BaseException`` is not raised in who reads it, which
    it would end too."""
    stored = stored_of(job)
    is_of_run = stored.get("failures") == job.failures and stored.get("status") in OF_AN_ATTEMPT
    if is_of_run and run.outcome != RunState.TIMED_OUT:  # our own exception has ended the task then
        error = made(revived(stored["result"]))
    elif run.error_type in ENDED:
        error = ENDED[run.error_type](job, run.error_message)
    else:
        module, name = _module_of(run.error_type)
        error = made({"exc_module": module, "exc_type": name, "exc_message": [run.error_message]})
    if error is not None and not isinstance(error, Exception):
        error = WorkerLostError(f"{EXITED}: {type(error).__name__}.")
    return error  # type: ignore[no-any-return]


def _code_in(message: str) -> int:
    """The exit code of ``sys.exit()`` whose argument had this text: its own, or 1 for any other."""
    return int(message) if message.isdecimal() else int(message not in ("", "None"))


def _module_of(path: str) -> tuple[str, str]:
    """The module and the qualified name of a class, from its path."""
    module = path
    while "." in module:
        module = module.rpartition(".")[0]
        if module in sys.modules:
            return module, path.removeprefix(f"{module}.")
    module, _, name = path.rpartition(".")
    return module or "builtins", name


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

    def revoke(
        self,
        task_id: Any,
        destination: Any = None,
        terminate: bool = False,
        signal: Any = None,
        *more: Any,
        **_: Any,
    ) -> None:
        """Cancel the job of a task, or of several; None is none. One that runs is asked to stop,
        and with ``terminate`` stopped by force. ``destination`` makes no difference, nor does
        ``signal``: no process is sent one, and a warning says so of others than Celery's own."""
        if terminate and signal not in DEFAULT_SIGNALS:
            warnings.warn(
                f"revoke(signal={signal!r}): no process is sent a signal; the task is stopped by "
                "an exception, and a second later by the end of its process",
                RuntimeWarning,
                stacklevel=2,
            )
        for one in maybe_list(task_id) or ():
            job = job_of(str(one))
            if job is None or not cancel(job.pk, force=bool(terminate)):
                continue
            if job.status != JobState.RUNNING and signals.task_revoked.receivers:
                task_revoked(self.app, job)

    def terminate(
        self, task_id: Any, destination: Any = None, signal: Any = None, *more: Any, **_: Any
    ) -> None:
        """:meth:`revoke`, by force."""
        self.revoke(task_id, terminate=True, signal=signal)

    def __getattr__(self, name: str) -> Never:
        hint = f"; use {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"app.control.{name} asks workers of Celery, and there are none{hint}")
