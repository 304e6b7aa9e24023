"""What is found in an app: its settings, its tasks, and the code of its project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from celery import _state
from celery.utils.imports import symbol_by_name
from django.core.management.base import CommandError

from ..hooks import import_without_checks
from .app import findings_in_beat, findings_in_settings, findings_in_tasks, findings_in_worker
from .code import files_of, findings_in_files
from .finding import Finding, Level

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
        import_without_checks(app)
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
