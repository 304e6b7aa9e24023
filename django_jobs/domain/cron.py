"""Validates cron rules and computes their due times, across changes of the local clock."""

from __future__ import annotations

import re
from calendar import monthrange
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django_jobs.domain import cron_text

LONGEST_CRON = 100
LONGEST_TIMEZONE = 64
"""Characters."""
HORIZON = 50
"""Years without a due time until a rule has no more. February 29 on a weekday may be 40 away."""
DST_POLICIES = ("once", "skip", "twice")

EXAMPLE = "Europe/Paris"
BEGINNING = datetime(2000, 1, 1)
COMMON_YEAR = 2001
ZONE_NAME = re.compile(r"[A-Z][\w+-]*(?:/[\w+-]+)*", re.ASCII)


class BrokenCron(ValueError):
    """The cron expression is invalid; the message says why."""


class ZonePrefix(BrokenCron):
    """The line begins with a time zone, which a schedule has apart from its expression."""

    def __init__(self, prefix: str, zone: str) -> None:
        self.prefix, self.zone = prefix, zone
        super().__init__(self.said("write timezone='{}'"))

    def said(self, form: str) -> str:
        """The message, with where the zone belongs: ``form``, for one that exists."""
        try:
            advice = form.format(check_timezone(self.zone))
        except UnknownTimezone:
            advice = f"{form.format(EXAMPLE)} or the like; no time zone is called {self.zone!r}"
        return f"{self.prefix}= is no part of the expression: {advice}"


class UnknownTimezone(ValueError):
    """No time zone has this name."""


def times(
    cron: str, timezone: str, after: datetime, dst: str = "once", hash_id: str | None = None
) -> Iterator[datetime]:
    """The instants after ``after`` at which ``cron`` is due in ``timezone``: UTC, ascending.

    Each depends on the rule alone, not on ``after``: a call with a result as ``after`` starts at
    its successor. Two due times never share an instant. The iterator ends if the next 50 years have
    no due time, or at the year 9999.

    A rule with **fixed hours** names local times. ``dst`` is the policy for changes of the clock:

    - ``"once"``: a local time that the clock skips is due at the first instant after the jump, and
      several of them are due there once; a local time that occurs twice is due the first time only.
      A skipped day (Samoa, 30 December 2011) is a jump too: its 12:00 is due at the following
      00:00, and the next day's 12:00 at 12:00.
    - ``"skip"``: like "once", but a skipped local time is never due.
    - ``"twice"``: like "once", but a local time that occurs twice is due both times.

    A rule **for every hour** (hour field ``*``, or one that lists all 24) keeps its interval and
    ignores ``dst``: it is due at every instant at which the local clock matches, both times in an
    overlap, and a skipped time is never due. ``*/15 * * * *`` is due every 15 minutes,
    ``0 * * * *`` every hour. (Where the clock moves by half an hour, one interval of the latter
    lasts an hour and a half.) ``0 */2 * * *`` has fixed hours.

    If both day fields are given, ``*/2`` included, a day that matches either is due. ``hash_id``,
    the schedule's name, determines the value of ``H``.

    Raises :class:`BrokenCron`, :class:`UnknownTimezone`, and ``ValueError`` for a naive ``after``
    or an unknown ``dst``.
    """
    if after.utcoffset() is None:
        raise ValueError("the time to start after needs a time zone")
    if dst not in DST_POLICIES:
        raise ValueError(f"dst is one of {', '.join(DST_POLICIES)}, not {dst!r}")
    zone = check_timezone(timezone)
    check_cron(cron, hash_id)
    fields = cron_text.split(cron)
    if hash_id is None and any(field.startswith("h") for field in fields):
        raise BrokenCron(f"{cron!r}: H is computed from the schedule's name, which is missing")
    return _times(_expression(fields), zone, after.astimezone(UTC), dst, hash_id)


def _times(
    expression: str, zone: ZoneInfo, after: datetime, dst: str, hash_id: str | None
) -> Iterator[datetime]:
    with suppress(OverflowError):  # past the year 9999
        local = after.astimezone(zone).replace(tzinfo=None)
        first, second = _readings(local, zone)
        # In the first half of an overlap, local times before ``local`` still occur again.
        start = local.replace(second=0, microsecond=0) - (second - first)
        every_hour, walls = _wall_times(expression, start, hash_id)
        gaps, both = dst != "skip" and not every_hour, dst == "twice" or every_hour
        last = after
        for due in _due_times(walls, zone, gaps=gaps, both=both):
            if due > last:
                yield due
                last = due


def _wall_times(
    expression: str, start: datetime, hash_id: str | None
) -> tuple[bool, Iterator[datetime]]:
    """Whether the rule is for every hour, and its local times on a clock that never changes.

    croniter gets no zone, because with one it fires twice in every overlap.
    """
    from croniter import croniter

    rule = croniter(expression, start, datetime, max_years_between_matches=HORIZON, hash_id=hash_id)

    def walk() -> Iterator[datetime]:
        with suppress(ValueError, OverflowError):  # no more of them, or past the year 9999
            while True:
                yield rule.get_next(datetime)

    return rule.expanded[1] == ["*"], walk()


def _due_times(
    walls: Iterator[datetime], zone: ZoneInfo, *, gaps: bool, both: bool
) -> Iterator[datetime]:
    """The instants at which a clock in ``zone`` shows ``walls``: ascending, some of them twice."""
    seconds: deque[datetime] = deque()
    """Second instants of the current overlap."""
    resumes = datetime.min
    for wall in walls:
        if wall < resumes:
            continue  # in a gap that is already handled
        first, second = _readings(wall, zone)
        if first > second:
            first = _end_of_gap(wall, second, first, zone)
            resumes = first.astimezone(zone).replace(tzinfo=None)
            if not gaps:
                continue
        while seconds and seconds[0] <= first:
            yield seconds.popleft()
        yield first
        if both and second > first:
            seconds.append(second)
    yield from seconds


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The instants of a local time, read with the clock before and after a change (PEP 495).

    They are equal on ordinary days, ascending in an overlap, descending in a gap.
    """
    local = wall.replace(tzinfo=zone, fold=0)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


def _end_of_gap(wall: datetime, before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The first instant past ``wall`` in local time: later than ``before``, at most ``after``."""
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // timedelta(seconds=2) * timedelta(seconds=1)
        if middle.astimezone(zone).replace(tzinfo=None) > wall:
            after = middle
        else:
            before = middle
    return after


class LocalTimes(NamedTuple):
    """The local times of a rule: on which days, and at which minutes of each."""

    every_hour: bool
    minutes: tuple[int, ...]
    days: str
    """The expression of the days, at midnight."""
    hash_id: str

    def on(self, day: date) -> bool:
        return day.day in _days_of_month(self.days, self.hash_id, day.year, day.month)


@lru_cache(maxsize=4_096)
def local_times(cron: str, hash_id: str) -> LocalTimes:
    """The local times of a rule. Raises :class:`BrokenCron`."""
    check_cron(cron, hash_id)
    expression = _expression(cron_text.split(cron))
    expanded = _expanded(expression, hash_id)
    all_minutes, all_hours = expanded[0] == ["*"], expanded[1] == ["*"]
    hours = range(24) if all_hours else sorted(map(int, expanded[1]))
    minutes = range(60) if all_minutes else sorted(map(int, expanded[0]))
    days = "0 0 " + expression.split(maxsplit=2)[2]
    return LocalTimes(
        every_hour=all_hours,
        minutes=tuple(60 * hour + minute for hour in hours for minute in minutes),
        days=days,
        hash_id=hash_id if "h" in days else "",
    )


@lru_cache(maxsize=4_096)
def _days_of_month(expression: str, hash_id: str, year: int, month: int) -> frozenset[int]:
    start = datetime(year, month, 1) - timedelta(minutes=1)
    _, walls = _wall_times(expression, start, hash_id)
    of_month = takewhile(lambda wall: (wall.year, wall.month) == (year, month), walls)
    return frozenset(wall.day for wall in of_month)


def clock_change(moment: datetime, timezone: str) -> str | None:
    """What the clock does on the local day of ``moment``: ``"clock goes forward"``, ``"clock goes
    back"``, or None on an ordinary day. A day that begins with a jump counts.

    Raises :class:`UnknownTimezone`.
    """
    zone = check_timezone(timezone)
    try:
        local = moment.astimezone(zone)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        ends = midnight.astimezone(UTC), (midnight + timedelta(days=1)).astimezone(UTC)
        before, after = ((end - timedelta(seconds=1)).astimezone(zone) for end in ends)
    except OverflowError:  # before the year 1 or past 9999
        return None
    change = after.replace(tzinfo=None) - before.replace(tzinfo=None) - (ends[1] - ends[0])
    if not change:
        return None
    return "clock goes forward" if change > timedelta() else "clock goes back"


def check_timezone(name: object) -> ZoneInfo:
    """The zone with this name. Raises :class:`UnknownTimezone`."""
    if not isinstance(name, str):
        raise UnknownTimezone(
            f"a time zone is a name such as Europe/Paris, not {type(name).__name__}"
        )
    shown = name if len(name) <= LONGEST_TIMEZONE else f"{name[:LONGEST_TIMEZONE]}…"
    problem = f"no time zone is called {shown!r}; names look like Europe/Paris or UTC"
    # Lower-case names are refused: localtime and posixrules depend on the machine, and right/…
    # counts leap seconds. Factory is a placeholder.
    if len(name) > LONGEST_TIMEZONE or not ZONE_NAME.fullmatch(name) or name == "Factory":
        raise UnknownTimezone(problem)
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise UnknownTimezone(problem) from error


def check_cron(cron: object, hash_id: str | None = None) -> None:
    """Raise :class:`BrokenCron` for anything but five fields that are due some day.

    Also refuses what is easily misread: ``R`` (a new random time at each call), ``5-5`` (croniter
    reads it as the whole field), ``59/15`` and ``*/90`` (one value only), ranges that wrap around
    with a step, and a weekday such as ``1#1`` together with a day of the month.
    """
    if not isinstance(cron, str):
        raise BrokenCron(f"a cron expression is text, not {type(cron).__name__}")
    if prefix := cron_text.ZONE_PREFIX.match(cron.strip()):
        raise ZonePrefix(prefix[1], prefix[2][:LONGEST_TIMEZONE])
    if len(cron) > LONGEST_CRON:
        raise BrokenCron(
            f"a cron expression has at most {LONGEST_CRON} characters; {cron_text.NO_COMMAND}"
        )
    _check(cron, hash_id or "")


@lru_cache(maxsize=1024)
def _check(cron: str, hash_id: str) -> None:
    try:
        fields = cron_text.split(cron)
        cron_text.check(fields)
        expression = _expression(fields)
        expanded = _expanded(expression, hash_id)
        months = range(1, 13) if expanded[3] == ["*"] else [int(month) for month in expanded[3]]
        _check_nearest_weekday(fields[2], months)
        _expanded(expression, hash_id, strict=True)
        _, walls = _wall_times(expression, BEGINNING, hash_id)
    except ValueError as error:
        text = f"{cron!r} never fires: no such month has that day"
        raise BrokenCron(text if "can never occur" in str(error) else str(error)) from error
    if next(walls, None) is None:
        raise BrokenCron(f"{cron!r} never fires")


def _expanded(expression: str, hash_id: str, *, strict: bool = False) -> list[list[Any]]:
    """The values of each field. Imports croniter, which a process that enqueues does not need."""
    from croniter import croniter

    return croniter.expand(expression, hash_id=hash_id.encode(), strict=strict)[0]


def _check_nearest_weekday(day: str, months: Iterable[int]) -> None:
    """Raise ``ValueError`` for ``31W`` in a month without that day, where croniter takes the last
    weekday; for 29W in February too."""
    if not (nearest := cron_text.NEAREST_WEEKDAY.fullmatch(day)):
        return
    number = int(nearest[1] or nearest[2])
    common = [month for month in sorted(months) if monthrange(COMMON_YEAR, month)[1] < number]
    if common:
        lacking = ", ".join(cron_text.MONTHS[month - 1] for month in common)
        there_is = "in most years there is no" if number == 29 else "there is never a"
        raise ValueError(
            f"day {day!r}: {there_is} day {number} in {lacking}; list the months that have it, or "
            "write L for the last day"
        )


def _expression(fields: list[str]) -> str:
    """The fields for croniter, with ``*/2`` of a day field spelt out: croniter sees no restriction
    in ``0-6`` if the other day field contains a star."""
    minute, hour, day, month, weekday = fields
    day, weekday = day.replace("*/", "1-31/"), weekday.replace("*/", "0-6/")
    return f"{minute} {hour} {day} {month} {weekday}"
