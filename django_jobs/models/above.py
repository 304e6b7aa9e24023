"""What the methods of models call on higher floors, which models may not import; what they pass."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from django.utils.module_loading import import_string


class JobChanges(TypedDict, total=False):
    """What :meth:`Job.edit <django_jobs.models.Job.edit>` can change. What is left out stays.

    ``payload`` is a whole new payload, arguments by name. ``run_at`` is an aware datetime; one in
    the past means now. ``by`` and ``reason`` are stored with the job.
    """

    payload: Mapping[str, Any]
    queue: str
    priority: int
    run_at: datetime
    by: str
    reason: str


def above(path: str) -> Any:
    """A function of a higher floor, such as ``api.editing.edit_job``. It is imported by the first
    call of the method, so a process that never calls it does not load it."""
    return import_string(f"django_jobs.{path}")
