"""What tasks ask for that jobs do otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from celery import Task

from ....api.validation import LONGEST_NAME
from ..running.job_types import is_acked_on_timeout
from .finding import Finding, error, note

OF_A_WORKER = ("Request", "Strategy", "start_strategy")
"""Attributes of a task that only a worker of Celery uses."""


def findings_in_tasks(app: Any) -> Iterator[Finding]:
    """Options of each task that mean something else, or cannot be kept."""
    for name, task in sorted(app.tasks.items()):
        if not name.startswith("celery."):
            yield from _of(name, task)


def _of(name: str, task: Any) -> Iterator[Finding]:
    if task.serializer != "json":
        yield error(name, f"serializer={task.serializer!r}: a payload is JSON")
    if inspect.iscoroutinefunction(task.run):
        yield error(name, "is async: use asgiref.sync.async_to_sync, or declare it with @job")
    if len(name) > LONGEST_NAME:
        yield error(name, f"its name is longer than {LONGEST_NAME} characters")
    for attribute in OF_A_WORKER:
        if getattr(type(task), attribute) != getattr(Task, attribute):
            yield error(name, f"its base class changes {attribute}, which no worker calls")
    if task.acks_late:
        timed_out = (
            "" if is_acked_on_timeout(task) else ", and after a time-out while retries are left"
        )
        yield note(
            name,
            "acks_late: delivered at least once. It runs again after a crash, at most three times "
            f"in a row{timed_out}",
        )
    else:
        yield note(
            name,
            "no acks_late: delivered at most once. A lost or interrupted task is a dead letter, "
            "which may be replayed",
        )
    if task.time_limit:
        yield note(
            name,
            f"time_limit={task.time_limit:g}: SystemExit is raised in it; its process is killed a "
            "second later, and with --threads the other tasks of that process are interrupted",
        )
    if task.soft_time_limit:
        yield note(
            name,
            f"soft_time_limit={task.soft_time_limit:g}: it is raised at the next step of Python "
            "code, with --prefork also during a sleep or a wait",
        )
    if task.rate_limit:
        yield note(
            name, f"rate_limit={task.rate_limit!r}: of all workers together, not of each one"
        )
