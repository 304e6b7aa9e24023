"""What is found in an app: its settings, its tasks, and its code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import _state
from celery.utils.imports import symbol_by_name
from django.core.management.base import CommandError

from .code import findings_in_code
from .finding import Finding, Level
from .schedules import findings_in_beat
from .settings import findings_in_settings
from .tasks import findings_in_tasks

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
    for find in (findings_in_settings, findings_in_tasks, findings_in_beat, findings_in_code):
        yield from sorted(find(app), key=lambda one: (one.level is not Level.ERROR, one.where))
