"""Converts a periodic task of django-celery-beat to a schedule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Any

from django.core.exceptions import ValidationError

from .... import registry
from ....api.job_type import JobType
from ....api.schedules import request_of
from ....domain.numbers import HIGHEST_PRIORITY
from ....domain.policies import EPOCH, Overlap
from ....domain.schedules import LONGEST_INTERVAL
from ....exceptions import JobsError, QueueFull
from ....models import Schedule
from .crontabs import cron_of

Row = dict[str, Any]

SECONDS = {"days": 86_400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0, "microseconds": 1e-6}
LOWEST_OF_REDIS = 9
CLEANUP = "celery.backend_cleanup"
OF_A_ROW = ("queue", "exchange", "routing_key", "priority")
"""Options of a message that a row has in columns of their names."""
MOMENT = timedelta(microseconds=1)
LOOKBACKS = (60, 3_600, 86_400, 32 * 86_400, 367 * 86_400, 100 * 366 * 86_400)
"""Seconds."""
SEVENTH = re.compile(r"(?<![\w/])7(?!\w)", re.ASCII)
"""A weekday 7, and no step of seven."""


class NotImportable(Exception):
    """The task has no equivalent schedule; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The operator's mapping of task and queue names. ``redis``: 0 is the highest priority."""

    job_types: Mapping[str, str]
    queues: Mapping[str, str]
    redis: bool = False


def read_json(text: Any) -> Any:
    """The value of a column that the database returned as JSON."""
    return None if text is None else json.loads(text)


def translate(task: Row, translation: Translation) -> tuple[Schedule, list[str]]:
    """An unsaved schedule, and notes about what it does not keep of the task, which has the rows of
    its ``crontab``, its ``interval`` and its ``clocked`` under these names.

    Runs may overlap, as in Celery. Raises :class:`NotImportable`.
    """
    job_type = _job_type(task["task"], translation.job_types)
    schedule = Schedule(
        name=task["name"],
        job_type=job_type.name,
        payload_version=job_type.version,
        overlap=Overlap.ALLOW.value,
        **_message(task, job_type, translation),
        **{"enabled": task["enabled"], **_rule(task)},
    )
    try:
        schedule.full_clean(validate_unique=False, validate_constraints=False)
        request_of(schedule)
    except QueueFull:
        pass  # there may be room when the schedule is due
    except ValidationError as error:
        raise NotImportable("; ".join(error.messages)) from None
    except JobsError as error:
        raise NotImportable(str(error)) from None
    return schedule, _notes(task, schedule, job_type)


def _job_type(task: str, mapping: Mapping[str, str]) -> JobType[..., Any]:
    if task in mapping:
        return registry.get(mapping[task])
    if task == CLEANUP:
        raise NotImportable(
            "it is Celery's clean-up task; workers delete finished jobs by their retention"
        )
    last = task.rpartition(".")[2]
    matches = [name for name in registry.names() if name.rpartition(".")[2] == last]
    if task in matches:
        matches = [task]
    if len(matches) == 1:
        return registry.get(matches[0])
    which = f"{' and '.join(matches)} are" if matches else "no job type is"
    raise NotImportable(f"{which} called {last!r}; choose one with --map {task}=JOB_TYPE")


def _message(task: Row, job_type: JobType[..., Any], translation: Translation) -> Row:
    queue = task.get("queue") or ""
    queue = translation.queues.get(queue, queue)
    if (app := _app_of(job_type)) is not None:
        return _sent(app, job_type.name, {**task, "queue": queue})
    arguments, keywords = _arguments(task, partial(json.loads, object_hook=_plain))
    try:
        payload = job_type.bind(*arguments, **keywords)
    except JobsError as error:
        raise NotImportable(str(error)) from None
    return {
        "payload": payload,
        "queue": queue,
        "priority": _priority(task.get("priority"), translation.redis),
    }


def _app_of(job_type: JobType[..., Any]) -> Any:
    """The Celery app whose task the job type is; None for one that was declared with ``@job``."""
    return getattr(job_type.handler, "celery_app", None)


def _sent(app: Any, name: str, task: Row) -> Row:
    """What an entry of ``beat_schedule`` with the same arguments and options sends."""
    from kombu.utils.json import loads

    from .declared import message

    arguments, keywords = _arguments(task, loads)
    given = {option: task.get(option) for option in OF_A_ROW}
    given |= {
        "expires": task.get("expire_seconds"),
        "headers": _loaded(task, "headers", {}, json.loads),
    }
    options = {option: value for option, value in given.items() if value not in (None, "", {})}
    entry = {"task": name, "args": arguments, "kwargs": keywords, "options": options}
    try:
        sent = message(app, entry)
    except Exception as error:  # of a router too, which is code of the project
        raise NotImportable(str(error)) from None
    return {**sent, "queue": sent["queue"] or ""}


def _arguments(task: Row, loads: Callable[[str], Any]) -> tuple[list[Any], Row]:
    arguments, keywords = _loaded(task, "args", [], loads), _loaded(task, "kwargs", {}, loads)
    if not isinstance(arguments, list) or not isinstance(keywords, dict):
        raise NotImportable("args must be a JSON list and kwargs a JSON object")
    return arguments, keywords


def _loaded(task: Row, column: str, empty: Any, loads: Callable[[str], Any]) -> Any:
    try:
        return loads(task.get(column) or "null") or empty
    except NotImportable:
        raise
    except Exception as error:  # of an encoded type, which may raise anything
        raise NotImportable(f"{column} is not JSON: {error}") from None


def _plain(value: Row) -> Row:
    """Refuse Celery's encoding of types that JSON lacks, such as a date."""
    if {"__type__", "__value__"} <= value.keys():
        raise NotImportable(
            f"its arguments contain a {value['__type__']}, which JSON cannot represent"
        )
    return value


def _rule(task: Row) -> Row:
    if task.get("solar_id") is not None:
        raise NotImportable("it is a solar schedule, which has no cron expression")
    starts_at, expires = _moment(task, "start_time"), _moment(task, "expires")
    # Celery does not run a task at its expiry time itself.
    rule: Row = {"starts_at": starts_at, "ends_at": expires and expires - MOMENT}
    if task.get("one_off"):
        rule["max_jobs"] = 1
        if task.get("total_run_count"):
            rule["enabled"] = False  # as beat does at its next look
    crontab, period = task.get("crontab"), task.get("interval")
    if crontab is not None:
        try:
            rule |= {"cron": cron_of(crontab), "timezone": crontab.get("timezone") or "UTC"}
        except ValueError as error:
            raise NotImportable(str(error)) from None
    elif period is not None and period["period"] in SECONDS:
        rule["every"] = period["every"] * SECONDS[period["period"]]
        # Counted from the last run, so that a daily task keeps its time of day.
        last = _moment(task, "last_run_at")
        if last is not None:
            last = last.replace(microsecond=0)
            rule["starts_at"] = max(last, starts_at) if starts_at else last
    elif task.get("clocked") is not None:
        at = _moment(task["clocked"], "clocked_time")
        if expires is not None and at is not None and at >= expires:
            raise NotImportable(f"it expires at {expires}, before its time, {at}")
        rule |= {"every": LONGEST_INTERVAL, "starts_at": at, "ends_at": at, "max_jobs": 1}
    else:
        raise NotImportable("it has neither a crontab nor an interval, and no time")
    return rule


def missed(schedule: Schedule, task: Row, now: datetime) -> datetime | None:
    """The latest due time since the last run of the row, which beat would make up for; None if
    there is none. Beat counts a row that never ran from its last change, or from its start."""
    last = _moment(task, "last_run_at") or _moment(task, "date_changed")
    if not schedule.enabled or last is None:
        return None
    if task.get("clocked") is not None or (task.get("start_time") and not task.get("last_run_at")):
        last = EPOCH
    for seconds in LOOKBACKS:  # few due times are in any of them but not in the one before
        since = max(now - timedelta(seconds=seconds), last)
        due = list(takewhile(lambda at: at <= now, schedule.rule.due_times(since)))
        if due or since == last:
            return due[-1] if due else None
    return None


def _moment(task: Row, column: str) -> datetime | None:
    text = task.get(column)
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise NotImportable(f"{column} is {text}, which is not a valid date") from None


def _priority(priority: int | None, redis: bool) -> int | None:
    """The priority of a job. RabbitMQ delivers the highest number first, Redis the lowest one.

    A message without a priority counts as 0 with both, and so does a job.
    """
    if priority is None:
        return None
    return -min(priority, LOWEST_OF_REDIS) if redis else min(priority, HIGHEST_PRIORITY)


def _notes(task: Row, schedule: Schedule, job_type: JobType[..., Any]) -> list[str]:
    left_out = ["description"]
    if _app_of(job_type) is None:
        left_out = ["exchange", "routing_key", "headers", *left_out]
    omitted = [
        name.replace("_", " ") for name in left_out if task.get(name) not in (None, "", "{}")
    ]
    notes = []
    crontab = task.get("crontab")
    if crontab is not None and SEVENTH.search(str(crontab["day_of_week"])):
        notes.append("weekday 7 is a Sunday here; Celery beat has never run this task")
    if omitted:
        are = "is" if len(omitted) == 1 else "are"
        notes.append(f"its {', '.join(omitted)} {are} not imported")
    expire = task.get("expire_seconds")
    if expire is not None and _app_of(job_type) is None and job_type.max_age != expire:
        notes.append(
            f"its jobs do not expire after {expire} s: declare {job_type.name} with max_age"
        )
    given = task.get("priority")
    if given is not None and schedule.priority is not None and abs(schedule.priority) != given:
        notes.append(f"priority {given} becomes {schedule.priority}")
    return notes
