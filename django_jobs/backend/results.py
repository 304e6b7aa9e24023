"""From a job and its runs to a TaskResult, and the signals that carry it."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from django.dispatch import Signal
from django.utils.module_loading import import_string

from .. import exceptions
from ..conf import conf
from ..domain.states import FAILURES, FINAL, JobState, RunState
from ..lifecycle.workflows.results import result_in
from ..models import Job, Run
from ..worker.context.run_context import RunContext
from .declared import POSITIONAL, Declared, find
from .interface import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")

STATUSES = {
    **dict.fromkeys(JobState, TaskResultStatus.READY),
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
NOTHING_YET = dict.fromkeys(one.name for one in fields(TaskResult))
LONGEST_ID = 18
"""Digits. A larger number is no id of PostgreSQL, or of no job for a long time."""


def find_result(result_id: Any, backend: str) -> TaskResult[..., Any]:
    """The result of a Task's job. Raises ``TaskResultDoesNotExist`` for any other id: the job type
    has to be a Task that this process has declared."""
    text = str(result_id)
    is_number = text.isascii() and text.isdecimal() and len(text) <= LONGEST_ID
    number = int(text) if is_number else 0
    job = Job.objects.using(conf().database).filter(pk=number).first() if number else None
    declared = None if job is None else find(job.job_type)
    if job is None or declared is None or str(number) != text:
        raise TaskResultDoesNotExist(result_id)
    return result_of(job, declared, backend)


def result_of(job: Job, declared: Declared, backend: str) -> TaskResult[..., Any]:
    """The result of ``job``, with its runs from the database. They may be pruned before it."""
    runs: Sequence[Run] = ()
    if job.attempt:
        runs = list(Run.objects.using(conf().database).filter(job=job.pk).order_by("attempt"))
    begun: list[Any] = [run.started_at or run.claimed_at for run in runs]
    workers = [str(run.worker_id or "") for run in runs]
    if job.status == JobState.RUNNING:
        begun.append(job.claimed_at)
        workers.append(str(job.worker_id))
    count = job.headers.get(POSITIONAL, 0)
    args, kwargs = declared.arguments.as_given(job.payload, count)
    due = runs[0].available_at if runs else job.available_at
    result: TaskResult[..., Any] = TaskResult(
        task=_as_requested(
            declared.task,
            backend=backend,
            priority=job.priority,
            queue_name=job.queue,
            run_after=due if due != job.created_at else None,
        ),
        id=str(job.pk),
        status=STATUSES[JobState(job.status)],
        enqueued_at=job.created_at,
        started_at=begun[0] if begun else job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=begun[-1] if begun else job.started_at,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=_errors(job, runs),
        worker_ids=workers,
    )
    if job.status == JobState.SUCCEEDED:
        object.__setattr__(result, "_return_value", result_in(job))
    return result


def result_of_holder(job: Job, task: Task[..., Any], backend: str) -> TaskResult[..., Any]:
    """The result of the job that an enqueue of ``task`` returned, which may be of another one: the
    key of a job is unique in its queue. Raises :class:`DuplicateJob` if it is of no Task."""
    declared = find(job.job_type)
    if declared is None:
        raise exceptions.DuplicateJob(
            f"{task.module_path}: job {job.pk} of {job.job_type} holds the idempotency key in "
            f"queue {job.queue}, and is no Task with a result; use another key or queue",
            job,
        )
    return result_of(job, declared, backend)


def bare_result(
    task: Task[P, R],
    job_id: int,
    status: str,
    *,
    enqueued_at: datetime | None = None,
    args: Any = (),
    kwargs: Any = MappingProxyType({}),
) -> TaskResult[P, R]:
    """The result of a job without runs, without a query."""
    values = NOTHING_YET | {
        "task": task,
        "id": str(job_id),
        "status": STATUSES[JobState(status)],
        "enqueued_at": enqueued_at,
        "args": normalize_json(args) if args else [],
        "kwargs": normalize_json(kwargs) if kwargs else {},
        "backend": task.backend,
        "errors": [],
        "worker_ids": [],
    }
    return _unvalidated(TaskResult, values)


def _as_requested(task: Task[..., Any], **changes: Any) -> Task[..., Any]:
    """A copy that is not validated: the queue of a job may have changed since its request."""
    values = {one.name: getattr(task, one.name) for one in fields(task)}
    return _unvalidated(type(task), values | changes)


def _unvalidated(kind: type[D], values: Mapping[str, Any]) -> D:
    """A frozen dataclass with these values of its fields."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _errors(job: Job, runs: Sequence[Run]) -> list[TaskError]:
    """One for each failed run, and one for what ended the job without a failure."""
    errors = [
        TaskError(
            exception_class_path=_path_of(run),
            traceback=run.traceback or f"{run.error_type}: {run.error_message}\n",
        )
        for run in runs
        if run.outcome in FAILURES
    ]
    if job.status == JobState.CANCELLED:
        errors.append(_plain(exceptions.Cancel, job.reason or "cancelled"))
    elif job.status == JobState.DEAD and not errors:
        errors.append(_plain(exceptions.JobsError, job.reason or "dead"))
    return errors


def _plain(kind: type[BaseException], text: str) -> TaskError:
    path = f"{kind.__module__}.{kind.__qualname__}"
    return TaskError(exception_class_path=path, traceback=f"{path}: {text}\n")


def _path_of(run: Run) -> str:
    """The dotted path of the class of a run's error. Names without a module are those of built-in
    exceptions, or of failures without an exception."""
    name = run.error_type
    if "." in name:
        return name
    if run.outcome == RunState.TIMED_OUT:
        name = exceptions.TimeLimitExceeded.__name__
    home = builtins if hasattr(builtins, name) else exceptions
    return f"{home.__name__}.{name if hasattr(home, name) else exceptions.JobsError.__name__}"


def announce_enqueue(result: TaskResult[..., Any]) -> None:
    """Send ``task_enqueued``, in the caller's transaction."""
    task_enqueued.send_robust(_backend_of(result.task), task_result=result)


def announce_start(task: Task[..., Any], run: RunContext) -> None:
    """Send ``task_started``, before the function is called."""
    _send(task_started, task, run.job_id, JobState.RUNNING)


def announce_end(sender: str, *, job_id: int, status: str, **kwargs: Any) -> None:
    """Send ``task_finished``, after the last attempt has been settled and committed."""
    if status in FINAL and (declared := find(sender)) is not None:
        _send(task_finished, declared.task, job_id, status)


def reads_result(signal: Signal) -> bool:
    """Whether to read the result for a signal. Django's own receiver writes a log line with the id,
    the path and the status, which are known."""
    return len(signal.receivers) > 1


def _send(signal: Signal, task: Task[..., Any], job_id: int, status: str) -> None:
    if reads_result(signal):
        result = find_result(job_id, task.backend)
    else:
        result = bare_result(task, job_id, status)
    signal.send_robust(_backend_of(task), task_result=result)


def _backend_of(task: Task[..., Any]) -> type:
    """The class of its backend. Django would make one for each job, because each has a context."""
    kind: type = import_string(task_backends.settings[task.backend]["BACKEND"])
    return kind
