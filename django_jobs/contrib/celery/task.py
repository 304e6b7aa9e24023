"""The base class of tasks whose messages are rows."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from celery import _state
from celery.contrib.django.task import DjangoTask
from django.apps import apps

from .hooks import connect, is_connected


class JobsTask(DjangoTask):  # type: ignore[misc]  # Celery has no types
    """The base class of a Celery app's tasks that are run by ``jobworker``:
    ``Celery("proj", task_cls="django_jobs.contrib.celery:JobsTask")``.

    Each task is a job type of its Celery name. What the app sends is enqueued as a row in the
    caller's transaction, and results are read from these rows. Tasks of other base classes in the
    same app are sent the same way.
    """

    abstract = True

    async def adelay(self, *args: Any, **kwargs: Any) -> Any:
        """``delay`` for async code."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(self, *args: Any, **options: Any) -> Any:
        """``apply_async`` for async code."""
        return await sync_to_async(self.apply_async)(*args, **options)

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Connect the app to the tables; register the task. Celery calls it when it binds a task
        to its app."""
        connect(app)
        if apps.models_ready and cls.name is not None:
            from .running.job_types import register

            register(app, cls.name)


def find_tasks() -> None:
    """Import the task modules of all connected apps; register their tasks as job types, and
    declare the schedules of ``beat_schedule``."""
    from .beat.declared import declare
    from .running.job_types import register

    for app in connected():
        app.finalize(auto=True)
        app.loader.import_default_modules()
        for name in list(app.tasks):
            register(app, name)
        declare(app)


def connected() -> list[Any]:
    """The apps of this process whose tasks are rows."""
    return [
        app for app in _state._get_active_apps() if is_connected(app) or _is_to_be_connected(app)
    ]


def seed() -> None:
    """Create the resources for rate limits of tasks."""
    from .running.job_types import seed as seed_of

    for app in connected():
        if app.finalized:  # as of all that were found when Django was set up
            seed_of(app)


def _is_to_be_connected(app: Any) -> bool:
    """Whether tasks of ``app`` derive from :class:`JobsTask`. Asking does not finalize the app."""
    chosen = app.task_cls
    if isinstance(chosen, str):
        return chosen.replace(":", ".") in (
            f"{__package__}.JobsTask",
            f"{__name__}.JobsTask",
        ) or issubclass(app.Task, JobsTask)
    return issubclass(chosen, JobsTask)
