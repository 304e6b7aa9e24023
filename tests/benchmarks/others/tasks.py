"""The handler as one of Django's Tasks."""

from __future__ import annotations

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task

from .handler import note


@task
def note_task() -> None:
    """Workers find it by its path."""
    note()
