"""The result backend of a connected app: reads the rows of jobs, and stores nothing."""

from __future__ import annotations

import builtins
import sys
import time
from typing import Any, Never

from celery import states
from celery.backends.base import BaseBackend
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, TimeoutError, WorkerLostError

from ....conf import conf
from ....domain.outcomes import why_not_stored
from ....domain.states import JobState
from ....domain.workflows import Skipped
from ....exceptions import ResultNotStored
from ....models import Job, Progress, Run
from ....models.database import jobs_connection
from ....worker.context.run_context import current_run
from ..messages.arguments import as_result, revived
from ..running.attempts import IGNORED, task_id_of_run
from ..running.checkpoints import META, STATE, keep
from .jobs import is_newer_than_transaction, job_of

OF_THE_JOB = frozenset({states.STARTED, states.RETRY, states.SUCCESS})
ENDED = {
    "Expired": TaskRevokedError("expired"),
    "TimedOut": TimeLimitExceeded(),
    "Crashed": WorkerLostError(),
    "WorkerLost": WorkerLostError(),
}
"""What ``get()`` raises where no exception of the task ended the job, by the class of the error."""

INSTEAD_OF_GROUPS = (
    "jobs are stored, and no groups of them. Keep the ids of its results, and read each with "
    "AsyncResult(id)"
)


class RowsBackend(BaseBackend):  # type: ignore[misc]  # Celery has no types
    """Reads what ``AsyncResult`` asks for from the rows of jobs. The settle of a job stores its
    result, and the retention of its queue says for how long."""

    thread_safe = True
    persistent = False

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        job = job_of(task_id)
        if job is None:
            return {"status": states.PENDING, "result": None}
        meta: dict[str, Any] = {
            "task_id": task_id,
            "status": _state(job),
            "result": None,
            "name": job.job_type,
            "queue": job.queue,
            "retries": job.failures,
            "date_done": job.finished_at,
            "children": [],
        }
        if meta["status"] in (states.STARTED, states.IGNORED) and (own := _own_state(job)):
            return meta | own
        if job.status == JobState.SUCCEEDED:
            why = why_not_stored(job.result, job.reason)
            return meta | {"result": ResultNotStored(why) if why else revived(job.result)}
        if meta["status"] == states.REVOKED and job.status == JobState.CANCELLED:
            return meta | {"result": TaskRevokedError(job.reason)}
        if meta["status"] in states.EXCEPTION_STATES:
            return meta | self._error(job)
        return meta

    def _error(self, job: Job) -> dict[str, Any]:
        """The exception of the last attempt, and its traceback as text; for a step that was
        skipped, those of the step that failed."""
        if job.skipped and (failed := _failed_before(job)) is not None:
            job = failed
        runs = Run.objects.using(conf().database).filter(job=job.pk)
        run = runs.order_by("-attempt").first()
        if run is None:
            return {"result": Exception(job.reason)}
        if (ended := ENDED.get(run.error_type)) is not None:
            return {"result": type(ended)(*ended.args or [run.error_message])}
        module, name = _module_of(run.error_type)
        error = {"exc_module": module, "exc_type": name, "exc_message": run.error_message}
        return {"result": self.exception_to_python(error), "traceback": run.traceback}

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
        try:
            job.wait(timeout)
        except builtins.TimeoutError as error:
            raise TimeoutError(str(error)) from None
        except Job.DoesNotExist:  # deleted meanwhile, so that its id is unknown
            left = timeout and max(timeout - (time.monotonic() - began), 0.0)
            return super().wait_for(task_id, left, *args, **more)
        return self.get_task_meta(task_id)

    def meta_from_decoded(self, meta: dict[str, Any]) -> dict[str, Any]:
        return meta

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **more: Any) -> Any:
        """Keep a state of the task's own, which ``update_state`` reports, for as long as the job
        runs. All others are those of the job."""
        attempt = current_run()
        if state in OF_THE_JOB or attempt is None or task_id != task_id_of_run(attempt):
            return result
        keep(attempt, **{STATE: state, META: as_result(result)})
        return result

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, **more: Any
    ) -> None:
        """Encode the result, which the settle of the job stores. A step has one even if the task
        ignores it, because the next step gets it. Raises ``EncodeError`` for what Celery's
        serializer refuses: the task then fails, as in Celery."""
        attempt, encoded = current_run(), getattr(request, "encoded", None)
        if attempt is None or encoded is None:  # called by apply(), and not by a worker
            return
        if store_result or attempt._attempt.job.workflow_run_id is not None:
            encoded.append(as_result(self.prepare_value(result)))

    def mark_as_failure(self, *args: Any, **more: Any) -> None:
        """Nothing: the settle of the job does, and opens or skips what waits for it."""

    def get_many(self, *args: Any, **more: Any) -> Never:
        raise NotImplementedError(
            "iter_native() and join_native() are not possible: there is no stream of results. Use "
            "join() or get()"
        )

    def _save_group(self, *args: Any) -> Never:
        raise NotImplementedError(f"GroupResult.save() is not possible: {INSTEAD_OF_GROUPS}")

    def _restore_group(self, *args: Any) -> Never:
        raise NotImplementedError(f"GroupResult.restore() is not possible: {INSTEAD_OF_GROUPS}")

    def _delete_group(self, *args: Any) -> Never:
        raise NotImplementedError(f"GroupResult.delete() is not possible: {INSTEAD_OF_GROUPS}")

    def _forget(self, task_id: str) -> None:
        """Nothing: retention deletes a job with its result."""


def _failed_before(job: Job) -> Job | None:
    """The first dead job of the run of a step."""
    steps = Job.objects.using(conf().database).filter(workflow_run=job.workflow_run_id)
    return steps.filter(status=JobState.DEAD).order_by("finished_at").first()


def _own_state(job: Job) -> dict[str, Any] | None:
    """The state that the task has reported with ``update_state``, and its data."""
    progress = Progress.objects.using(conf().database).filter(job=job.pk).first()
    kept = None if progress is None else progress.checkpoint
    if not isinstance(kept, dict) or STATE not in kept:
        return None
    return {"status": kept[STATE], "result": revived(kept.get(META))}


def _state(job: Job) -> str:
    """The state of a task, by the name that Celery has for it."""
    match JobState(job.status):
        case JobState.SUCCEEDED:
            return str(states.SUCCESS)
        case JobState.CANCELLED if job.skipped == Skipped.FAILED:
            return str(states.FAILURE)
        case JobState.CANCELLED:
            return str(states.IGNORED if job.reason.startswith(IGNORED) else states.REVOKED)
        case JobState.DEAD:
            expired = job.last_error.startswith("Expired")
            return str(states.REVOKED if expired else states.FAILURE)
        case JobState.RUNNING:
            return str(states.STARTED)
        case _:
            return str(states.RETRY if job.failures else states.PENDING)


def _module_of(path: str) -> tuple[str, str]:
    """The module and the qualified name of a class, from its path."""
    module = path
    while "." in module:
        module = module.rpartition(".")[0]
        if module in sys.modules:
            return module, path.removeprefix(f"{module}.")
    return "builtins", path
