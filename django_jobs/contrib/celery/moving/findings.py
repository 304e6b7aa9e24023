"""What is found in an app: its settings, its tasks, and its code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import _state, signals
from celery.utils.imports import symbol_by_name
from django.core.management.base import CommandError

from .code import findings_in_code
from .finding import Finding, Level, error
from .schedules import findings_in_beat
from .settings import findings_in_settings
from .tasks import findings_in_tasks

NEVER_SENT = (
    *("celeryd_init", "celeryd_after_setup", "setup_logging"),
    *("after_setup_logger", "after_setup_task_logger", "user_preload_options"),
    *("worker_before_create_process", "worker_shutting_down", "heartbeat_sent"),
    *("task_unknown", "task_rejected", "beat_init", "beat_embedded_init"),
)
"""Signals of Celery's commands."""

__all__ = ["Finding", "Level", "apps_of", "findings_of"]


def apps_of(path: str | None) -> list[Any]:
    """The app of this path, or else all that were imported. Their tasks are imported."""
    if path is not None:
        try:
            apps = [symbol_by_name(path)]
        except (ImportError, AttributeError) as error:
            raise CommandError(f"--app {path}: {error}") from None
    else:
        apps = [app for app in _state._get_active_apps() if app.main not in (None, "default")]
    if not apps:
        raise CommandError("no Celery app was imported; name it, as in --app proj.celery:app")
    for app in apps:
        app.loader.import_default_modules()
        app.finalize(auto=True)
    return apps


def findings_of(app: Any) -> Iterator[Finding]:
    """All findings of an app, the errors of each kind first."""
    for find in (
        *(findings_in_settings, findings_in_worker, findings_in_tasks),
        *(findings_in_beat, findings_in_code),
    ):
        yield from sorted(find(app), key=lambda one: (one.level is not Level.ERROR, one.where))


def findings_in_worker(app: Any) -> Iterator[Finding]:
    """What was added to Celery's worker, and is not called without it."""
    for name in NEVER_SENT:
        if getattr(signals, name).receivers:
            yield error(
                f"signals.{name}", "is never sent: use worker_init, worker_process_init or LOGGING"
            )
    for kind, steps in app.steps.items():
        for step in sorted(map(str, steps)):
            yield error(f"app.steps[{kind!r}]", f"{step} is not run: use worker_init")
