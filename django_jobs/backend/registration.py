"""Registers the job types of declared Tasks.

A Task may be declared while Django loads models. Its job type is registered once they are loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from django.apps import apps

from . import declared
from .declared import Arguments, Declared
from .interface import InvalidTask, Task
from .job_task import OF_A_REQUEST, OF_THE_DECLARATION, JobTask

_waiting: list[Declared] = []


def declare(task: Task[..., Any], options: Mapping[str, Any]) -> Declared:
    """Register the job type of a Task at its first validation, with the options of its backend.

    A Task with the same function is a copy for one request. Raises Django's ``InvalidTask`` if the
    options cannot work, or if those of a copy or of its backend differ from the declared ones.
    """
    known = declared.find(task.module_path)
    if known is None or known.task.func is not task.func:
        original = _declaration_of(task)
        _check_declaration(original, task.backend)
        arguments = Arguments.of(original.func, takes_context=original.takes_context)
        known = Declared(original, options, arguments)
        declared.add(known)
        _waiting.append(known)
    if known.task is not task:
        _check_copy(known.task, task)
        if task.backend != known.task.backend and dict(options) != dict(known.options):
            raise InvalidTask(
                f"{task.module_path} is declared for the backend {known.task.backend!r}, and "
                f"workers run it with its OPTIONS, which differ from those of {task.backend!r}: "
                f"declare it with backend={task.backend!r}"
            )
    if _waiting and apps.models_ready and apps.is_installed("django_jobs"):
        register_all()
    return known


def register_all() -> None:
    """Register the job types of the Tasks that were declared before the models were loaded."""
    from .handlers import job_type_of

    while _waiting:
        waiting = _waiting.pop()
        try:
            waiting.job_type = job_type_of(waiting.task, waiting.options, waiting.arguments)
        except (TypeError, ValueError) as error:
            declared.forget(waiting.task.module_path)
            raise InvalidTask(str(error)) from error


def _declaration_of(task: Task[..., Any]) -> Task[..., Any]:
    """The Task in the module, of which ``task`` is a copy. It is there once it is declared."""
    found = getattr(sys.modules.get(task.func.__module__), task.name, None)
    return found if isinstance(found, Task) and found.func is task.func else task


def _check_declaration(task: Task[..., Any], alias: str) -> None:
    if not issubclass(task.get_backend().task_class, JobTask):
        raise InvalidTask(
            f"{task.module_path} is declared for the backend {task.backend!r}, so no worker of "
            f"{alias!r} knows it: declare it with backend={alias!r}"
        )
    for option in ("run_after", *OF_A_REQUEST):
        if getattr(task, option, None) is not None:
            raise InvalidTask(
                f"{task.module_path}: {option} is an option of one request: write "
                f"{task.name}.using({option}=...)"
            )


def _check_copy(task: Task[..., Any], copy: Task[..., Any]) -> None:
    for option in OF_THE_DECLARATION:
        value = getattr(copy, option, None)
        if value is not None and value != getattr(task, option, None):
            raise InvalidTask(
                f"{task.module_path} is declared without {option}={value!r}, and workers run it as "
                "it is declared: give the option there"
            )
