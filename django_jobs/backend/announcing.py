"""Sends the signals of Tasks."""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from ..domain.states import FINAL, JobState
from ..worker.context.run_context import RunContext
from .declared import find
from .interface import (
    Task,
    TaskResult,
    task_enqueued,
    task_finished,
    task_started,
)
from .results import bare_result, find_result


def announce_enqueue(result: TaskResult[..., Any]) -> None:
    """Send ``task_enqueued``, in the caller's transaction."""
    task_enqueued.send_robust(type(result.task.get_backend()), task_result=result)


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
    signal.send_robust(type(task.get_backend()), task_result=result)
