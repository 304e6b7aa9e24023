"""The job type of a Task: its handler gives the function its context, and sends task_started."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

from asgiref.sync import sync_to_async

from ..api.job_type import JobType
from ..api.shortcuts import checked, job
from ..conf import conf
from ..domain.options import TASK_OPTIONS
from ..domain.payload import encode
from ..lifecycle.signalling import receive_ends_of
from ..worker.context.run_context import RunContext, current_run
from .declared import Arguments
from .interface import Task, TaskContext, normalize_json, task_started
from .job_task import check_options, of_options
from .results import announce_end, announce_start, find_result, reads_result


def job_type_of(
    task: Task[..., Any], options: Mapping[str, Any], arguments: Arguments
) -> JobType[..., Any]:
    """Register and return the job type of ``task``. Its own options go before ``options``.

    Raises what :func:`django_jobs.job` raises.
    """
    check_values(options, task.backend)
    own = {name: getattr(task, name, None) for name in TASK_OPTIONS}
    given = {name: value for name, value in own.items() if value is not None}
    chosen = {"max_attempts": 1, **options, **given}
    handler = update_wrapper(_handler(task, arguments), task.func)
    handler.__signature__ = arguments.signature  # type: ignore[attr-defined]
    handler.__annotations__ = {
        one.name: one.annotation
        for one in arguments.signature.parameters.values()
        if one.annotation is not one.empty and one.kind is not one.VAR_KEYWORD
    }
    declare = job(
        name=task.module_path, queue=task.queue_name, priority=int(task.priority), **chosen
    )
    declared = declare(handler)
    for name in (declared.name, *declared.aliases):
        receive_ends_of(name, announce_end)
    return declared


def check_values(options: Any, alias: str) -> None:
    """Raise ``TypeError`` or ``ValueError``, which names the setting, if a Task without options
    cannot have the ``OPTIONS`` of a backend."""
    check_options(options, alias)

    def any_task(**arguments: Any) -> None: ...

    try:
        checked(any_task, "any_task", {"max_attempts": 1, **options})
    except (TypeError, ValueError) as error:
        problem = str(error).removeprefix("@job any_task: ")
        raise type(error)(f"{of_options(alias)}: {problem}") from None


def _handler(task: Task[..., Any], arguments: Arguments) -> Callable[..., Any]:
    function = task.func

    if inspect.iscoroutinefunction(function):

        async def run_async(**payload: Any) -> Any:
            # A thread only for queries: a loop with a thousand such handlers would wait for it.
            queries = task.takes_context or reads_result(task_started)
            begin = sync_to_async(_begin) if queries else _begin_without_queries
            before = await begin(task, current_run())
            args, kwargs = arguments.for_call(payload)
            return _storable(await function(*before, *args, **kwargs))

        return run_async

    def run(**payload: Any) -> Any:
        before = _begin(task, current_run())
        args, kwargs = arguments.for_call(payload)
        return _storable(function(*before, *args, **kwargs))

    return run


def _begin(task: Task[..., Any], run: RunContext | None) -> list[TaskContext[..., Any]]:
    """Send ``task_started``. Returns the first arguments: the context, if the Task takes it."""
    if run is None:
        return []
    announce_start(task, run)
    if not task.takes_context:
        return []
    return [TaskContext(task_result=find_result(run.job_id, task.backend))]


async def _begin_without_queries(
    task: Task[..., Any], run: RunContext | None
) -> list[TaskContext[..., Any]]:
    return _begin(task, run)


def _storable(value: Any) -> Any:
    """A return value as JSON has it. Raises ``TypeError`` or ``ValueError`` if it cannot be stored:
    Django's Tasks fail then."""
    if value is None:
        return None
    try:
        value = normalize_json(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}, in the return value") from None
    encode(value, max_bytes=conf().max_result_bytes, name="the return value")
    return value
