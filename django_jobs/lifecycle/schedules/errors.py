"""Stop schedules: mark them with an error, or pause them because their jobs die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from ...conf import conf
from ...models import Schedule


def mark_error(schedule: int, error: str) -> str:
    """Store ``error`` on a schedule and return its name. It is not fired until the error is
    cleared."""
    return _stop(schedule, error=error[:2_000])


def pause_of_itself(schedule: int, reason: str) -> str:
    """Pause a schedule whose jobs keep dying; return its name."""
    return _stop(schedule, paused_at=Now(), paused_reason=reason[:300])


def retry_errors(job_types: Sequence[str]) -> int:
    """Clear the errors of the schedules of these job types, because a process that has just started
    may have code that can fire them. Skips locked rows. Return how many were cleared."""
    alias = conf().database
    with transaction.atomic(using=alias):
        rows = Schedule.objects.using(alias).exclude(error="").filter(job_type__in=job_types)
        locked = rows.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True)
        return Schedule.objects.using(alias).filter(pk__in=list(locked)).update(error="")


def _stop(schedule: int, **values: Any) -> str:
    rows = Schedule.objects.using(conf().database).filter(pk=schedule)
    rows.update(**values, next_due_at=None, stale=False)
    return rows.values_list("name", flat=True)[0]
