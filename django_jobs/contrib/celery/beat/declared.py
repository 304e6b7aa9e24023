"""Declares the entries of ``beat_schedule`` as schedules."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from celery.schedules import crontab, maybe_schedule, schedule
from celery.utils.time import LocalTimezone
from django.conf import settings

from .... import registry
from ....api.schedules import columns_of
from ....conf import conf
from ....domain.cron import check_cron
from ....domain.cron_text import DAY, HOUR, MINUTE, MONTH, WEEKDAY, Field
from ....domain.schedules import Overlap
from ..messages.arguments import scheduled_payload_of
from ..messages.options import DEFAULT_QUEUE, priority_of, routed_to
from ..running.job_types import expires_of, job_type_of
from ..sending.enqueueing import routed

COLUMNS = (
    ("minute", MINUTE),
    ("hour", HOUR),
    ("day_of_month", DAY),
    ("month_of_year", MONTH),
    ("day_of_week", WEEKDAY),
)
ITEM = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d{1,4}))?", re.ASCII)
WEEK = 7


def cron_of(crontab: Mapping[str, Any]) -> str:
    """The five fields of a row of ``django_celery_beat_crontabschedule``.

    Each field is expanded by Celery's rules and then rewritten, because Celery's names, steps and
    ranges that wrap around mean something else in cron. Raises ``ValueError`` if the field is
    invalid or cron has no equivalent.
    """
    return cron_of_values(_values(field, str(crontab[column])) for column, field in COLUMNS)


def cron_of_values(values: Iterable[list[int]]) -> str:
    """The cron expression of the sorted values of each field, in the order of :data:`COLUMNS`.
    Raises ``ValueError`` if cron has no equivalent."""
    minute, hour, day, month, weekday = values
    nth = ""
    if len(day) < 31 and len(weekday) < WEEK:
        nth = _nth_weekdays(day, weekday)
    fields = [
        _text(MINUTE, minute),
        _text(HOUR, hour),
        "*" if nth else _text(DAY, day),
        _text(MONTH, month),
        nth or _text(WEEKDAY, weekday),
    ]
    cron = " ".join(fields)
    check_cron(cron)
    return cron


def _values(field: Field, text: str) -> list[int]:
    """The values of a field by Celery's rules. 7 is a Sunday, as in django-celery-beat."""
    values: set[int] = set()
    try:
        for item in text.replace(" ", "").lower().split(","):
            values.update(_item(field, item))
    except ValueError as error:
        raise ValueError(f"{field.name} {text!r}: {error}") from None
    return sorted({value % WEEK for value in values} if field is WEEKDAY else values)


def _item(field: Field, item: str) -> list[int]:
    parts = ITEM.fullmatch(item)
    step = int(parts[4] or 1) if parts else 0
    if parts is None or step == 0 or (parts[4] and not parts[1] and not parts[3]):
        raise ValueError(f"{item!r} is not valid in a crontab of Celery")
    every = list(range(field.low, field.high + 1))
    if not parts[1]:
        low = _number(field, parts[2])
        high = _number(field, parts[3]) if parts[3] else low
        if low <= high:
            every = list(range(low, high + 1))
        else:  # wraps around
            every = every[low - field.low :] + every[: high - field.low + 1]
    return every[::step]


def _number(field: Field, word: str) -> int:
    """The value of a word. As in Celery, only the first three letters of a name count."""
    return field.number(word if word.isdigit() else word[:3])


def _nth_weekdays(day: list[int], weekday: list[int]) -> str:
    """The weekdays of one week of the month, such as the first Monday.

    In Celery both day fields must match, in cron one of them. Only a whole week of the month can
    be expressed in both. Raises ``ValueError`` for any other days.
    """
    number, rest = divmod(day[0], WEEK)
    if rest != 1 or number > 3 or day != list(range(day[0], day[0] + WEEK)):
        raise ValueError(
            "it restricts both the day of the month and the day of the week; Celery requires both "
            "to match, cron only one"
        )
    return ",".join(f"{value}#{number + 1}" for value in weekday)


def _text(field: Field, values: list[int]) -> str:
    """The shortest form of a field: ``*``, a step, or a list of ranges."""
    every = list(range(field.low, field.high + 1))
    if values == every:
        return "*"
    if len(values) > 2:
        step = values[1] - values[0]
        if values == every[::step]:
            return f"*/{step}"
        if step > 1 and len(values) > 4 and values == list(range(values[0], values[-1] + 1, step)):
            return f"{values[0]}-{values[-1]}/{step}"
    return ",".join(_ranges(values))


def _ranges(values: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]


OF_THE_TASK = {"time_limit", "soft_time_limit", "expires", "ignore_result"}
"""Options that the jobs of a schedule have from the task, but for seconds of ``expires``."""
OF_A_MESSAGE = {"task_id", "countdown", "eta", "headers", "shadow"}
"""Options that they cannot have."""

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
    try:
        options = {"overlap": Overlap.ALLOW.value, **message(app, entry), **_rule(app, entry)}
        return columns_of(name, entry["task"], options)
    except Exception as error:  # of a router too, which is code of the project
        raise NotASchedule(error) from error


def message(app: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The payload, the queue and the priority of what beat sends. What follows from the task need
    not be stored. Raises ``ValueError`` for an option that no schedule has, and what a send does.
    """
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
    given = maybe_schedule(entry["schedule"])
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
