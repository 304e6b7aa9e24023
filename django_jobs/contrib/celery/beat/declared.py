"""Declares the entries of ``beat_schedule`` as schedules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery.schedules import crontab, maybe_schedule, schedule

from .... import registry
from ....api import schedules
from ....domain.schedules import Overlap
from ....exceptions import JobsError
from ..messages.arguments import payload_of
from .crontabs import cron_of

FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

logger = logging.getLogger("django_jobs")


def declare(app: Any) -> None:
    """Declare a schedule for each entry that has an equivalent; the next ``migrate`` writes them.
    Others are logged, and listed by ``jobimport celery --check``."""
    for name, entry in (app.conf.beat_schedule or {}).items():
        try:
            schedules.schedule(name, entry["task"], **_fields(app, entry))
        except (JobsError, LookupError, TypeError, ValueError) as error:
            logger.warning("beat_schedule %r is not a schedule: %s", name, error)


def _fields(app: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``schedule()``. Runs may overlap, as in Celery."""
    job_type, options = registry.get(entry["task"]), entry.get("options") or {}
    payload = payload_of(job_type, entry.get("args") or (), entry.get("kwargs") or {})
    rule = _rule(app, maybe_schedule(entry["schedule"]))
    queue = options.get("queue")
    return {"payload": payload, "queue": queue, "overlap": Overlap.ALLOW.value, **rule}


def _rule(app: Any, given: Any) -> dict[str, Any]:
    if type(given) is crontab:
        row = {field: str(getattr(given, f"_orig_{field}")) for field in FIELDS}
        return {"cron": cron_of(row), "timezone": str(app.timezone)}
    if type(given) is schedule:
        return {"every": given.run_every}
    raise TypeError(f"a {type(given).__name__} is neither a crontab nor an interval")
