"""The result backend of a connected app: reads the rows of jobs."""

from __future__ import annotations

import builtins
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from signal import SIGTERM
from typing import Any, Never

from celery import signals, states
from celery.backends.base import BaseBackend
from celery.exceptions import (
    ChordError,
    Retry,
    TaskRevokedError,
    TimeLimitExceeded,
    TimeoutError,
    WorkerLostError,
)
from django.core.exceptions import SynchronousOnlyOperation
from django.db.models import Exists, OuterRef
from kombu.utils.functional import maybe_list

from .... import registry
from ....api.shortcuts import cancel
from ....conf import conf
from ....domain.decisions import TOO_LATE
from ....domain.hints import hint
from ....domain.outcomes import why_not_stored
from ....domain.states import FINAL, LIVE, JobState, RunState
from ....domain.workflows import Skipped
from ....exceptions import JobsError, ResultNotStored
from ....lifecycle.progress import add_to_checkpoint
from ....lifecycle.workflows.results import result_in
from ....models import Dependency, Job, Queue, Run
from ....models.database import jobs_connection
from ....worker.context.run_context import RunContext, current_run
from ..messages.arguments import arguments_of, as_result, revived
from ..messages.options import ALL, job_id_of, read, task_id_of
from ..running.attempts import (
    ARGUMENTS,
    IGNORED,
    STORED,
    hostname,
    keep,
    task_id_of_run,
    task_revoked,
)

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


OF_A_BROADCAST = {
    *("connection", "reply", "timeout", "limit", "callback", "channel", "pattern", "matcher")
}
"""Options of Celery for the message to its workers, and for their answers. There are none."""


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
        **options: Any,
    ) -> list[Any] | None:
        """Cancel the job of a task, or of several; None is none. One that runs is asked to stop,
        and with ``terminate`` stopped by force. ``destination`` makes no difference, nor do
        :data:`OF_A_BROADCAST` and ``signal``: no process is sent one, and a warning says so of
        others than Celery's own. Raises ``TypeError`` for other options, which Celery passes on to
        workers that do not read them."""
        if unknown := sorted(options.keys() - OF_A_BROADCAST):
            meant = hint(unknown[0], {"destination", "terminate", "signal", *OF_A_BROADCAST})
            raise TypeError(f"revoke() has no option {unknown[0]!r}{meant}")
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
        return [] if options.get("reply") else None

    def terminate(
        self, task_id: Any, destination: Any = None, signal: Any = None, **options: Any
    ) -> list[Any] | None:
        """:meth:`revoke`, by force."""
        return self.revoke(task_id, terminate=True, signal=signal, **options)

    def __getattr__(self, name: str) -> Never:
        hint = f"; use {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"app.control.{name} asks workers of Celery, and there are none{hint}")


OF_A_STARTED_TASK = {"pid", "hostname"}
"""What Celery's trace stores with ``track_started``. Here the row has it."""

INSTEAD_OF_GROUPS = (
    "GroupResult.save(), restore() and delete() are not possible: jobs are stored, and no groups "
    "of them. Keep the ids of its results, and read each with AsyncResult(id)"
)


class RowsBackend(BaseBackend):  # type: ignore[misc]  # Celery has no types
    """Reads what ``AsyncResult`` asks for from the rows of jobs. The settle of a job stores its
    result, and the retention of its queue says for how long. What a row has no column for is kept
    in the job's checkpoint."""

    thread_safe = True
    persistent = False

    def __init__(self, app: Any, **more: Any) -> None:
        super().__init__(app, **{**more, "serializer": "json"})

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        job = job_of(task_id)
        if job is None:
            return {"status": states.PENDING, "result": None}
        return self._meta_of(job, task_id) | self._of_running(task_id)

    def _of_running(self, task_id: str) -> dict[str, Any]:
        """What Celery's trace has given of the task that runs here, which its hooks may read."""
        request = getattr(self.app.current_worker_task, "request", None)
        outcome = getattr(request, "_outcome", None) if task_id == getattr(request, "id", 0) else {}
        if outcome and (stored := outcome.get(STORED)):
            meta = {"status": stored["status"], "result": revived(stored["result"])}
            return dict(self.meta_from_decoded(meta))
        if outcome:
            return {"status": states.SUCCESS, "result": revived(outcome["result"])}
        return {}

    def _meta_of(self, job: Job, task_id: str) -> dict[str, Any]:
        stored, status = stored_of(job), self._state(job)
        meta: dict[str, Any] = {
            "task_id": task_id,
            "status": status,
            "result": None,
            "children": stored.get("children", []) if job.status in FINAL else [],
            "date_done": job.finished_at,
        }
        if job.workflow_run_id is not None and job.status == JobState.SUCCEEDED:
            meta["children"] = [*meta["children"], *steps_after(job, task_id)]
        if _holds(job, stored, status):
            meta |= {"status": stored["status"], "traceback": stored.get("traceback")}
            meta["result"] = revived(stored["result"])
            meta = dict(self.meta_from_decoded(meta))
        elif job.status == JobState.SUCCEEDED:
            why = why_not_stored(job.result, job.reason)
            meta["result"] = ResultNotStored(why) if why else revived(result_in(job))
        elif status == states.REVOKED:
            meta["result"] = TaskRevokedError(why_revoked(job))
        elif status in states.EXCEPTION_STATES:
            meta |= self._error(job)
        elif status == states.STARTED and job.worker is not None:
            meta["result"] = {"pid": job.worker.pid, "hostname": hostname(job.worker.host)}
        if self.app.conf.result_extended and meta["status"] != states.PENDING:
            meta |= extended(job, meta["status"])
        return meta

    def _state(self, job: Job) -> str:
        """The state of a task by its job alone, by the name that Celery has for it."""
        match JobState(job.status):
            case JobState.SUCCEEDED:
                return str(states.SUCCESS)
            case JobState.CANCELLED if job.skipped == Skipped.FAILED or has_failed(job):
                return str(states.FAILURE)
            case JobState.CANCELLED:
                return str(states.IGNORED if job.reason.startswith(IGNORED) else states.REVOKED)
            case JobState.DEAD:
                expired = job.last_error.startswith("Expired") or job.reason == TOO_LATE
                return str(states.REVOKED if expired else states.FAILURE)
            case JobState.RUNNING if self._is_tracked(job.job_type):
                return str(states.STARTED)
            case _:
                return str(states.RETRY if job.failures else states.PENDING)

    def _is_tracked(self, name: str) -> bool:
        task = self.app.tasks.get(name)
        return bool(self.app.conf.task_track_started if task is None else task.track_started)

    def _error(self, job: Job) -> dict[str, Any]:
        """The exception of the last attempt, and its traceback as text; for a step that was
        skipped, those of the step that failed, of which the body of a chord tells as in Celery."""
        if job.skipped and (failed := failed_before(job)) is not None:
            meta = self._error(failed)
            if is_after_several(job):
                reason = f"Dependency {task_id_of(failed.pk)} raised {meta['result']!r}"
                meta["result"] = ChordError(reason)
            return meta
        if (run := last_run(job)) is None:
            return {"result": Exception(job.reason)}
        return {"result": error_of(job, run, self.exception_to_python), "traceback": run.traceback}

    def wait_for(self, task_id: str, timeout: float | None = None, *args: Any, **more: Any) -> Any:
        """Wait until the job has ended, and return its state and result. Its worker wakes this
        thread. Inside ``transaction.atomic()``, and for an id that no job has, this thread looks
        at each ``interval``, as in Celery.

        Raises :class:`ResultNotStored`, and :class:`JobsError` for a job that has not ended and was
        enqueued since the open transaction began: until the commit, no worker would see it.
        """
        meta = self._ended(task_id, timeout, *args, **more)
        if isinstance(meta["result"], ResultNotStored):
            raise meta["result"]
        return meta

    def _ended(self, task_id: str, timeout: float | None, *args: Any, **more: Any) -> Any:
        self._ensure_not_eager()
        began, job = time.monotonic(), job_of(task_id)
        if job is None or (
            jobs_connection().in_atomic_block and not is_newer_than_transaction(job)
        ):
            return super().wait_for(task_id, timeout, *args, **more)
        if (meta := self._meta_of(job, task_id))["status"] in states.READY_STATES:
            return meta
        try:
            job.wait(timeout)
        except builtins.TimeoutError as error:
            raise TimeoutError(str(error)) from None
        except Job.DoesNotExist:  # deleted meanwhile, so that its id is unknown
            left = timeout and max(timeout - (time.monotonic() - began), 0.0)
            return super().wait_for(task_id, left, *args, **more)
        return self.get_task_meta(task_id)

    def store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **more: Any,
    ) -> Any:
        """Keep a state and a result beside those of the job, until it has others: what
        ``update_state`` reports, also of another task, and what ``abort()`` asks.

        In a worker it is committed when this returns, also inside a transaction; elsewhere it is
        part of the caller's. Raises :class:`JobsError` for an id that no job has.
        """
        attempt = current_run()
        if request is not None and request.id == task_id and _is_local(request):
            return result
        is_own = attempt is not None and task_id == task_id_of_run(attempt)
        if is_own and state == states.STARTED and _keys(result) == OF_A_STARTED_TASK:
            return result
        value = {
            "status": state,
            "result": as_result(self.encode_result(result, state)),
            "traceback": None if traceback is None else str(traceback),
        }
        if attempt is not None and is_own:
            kept = {STORED: value | {"failures": attempt._attempt.job.failures}}
            keep(attempt, at_once=True, **kept)
        elif not _store_for_another(task_id, value, attempt):
            raise JobsError(
                f"store_result(): no job has the id {task_id!r}, so nothing can keep it"
            )
        return result

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, **more: Any
    ) -> None:
        """Encode the result, which the settle of the job stores. A step has one even if the task
        ignores it, because the next step gets it. Raises ``EncodeError`` for what Celery's
        serializer refuses: the task then fails, as in Celery."""
        attempt, outcome = current_run(), getattr(request, "_outcome", None)
        if attempt is None or outcome is None:  # called by apply(), and not by a worker
            return
        is_ignored = getattr(request, "ignore_result", False)  # Celery 5.5 asks it here
        if (store_result and not is_ignored) or attempt._attempt.job.workflow_run_id is not None:
            outcome["result"] = as_result(self.prepare_value(result))
        if children := self.current_task_children(request):
            keep(
                attempt, at_once=True, **{STORED: {"status": states.SUCCESS, "children": children}}
            )

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException | None,
        traceback: Any = None,
        request: Any = None,
        store_result: bool = True,
        state: str = states.FAILURE,
        **more: Any,
    ) -> None:
        """Encode the exception, which is kept beside the job. The settle does all else, and opens
        or skips what waits for the job."""
        attempt, outcome = current_run(), getattr(request, "_outcome", None)
        if store_result and attempt is not None and outcome is not None:
            outcome[STORED] = {
                "status": state,
                "result": as_result(self.encode_result(exc, state)),
                "failures": attempt._attempt.job.failures + 1,
                "children": self.current_task_children(request),
            }

    def mark_as_retry(self, *args: Any, **more: Any) -> None:
        """:meth:`mark_as_failure` of an attempt that another one follows."""
        self.mark_as_failure(*args, **{"state": states.RETRY, **more})

    def get_many(self, *args: Any, **more: Any) -> Never:
        raise NotImplementedError(
            "iter_native() and join_native() are not possible: there is no stream of results. Use "
            "join() or get()"
        )

    def _save_group(self, *args: Any) -> Never:
        raise NotImplementedError(INSTEAD_OF_GROUPS)

    _restore_group = _delete_group = _save_group

    def _forget(self, task_id: str) -> None:
        """Nothing: retention deletes a job with its result."""


def _holds(job: Job, stored: dict[str, Any], status: str) -> bool:
    """Whether what was given is newer than what the job itself says, by which it has ``status``."""
    if job.status in FINAL and status != states.IGNORED:
        return "ended" in stored and stored["ended"] == end_of(job)
    is_of_run = stored.get("failures") == job.failures and "status" in stored
    return is_of_run and stored["status"] != states.RETRY  # the job says that too


def _store_for_another(task_id: str, value: dict[str, Any], attempt: RunContext | None) -> bool:
    """Store it with a job that this attempt does not run."""
    job = job_of(task_id)
    if job is None:
        return False
    until = {"ended": end_of(job)} if job.status in FINAL else {"failures": job.failures}
    write = partial(add_to_checkpoint, job.pk, {STORED: value | until})
    if attempt is None:
        return write()
    background = attempt._attempt.reporter.background
    return (
        background.wait(background.submit(write)) or write()
    )  # enqueued since the transaction began


def _is_local(request: Any) -> bool:
    """Whether the task runs where it was called, so that no job is its own."""
    return bool(request.called_directly or request.is_eager)


def _keys(value: Any) -> Any:
    return value.keys() if isinstance(value, dict) else None
