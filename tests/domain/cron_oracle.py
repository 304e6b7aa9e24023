"""When a cron rule is due, found the slow way: by looking at the local clock every minute.

Written from the meaning of the five fields and of the ``dst`` policies. It shares no code and no
idea with ``domain.cron``: no croniter, no ``fold``, no arithmetic with offsets.
"""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
EARLIEST, LATEST = datetime(2005, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


class Tick(NamedTuple):
    """A minute of real time: what the local clock shows, and what it jumped over to get there."""

    instant: datetime
    wall: datetime
    skipped: tuple[datetime, ...]


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> list[Tick]:
    ticks = []
    instant, before = start, (start - MINUTE).astimezone(zone).replace(tzinfo=None)
    while instant < end:
        wall = instant.astimezone(zone).replace(tzinfo=None)
        skipped = []
        while (before := before + MINUTE) < wall:
            skipped.append(before)
        ticks.append(Tick(instant, wall, tuple(skipped)))
        instant, before = instant + MINUTE, wall
    return ticks


def due_times(cron: str, ticks: list[Tick], dst: str = "once") -> list[datetime]:
    rule = Rule(cron)
    due = []
    seen: set[datetime] = set()
    for tick in ticks:
        again = tick.wall in seen
        seen.add(tick.wall)
        fires = rule.fits(tick.wall)
        if rule.every_hour:
            pass
        elif again and dst != "twice":
            fires = False
        elif dst != "skip" and any(rule.fits(wall) for wall in tick.skipped):
            fires = True
        if fires:
            due.append(tick.instant)
    return due


class Rule:
    def __init__(self, cron: str) -> None:
        minute, hour, self.day, month, self.weekday = cron.lower().replace("?", "*").split()
        self.minutes, self.hours = values(minute, 0, 59), values(hour, 0, 23)
        self.months = values(month, 1, 12)
        self.every_hour = self.hours == set(range(24))

    def fits(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.month in self.months
            and self.fits_day(wall)
        )

    def fits_day(self, wall: datetime) -> bool:
        any_day, any_weekday = (text in ("*", "*/1") for text in (self.day, self.weekday))
        if any_day or any_weekday:
            return (any_day or fits_day(self.day, wall)) and (
                any_weekday or fits_weekday(self.weekday, wall)
            )
        return fits_day(self.day, wall) or fits_weekday(self.weekday, wall)


def fits_day(text: str, wall: datetime) -> bool:
    last = calendar.monthrange(wall.year, wall.month)[1]
    if text.endswith("w"):
        wanted = min(int(text[:-1]), last)
        weekdays = [
            day for day in range(1, last + 1) if calendar.weekday(wall.year, wall.month, day) < 5
        ]
        nearest = min(weekdays, key=lambda day: (abs(day - wanted), day))
        return wall.day == nearest
    return any(
        wall.day == last if item == "l" else wall.day in values(item, 1, 31)
        for item in text.split(",")
    )


def fits_weekday(text: str, wall: datetime) -> bool:
    weekday = wall.isoweekday() % 7
    for item in text.split(","):
        if "#" in item:
            name, nth = item.split("#")
            if weekday in values(name, 0, 7) and (wall.day - 1) // 7 + 1 == int(nth):
                return True
        elif item.startswith("l"):
            last = calendar.monthrange(wall.year, wall.month)[1]
            if weekday in values(item[1:], 0, 7) and wall.day > last - 7:
                return True
        elif weekday in values(item, 0, 7):
            return True
    return False


@cache
def values(text: str, low: int, high: int) -> frozenset[int]:
    """The numbers of a list of values, ranges and steps; a range may go round the end."""
    names = WEEKDAYS if (low, high) == (0, 7) else MONTHS if (low, high) == (1, 12) else []
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        top = 6 if high == 7 else high
        if span == "*":
            one, other = low, top
        else:
            first, _, second = span.partition("-")
            one = names.index(first) + low if first in names else int(first)
            other = one
            if second:
                other = names.index(second) + low if second in names else int(second)
            elif step:
                other = top
        span_values = (
            list(range(one, other + 1))
            if one <= other
            else [*range(one, top + 1), *range(low, other + 1)]
        )
        found.update(span_values[:: int(step or 1)])
    return frozenset(value % 7 for value in found) if high == 7 else frozenset(found)


@cache
def transitions(name: str) -> tuple[datetime, ...]:
    """The minutes at which a zone's offset changes, by looking at each day and halving."""
    zone = ZoneInfo(name)
    days = (LATEST - EARLIEST).days
    looks = [EARLIEST + timedelta(days=day) for day in range(days + 1)]
    found = []
    for one, other in pairwise(looks):
        before = one.astimezone(zone).utcoffset()
        if other.astimezone(zone).utcoffset() == before:
            continue
        while other - one > MINUTE:
            middle = one + (other - one) // (2 * MINUTE) * MINUTE
            if middle.astimezone(zone).utcoffset() == before:
                one = middle
            else:
                other = middle
        found.append(other)
    return tuple(found)
