"""What is found in an app: its settings, its tasks, and the code of its project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from celery import _state, signals
from celery.utils.imports import symbol_by_name
from django.core.management.base import CommandError

from .code import files_of, findings_in_files
from .finding import Finding, Level, error, note
from .schedules import findings_in_beat
from .settings import findings_in_settings
from .tasks import findings_in_tasks

NEVER_SENT = (
    *("celeryd_init", "celeryd_after_setup", "user_preload_options"),
    *("worker_before_create_process", "worker_shutting_down", "heartbeat_sent"),
    *("task_unknown", "task_rejected", "beat_init", "beat_embedded_init"),
)
"""Signals of Celery's commands."""
OF_LOGGING = "setup_logging", "after_setup_logger", "after_setup_task_logger"
"""Signals with which Celery's worker sets up its log."""

__all__ = ["Finding", "Level", "apps_of", "files_of", "findings_in_code", "findings_of"]


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
    """The findings in the settings, the tasks and beat's schedule of an app, the errors of each
    kind first."""
    for find in (findings_in_settings, findings_in_worker, findings_in_tasks, findings_in_beat):
        yield from _sorted(find(app))


def findings_in_code(files: Iterable[Path], app: Any) -> Iterator[Finding]:
    """The findings in the code of the project, the errors first."""
    yield from _sorted(findings_in_files(files, app))


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """By their level, and then by their place."""
    return sorted(findings, key=lambda one: (one.level is not Level.ERROR, _place(one.where)))


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return (path, int(line)) if line.isdigit() else (where, 0)


def findings_in_worker(app: Any) -> Iterator[Finding]:
    """What was added to Celery's worker, and is not called without it."""
    for name in NEVER_SENT:
        if getattr(signals, name).receivers:
            yield error(f"signals.{name}", "is never sent: use worker_init or worker_process_init")
    for name in OF_LOGGING:
        if getattr(signals, name).receivers:
            yield note(f"signals.{name}", "is never sent: the project's LOGGING is in force")
    for kind, steps in app.steps.items():
        for step in sorted(map(str, steps)):
            yield error(f"app.steps[{kind!r}]", f"{step} is not run: use worker_init")
