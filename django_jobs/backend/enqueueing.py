"""From a call of a Task to a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..models import Job
from .declared import POSITIONAL, Declared
from .interface import Task, normalize_json
from .job_task import OF_REQUESTS


def insert(
    declared: Declared,
    task: Task[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    **more: Any,
) -> Job:
    """Write the job of a call of ``task``, a declared Task or its copy for one request. ``more``
    are further options, as :meth:`JobType.using` takes them."""
    args, kwargs = _normal(args, kwargs)
    count = declared.arguments.count(args)
    job_type = declared.request(count)
    options = more if task is declared.task else _changes(declared.task, task) | more
    if options:
        if count and "headers" in options:
            options["headers"] = {**options["headers"], POSITIONAL: count}
        job_type = job_type.using(**options)
    named = declared.arguments.named(args, kwargs, job_type.name)
    if named is None:
        return job_type.enqueue(*args, **kwargs)
    return job_type.enqueue(**named)


def _changes(declared: Task[..., Any], task: Task[..., Any]) -> dict[str, Any]:
    """The options of ``task`` that differ from the declared ones, as ``using()`` takes them."""
    options = {
        name: value
        for name in OF_REQUESTS
        if (value := getattr(task, name, None)) is not None
        and value != getattr(declared, name, None)
    }
    if task.queue_name != declared.queue_name:
        options["queue"] = task.queue_name
    if task.priority != declared.priority:
        options["priority"] = int(task.priority)
    if task.run_after is not None:
        options["run_at"] = task.run_after
    return options


def _normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as JSON has them. Raises ``TypeError`` or ``ValueError`` with the path of one
    that JSON does not have."""
    for name, value in (*((f"args[{at}]", one) for at, one in enumerate(args)), *kwargs.items()):
        try:
            normalize_json(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}, in {name}") from None
    normal: tuple[Any, Any] = normalize_json(args), normalize_json(kwargs)
    return normal
