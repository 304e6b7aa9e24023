"""What celery beat does that schedules do otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.schedules import crontab, maybe_schedule, schedule

from .finding import Finding, error, note


def findings_in_beat(app: Any) -> Iterator[Finding]:
    """Entries of ``beat_schedule`` that no schedule can express, and what to do with the others."""
    for name, entry in sorted((app.conf.beat_schedule or {}).items()):
        where = f"beat_schedule {name!r}"
        if entry["task"] not in app.tasks:
            yield error(where, f"there is no task {entry['task']!r}")
        kind = type(maybe_schedule(entry["schedule"]))
        if kind not in (crontab, schedule):
            yield error(where, f"is a {kind.__name__}; only crontabs and intervals are possible")
        else:
            yield note(where, "becomes a schedule with the next migrate; beat is not needed")
    scheduler = str(app.conf.beat_scheduler)
    if "django_celery_beat" in scheduler:
        yield note("beat_scheduler", "`manage.py jobschedule import-beat` takes its tables over")
    elif "PersistentScheduler" not in scheduler:
        yield error("beat_scheduler", f"{scheduler} is not used; declare its schedules")
