"""Schedules as an operator names them, and times as an operator writes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time

from django.core.management.base import CommandError

from ...conf import conf
from ...domain.cron import UnknownTimezone, check_timezone
from ...domain.hints import did_you_mean
from ...lifecycle.schedules.firing import DATABASE_TIME
from ...models import Backfill, Schedule
from ...models.schedule import ScheduleQuerySet

MOST_COMPARED = 10_000
"""Names that a misspelt one is compared with."""


def all_schedules() -> ScheduleQuerySet:
    """All schedules by name; ``now`` on each is the database's time."""
    return Schedule.objects.using(conf().database).annotate(**DATABASE_TIME).order_by("name")


def named(names: Sequence[str]) -> list[Schedule]:
    """The schedules of these names, in their order. Raises ``CommandError`` for a misspelt one."""
    found = {schedule.name: schedule for schedule in all_schedules().filter(name__in=names)}
    problems = [_unknown(name) for name in dict.fromkeys(names) if name not in found]
    if problems:
        raise CommandError("; ".join(problems))
    return [found[name] for name in dict.fromkeys(names)]


def _unknown(name: str) -> str:
    known = Schedule.objects.using(conf().database).order_by("name").values_list("name", flat=True)
    hint = did_you_mean(name, known[:MOST_COMPARED], most=3)
    return f"no schedule is named {name!r}; {hint or 'jobschedule list shows them all'}"


def backfill_of(number: int) -> Backfill:
    """The backfill of that number. Raises ``CommandError`` where there is none."""
    rows = Backfill.objects.using(conf().database).select_related("schedule")
    found = rows.filter(pk=number).first() if 0 < number < 2**63 else None
    if found is None:
        raise CommandError(f"there is no backfill {number}")
    return found


def moment(text: str, timezone: str, *, end: bool = False) -> datetime:
    """An ISO date or time; without an offset, local time in ``timezone``. A date alone is all of
    its day: where it begins, or with ``end`` where it ends.

    Raises ``CommandError`` for anything else.
    """
    try:
        zone = check_timezone(timezone)
    except UnknownTimezone as error:
        raise CommandError(str(error)) from None
    try:
        found = datetime.fromisoformat(text)
        if len(text) <= len("2026-10-25"):
            found = datetime.combine(found, time.max if end else time.min)
    except ValueError:
        raise CommandError(
            f"{text!r} is no date such as 2026-10-25, nor a time such as 2026-10-25T02:30"
        ) from None
    if not 1970 <= found.year < 9999:
        raise CommandError(f"{text!r}: not a date of the calendar from 1970 on")
    return found if found.tzinfo else found.replace(tzinfo=zone)
