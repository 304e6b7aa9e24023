"""Imports the Tasks of all apps, if ``TASKS`` has a :class:`JobsBackend`."""

from __future__ import annotations

from django.conf import settings
from django.utils.module_loading import autodiscover_modules, import_string

OF_DJANGO = ("django.tasks.", "django_tasks.")


def discover() -> None:
    """Import ``tasks.py`` of every installed app, and register the job types of the Tasks. Imports
    nothing where no backend of the settings is this one."""
    if not is_configured():
        return
    from .registration import register_all

    autodiscover_modules("tasks")
    register_all()


def is_configured() -> bool:
    """Whether a backend of the settings is a :class:`JobsBackend`."""
    backends = getattr(settings, "TASKS", None) or {}
    paths = {str(backend.get("BACKEND")) for backend in backends.values()}
    return any(map(_is_ours, paths))


def _is_ours(path: str) -> bool:
    if path.startswith(OF_DJANGO):
        return False
    try:
        backend = import_string(path)
    except ImportError:  # Django reports it where the backend is used
        return False
    from .jobs_backend import JobsBackend

    return isinstance(backend, type) and issubclass(backend, JobsBackend)
