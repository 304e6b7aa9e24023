"""Django's Tasks: a Task is a job type, and its results are jobs.

The names are resolved on first use: Tasks are declared while Django loads apps, and
:func:`discover` works without the interface.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import autodiscover_modules, import_string

if TYPE_CHECKING:
    from .job_task import JobTask, task
    from .jobs_backend import JobsBackend

__all__ = ["JobTask", "JobsBackend", "task"]

OF_DJANGO = ("django.tasks.", "django_tasks.")
_HOMES = {"JobsBackend": "jobs_backend", "JobTask": "job_task", "task": "job_task"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


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
