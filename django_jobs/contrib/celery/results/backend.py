"""The result backend of a connected app: reads the rows of jobs."""

from __future__ import annotations

import builtins
import time
from functools import partial
from typing import Any, Never

from celery import states
from celery.backends.base import BaseBackend
from celery.exceptions import ChordError, TaskRevokedError, TimeoutError

from ....domain.decisions import TOO_LATE
from ....domain.outcomes import why_not_stored
from ....domain.states import FINAL, JobState
from ....domain.workflows import Skipped
from ....exceptions import JobsError, ResultNotStored
from ....lifecycle.progress import add_to_checkpoint
from ....lifecycle.workflows.results import result_in
from ....models import Job
from ....models.database import jobs_connection
from ....worker.context.run_context import RunContext, current_run
from ..messages.arguments import as_result, revived
from ..messages.options import task_id_of
from ..running.attempts import IGNORED, STORED, hostname, keep, task_id_of_run
from .jobs import (
    end_of,
    error_of,
    extended,
    failed_before,
    has_failed,
    is_after_several,
    is_newer_than_transaction,
    job_of,
    last_run,
    steps_after,
    stored_of,
    why_revoked,
)

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
