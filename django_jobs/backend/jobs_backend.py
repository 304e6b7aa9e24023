"""The backend of Django's Tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

from django.core.checks import CheckMessage

from .interface import BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist
from .job_task import JobTask
from .registration import declare

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
        from .announcing import announce_enqueue
        from .enqueueing import insert
        from .results import bare_result, result_of_holder

        super().validate_task(task)
        known = declare(task, self.options)
        job = insert(known, task, args, kwargs)
        if job.deduplicated or job.is_final:
            return cast("TaskResult[P, R]", result_of_holder(job, task, self.alias))
        result = bare_result(
            task,
            job.pk,
            job.status,
            enqueued_at=job.created_at,
            args=args,
            kwargs=kwargs,
        )
        announce_enqueue(result)
        return result

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """The result with this id, the id of its job. Raises ``TaskResultDoesNotExist``."""
        from .results import find_result

        return find_result(result_id, self.alias)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What is wrong with the settings of this backend."""
        from .backend_checks import problems

        return list(problems(self))
