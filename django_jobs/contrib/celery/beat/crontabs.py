"""Converts a crontab of Celery to a cron expression with the same due times. Without an import of
Celery: the import of beat's tables needs none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ....domain.cron import check_cron
from ....domain.cron_text import DAY, HOUR, MINUTE, MONTH, WEEKDAY, Field

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
