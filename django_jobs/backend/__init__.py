"""Django's Tasks: a Task is a job type, and its results are jobs.

interface     the Tasks interface, of Django or of django-tasks
jobs_backend  JobsBackend
job_task      JobTask, and the decorator task
declared      the declared Tasks, by module path
registration  registers their job types
arguments     their arguments, stored by name
discovery     imports the tasks modules of the apps, if a backend of the settings is this one
handlers      from a Task to a job type
enqueueing    from a call of a Task to a job
results       from a job and its runs to a TaskResult
announcing    the signals of Tasks
backend_checks  what is wrong with a backend of the settings

The names are resolved on first use: Tasks are declared while Django loads apps, and ``discovery``
works without the interface.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job_task import JobTask, task
    from .jobs_backend import JobsBackend

__all__ = ["JobTask", "JobsBackend", "task"]

_HOMES = {"JobsBackend": "jobs_backend", "JobTask": "job_task", "task": "job_task"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
