"""Declares the entries of ``beat_schedule`` as schedules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from celery.schedules import crontab, maybe_schedule, schedule
from celery.utils.time import LocalTimezone
from django.conf import settings

from .... import registry
from ....api.schedules import columns_of
from ....conf import conf
from ....domain.hints import hint
from ....domain.policies import Overlap
from ..messages.arguments import scheduled_payload_of
from ..messages.options import DEFAULT_QUEUE, priority_of, routed_to
from ..running.job_types import expires_of, job_type_of
from ..sending.enqueueing import routed
from .crontabs import COLUMNS, cron_of_values

OF_THE_TASK = {"time_limit", "soft_time_limit", "expires", "ignore_result"}
"""Options that the jobs of a schedule have from the task, but for seconds of ``expires``."""
OF_A_MESSAGE = {"task_id", "countdown", "eta", "headers", "shadow"}
"""Options that they cannot have."""
KEYS = ("task", "schedule", "args", "kwargs", "options", "relative", "last_run_at")
"""Those of an entry, as beat takes them."""

logger = logging.getLogger("django_jobs")


class NotASchedule(Exception):
    """The entry has no equivalent schedule; the message says why."""


def declare(app: Any) -> None:
    """Declare a schedule for each entry that has an equivalent; the next ``migrate`` writes them.
    Others are logged, and listed by ``jobimport celery --check``."""
    for name, entry in (app.conf.beat_schedule or {}).items():
        try:
            registry.register_schedule(name, schedule_of(app, name, entry))
        except NotASchedule as problem:
            logger.warning("beat_schedule %r is not a schedule: %s", name, problem)


def schedule_of(app: Any, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a schedule that enqueues what celery beat sends. Runs may overlap, as in
    Celery. Raises :class:`NotASchedule`."""
    for key in entry:
        if key not in KEYS:
            raise NotASchedule(f"it has the unknown key {key!r}{hint(key, KEYS)}")
    if missing := [key for key in ("task", "schedule") if key not in entry]:
        raise NotASchedule(f"it has no {missing[0]!r}")
    try:
        options = {"overlap": Overlap.ALLOW.value, **message(app, entry), **_rule(app, entry)}
        return columns_of(name, entry["task"], options)
    except Exception as error:  # of a router too, which is code of the project
        raise NotASchedule(error) from error


def message(app: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The payload, the queue and the priority of what beat sends. What follows from the task need
    not be stored. Raises ``ValueError`` for an option that no schedule has, or as a send does."""
    if (task := app.tasks.get(entry["task"])) is None:
        raise LookupError(f"there is no task {entry['task']!r}")
    args, kwargs = entry.get("args") or (), entry.get("kwargs") or {}
    own = task._get_exec_options()
    given = {
        option: value
        for option, value in (entry.get("options") or {}).items()
        if value or option not in OF_A_MESSAGE
    }
    if lost := sorted(OF_A_MESSAGE & given.keys()):
        raise ValueError(f"{', '.join(lost)}: no option of a schedule; send the task from another")
    options = routed(app, task.name, args, kwargs, {**own, **given}, task)
    kept = {**own, "expires": expires_of(task), "ignore_result": task.ignore_result}
    expires = options.get("expires")
    in_payload = isinstance(expires, int | float) and kept["expires"] is None
    if in_payload:
        kept["expires"] = expires
    if lost := sorted(one for one in OF_THE_TASK & options.keys() if options[one] != kept[one]):
        raise ValueError(f"{', '.join(lost)}: no option of a schedule; declare the task with it")
    queue = routed_to(app, task.name, options)
    if queue == app.conf.task_default_queue and queue not in conf().queues:
        queue = DEFAULT_QUEUE
    job_type = job_type_of(app, task.name)
    return {
        "payload": scheduled_payload_of(job_type, args, kwargs, expires if in_payload else None),
        "queue": None if queue == DEFAULT_QUEUE == job_type.queue else queue,
        "priority": priority_of(app, options) if "priority" in options else None,
    }


def _rule(app: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    given = entry["schedule"]
    if isinstance(given, int | float | timedelta):
        given = maybe_schedule(given)
    if type(given) is crontab:
        if given.nowfun is not None:
            raise ValueError("its crontab has a nowfun; set the timezone of the app")
        values = [sorted(getattr(given, column)) for column, _ in COLUMNS]
        return {"cron": cron_of_values(values), "timezone": _zone(app)}
    if type(given) is schedule:
        return {"every": given.run_every}
    raise TypeError(f"a {type(given).__name__} is neither a crontab nor an interval")


def _zone(app: Any) -> str:
    """The time zone of the app. That of the machine is Django's, which sets it."""
    zone = app.timezone
    return settings.TIME_ZONE if isinstance(zone, LocalTimezone) else str(zone)
