"""Parses the names and times that an operator types."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, tzinfo

from django.core.management.base import CommandError

from ...conf import conf
from ...domain.cron import UnknownTimezone, check_timezone
from ...domain.hints import did_you_mean
from ...lifecycle.schedules.due import as_read
from ...models import Backfill, Schedule
from ...models.querysets import ScheduleQuerySet

MOST_COMPARED = 10_000
"""Names to compare a misspelt one with."""


def all_schedules() -> ScheduleQuerySet:
    """All schedules, sorted by name. Each has its exceptions, and the database's time as
    ``now``."""
    return Schedule.objects.using(conf().database).annotate(**as_read()).order_by("name")


def named(names: Sequence[str]) -> list[Schedule]:
    """The schedules with these names, in this order. Raises ``CommandError`` for an unknown one."""
    by_name = {schedule.name: schedule for schedule in all_schedules().filter(name__in=names)}
    problems = [_unknown(name) for name in dict.fromkeys(names) if name not in by_name]
    if problems:
        raise CommandError("; ".join(problems))
    return [by_name[name] for name in dict.fromkeys(names)]


def _unknown(name: str) -> str:
    all_names = (
        Schedule.objects.using(conf().database).order_by("name").values_list("name", flat=True)
    )
    hint = did_you_mean(name, all_names[:MOST_COMPARED], most=3)
    return f"no schedule is named {name!r}; {hint or 'run jobschedule list for all names'}"


def backfill_of(number: int) -> Backfill:
    """The backfill with this id. Raises ``CommandError`` if there is none."""
    rows = Backfill.objects.using(conf().database).select_related("schedule")
    backfill = rows.filter(pk=number).first() if 0 < number < 2**63 else None
    if backfill is None:
        raise CommandError(f"there is no backfill {number}")
    return backfill


def moment(text: str, timezone: str, *, end: bool = False) -> datetime:
    """Parse an ISO date or time, or a time as :func:`zone_text` writes it. Without an offset it is
    local time in ``timezone``. A date alone means the start of the day, or its end if ``end``.

    Raises ``CommandError`` for anything else.
    """
    try:
        zone = check_timezone(timezone)
    except UnknownTimezone as error:
        raise CommandError(str(error)) from None
    try:
        parsed = _printed(text, zone) or datetime.fromisoformat(text)
        if len(text) <= len("2026-10-25"):
            parsed = datetime.combine(parsed, time.max if end else time.min)
    except ValueError:
        raise CommandError(
            f"{text!r} is neither a date such as 2026-10-25 nor a time such as 2026-10-25T02:30"
        ) from None
    if not 1970 <= parsed.year < 9999:
        raise CommandError(f"{text!r} is not between the years 1970 and 9998")
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)


def _printed(text: str, zone: tzinfo) -> datetime | None:
    """A time with the name of its zone, which is UTC or ``zone``."""
    local, _, name = text.rpartition(" ")
    with suppress(ValueError):
        if (parsed := datetime.fromisoformat(local)).tzinfo is None:
            for at in (parsed.replace(tzinfo=UTC), parsed.replace(tzinfo=zone)):
                for fold in (0, 1):
                    if (read := at.replace(fold=fold)).tzname() == name:
                        return read
    return None
