"""Celery tasks as job types, and the readers of django-celery-beat's tables.

``JobsTask`` is resolved on first use: the readers work where Celery is not installed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.apps import apps

if TYPE_CHECKING:
    from .task import JobsTask

__all__ = ["JobsTask"]


def __getattr__(name: str) -> Any:
    if name != "JobsTask":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .task import JobsTask

    return JobsTask


def autodiscover() -> None:
    """Import the tasks of each Celery app that was imported with ``JobsTask``, and register them as
    job types; and the one that follows django-celery-beat. Does nothing without Celery."""
    if "celery" in sys.modules:
        from .task import find_tasks

        find_tasks()
    if apps.is_installed("django_celery_beat"):
        from .beat import following  # noqa: F401 — registers a job type


def seed() -> None:
    """Create the resources that limit the rates of tasks, after migrate."""
    if "celery" in sys.modules:
        from .task import seed

        seed()
