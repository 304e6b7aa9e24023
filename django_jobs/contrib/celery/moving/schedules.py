"""What celery beat does that schedules do otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps

from ..beat.declared import NotASchedule, schedule_of
from .finding import Finding, error, note
from .settings import MISSING, known_queues


def findings_in_beat(app: Any) -> Iterator[Finding]:
    """Entries of ``beat_schedule`` that no schedule can express, and what to do with the others."""
    for name, entry in sorted((app.conf.beat_schedule or {}).items()):
        where = f"beat_schedule {name!r}"
        try:
            columns = schedule_of(app, name, entry)
        except NotASchedule as problem:
            yield error(where, f"will not be a schedule: {problem}")
            continue
        if columns["queue"] and columns["queue"] not in known_queues():
            yield error(where, MISSING.format(columns["queue"]))
        else:
            yield note(where, "becomes a schedule with the next migrate; beat is not needed")
    scheduler = str(app.conf.beat_scheduler)
    if "django_celery_beat" in scheduler or apps.is_installed("django_celery_beat"):
        yield note(
            "beat_scheduler", "`manage.py jobimport celery` has to take the tables of beat over"
        )
    elif "PersistentScheduler" not in scheduler:
        yield error("beat_scheduler", f"{scheduler} is not used; declare its schedules")
