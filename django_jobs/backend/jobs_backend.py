"""The backend of Django's Tasks: from a call to a job, and what is wrong with it in ``TASKS``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from ..conf import conf
from ..domain.options import TASK_USING_OPTIONS
from .declared import POSITIONAL, Declared
from .interface import BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist, normalize_json
from .job_task import JobTask, check_options
from .registration import declare

if TYPE_CHECKING:
    from ..models import Job


P = ParamSpec("P")
R = TypeVar("R")


class JobsBackend(BaseTaskBackend):
    """Runs Django's Tasks as jobs. A Task is a job type with the name of its module path.

    Imports no models until they are loaded, because Tasks are declared while Django loads apps.
    """

    task_class = JobTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise Django's ``InvalidTask`` if the Task cannot work; register it if it is new."""
        super().validate_task(task)
        declare(task, self.options)

    def enqueue(
        self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[P, R]:
        """Write a job in the caller's transaction. If it runs at once, as in tests with
        ``IMMEDIATE``, return its finished result.

        If another job holds the idempotency key, its result is returned, with its own Task.

        Raises :class:`PayloadError` or ``TypeError`` for arguments that the function does not take
        or that cannot be stored, :class:`DuplicateJob` if the job that holds the key is of no Task,
        and what :meth:`JobType.enqueue` raises.
        """
        from ..lifecycle.notifying import run_at_once

        if run_at_once is None:
            return self._enqueue(task, args, kwargs)
        with run_at_once.holding():  # task_enqueued comes first
            result = self._enqueue(task, args, kwargs)
        with suppress(TaskResultDoesNotExist):  # kept for no time, it is gone
            result.refresh()
        return result

    def _enqueue(
        self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[P, R]:
        from .results import announce_enqueue, bare_result, result_of_holder

        super().validate_task(task)
        known = declare(task, self.options)
        job = insert(known, task, args, kwargs)
        if job.deduplicated or job.is_final:
            return cast("TaskResult[P, R]", result_of_holder(job, task, self.alias))
        result = bare_result(
            task, job.pk, job.status, enqueued_at=job.created_at, args=args, kwargs=kwargs
        )
        announce_enqueue(result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """The result with this id, the id of its job. Raises ``TaskResultDoesNotExist``."""
        from .results import find_result

        return find_result(result_id, self.alias)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return list(problems(self))


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
        for name in TASK_USING_OPTIONS
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


def problems(backend: JobsBackend) -> Iterator[CheckMessage]:
    """Each problem of a backend: no app, no PostgreSQL, unknown options or queues."""
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed("django_jobs"):
        yield Error(
            f"{where} is a JobsBackend, but django_jobs is not installed.",
            hint='Add "django_jobs" to INSTALLED_APPS.',
            id="django_jobs.E016",
        )
    try:
        vendor = connections[conf().database].vendor
    except ConnectionDoesNotExist:
        vendor = "postgresql"  # E008 reports the alias
    if vendor != "postgresql":
        yield Error(
            f"{where} is a JobsBackend, and the database {conf().database!r} is {vendor}.",
            hint='Point DJANGO_JOBS["DATABASE"] to a PostgreSQL database.',
            id="django_jobs.E017",
        )
    try:
        if apps.is_installed("django_jobs"):
            from .handlers import check_values

            check_values(backend.options, backend.alias)
        else:
            check_options(backend.options, backend.alias)
    except (TypeError, ValueError) as error:
        yield Error(f"{error}.", id="django_jobs.E018")
    for queue in sorted(backend.queues - set(conf().queues)):
        yield Warning(
            f'{where}["QUEUES"] names {queue!r}, which is not in DJANGO_JOBS["QUEUES"].',
            hint="Add it there and run migrate, unless it was made in the admin.",
            id="django_jobs.W003",
        )
