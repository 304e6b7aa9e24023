"""The base class of tasks whose messages are rows, and what connects an app to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from asgiref.sync import sync_to_async
from celery import _state, canvas, signals
from celery.contrib.django.task import DjangoTask
from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import InternalError, transaction

from ... import signals as ours

RESULTS = "django_jobs.contrib.celery.results.backend:RowsBackend"
LONGEST_REPR = 200
REMOTE = "django_jobs.contrib.celery.results.backend:RowsControl"


def connect(app: Any) -> None:
    """Let ``app`` send rows instead of messages, and read results from them."""
    if is_connected(app):
        return
    app.send_task = MethodType(_send_task, app)
    app.backend_cls = RESULTS
    app.control_cls = REMOTE
    # Of several apps the first one: signals of Celery are sent once.
    for name in ("process_started", "process_ended", "attempt_failed"):
        getattr(ours, name).connect(_received_by(name, app), weak=False, dispatch_uid=__name__)
    import_without_checks(app)
    # Each of the three classes sends its tasks itself, and Celery has no hook for that.
    for kind in (canvas._chain, canvas.group, canvas._chord):
        if not hasattr(kind.apply_async, "starts_runs"):
            kind.apply_async = _starting(kind.apply_async)


def import_without_checks(app: Any) -> None:
    """Let Celery's fix-up not run django.setup() and the checks when the tasks of ``app`` are
    imported: we import them while Django is being set up, or when manage.py has run the checks."""
    for fixup in filter(None, app._fixups):
        if (validate := getattr(fixup, "on_import_modules", None)) is not None:
            signals.import_modules.disconnect(validate, sender=app)
            signals.import_modules.disconnect(validate)


def is_connected(app: Any) -> bool:
    return "send_task" in vars(app)


def _send_task(app: Any, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
    from .sending.enqueueing import send

    with _where_a_row_can_be_written(name):
        return send(app, name, args, kwargs, **options)


@contextmanager
def _where_a_row_can_be_written(sent: Any) -> Iterator[None]:
    """Say what to write instead where Django refuses statements. ``sent`` is a name or a canvas."""
    try:
        yield
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(
            f"{_shown(sent)}: async code sends a task with `await task.adelay(...)` or "
            "aapply_async(), and a canvas, or a task of a base class without them, with "
            "`await sync_to_async(it.delay)(...)`"
        ) from None
    except (transaction.TransactionManagementError, InternalError) as error:
        if type(error) is InternalError and getattr(error.__cause__, "sqlstate", "") != "25P02":
            raise  # it is not of a transaction that PostgreSQL alone knows to be aborted
        raise transaction.TransactionManagementError(
            f"{_shown(sent)}: a statement of this transaction failed, so it will be rolled back, "
            "with the rows of tasks too. Have the statement that may fail in a "
            "`with transaction.atomic():` of its own, inside the try, or send the task after the "
            "transaction"
        ) from error


def _shown(sent: Any) -> str:
    return sent if isinstance(sent, str) else repr(sent)[:LONGEST_REPR]


def _received_by(name: str, app: Any) -> Callable[..., None]:
    """A receiver, which is the function of this name in :mod:`.running.attempts`."""

    def receive(sender: str, **fields: Any) -> None:
        from .running import attempts

        getattr(attempts, name)(app, sender, **fields)

    return receive


def _starting(sends: Callable[..., Any]) -> Callable[..., Any]:
    """``apply_async`` of a class of the canvas, which starts a run for connected apps."""

    def apply_async(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        app = self.app
        if not is_connected(app) or app.conf.task_always_eager:
            return sends(self, args, kwargs, **options)
        from .sending.canvas import start

        with _where_a_row_can_be_written(self):
            result = start(app, self, args, kwargs, options)
        if (parent := app.current_worker_task) is not None and options.get("add_to_parent", True):
            parent.add_trail(result)
        return result

    apply_async.starts_runs = True  # type: ignore[attr-defined]
    return apply_async


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
        """Connect the app to the tables; register the task. Celery calls it to bind a task."""
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
