"""The rule of a schedule: its due times, and what happens to missed ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile

from django_jobs.domain.durations import as_seconds

from .cron import BrokenCron, check_cron, check_timezone, times

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The start of intervals without one, so that every hour means on the hour."""

ON_TIME_SECONDS = 60.0
"""A due time that a worker sees within this time is not missed."""

MOST_AT_ONCE = 100
"""Jobs that a schedule makes at one time, at most, by any policy."""

MOST_MISSED_TICKS = 25
"""Missed due times that get separate ticks when a schedule is planned. The others share one."""

INSTANT = timedelta(microseconds=1)


class Overlap(StrEnum):
    """What to do when a due time comes while a job of the schedule is still live."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    ALLOW = "allow"
    CANCEL = "cancel"


class CatchUp(StrEnum):
    """Which of the missed due times still make a job."""

    LATEST = "latest"
    SKIP = "skip"
    AT_MOST = "at_most"
    WINDOW = "window"


class TickState(StrEnum):
    """The outcome of a due time."""

    FIRED = "fired"
    SKIPPED_OVERLAP = "skipped_overlap"
    SKIPPED_LATE = "skipped_late"
    SUPPRESSED = "suppressed"


class Admission(StrEnum):
    """What a due time does while jobs of its schedule are live."""

    START = "start"
    WAIT = "wait"
    REPLACE = "replace"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a schedule is due: by ``cron`` in ``timezone``, or ``every`` n seconds from
    ``starts_at`` or else from 1970. Both bounds are included. ``H`` in a cron expression is
    computed from ``name``."""

    name: str = ""
    cron: str = ""
    every: float | None = None
    timezone: str = "UTC"
    dst: str = "once"
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def check(self) -> None:
        """Raise ``ValueError`` for a rule that is invalid or never due."""
        if bool(self.cron) == (self.every is not None):
            raise ValueError("give either a cron expression or an interval")
        check_timezone(self.timezone)
        if self.every is None:
            check_cron(self.cron, self.name)
        else:
            check_every(self.every)
        if self.starts_at and self.starts_at.year < EPOCH.year:
            raise ValueError(f"it starts before {EPOCH.year}")
        if self.starts_at and self.ends_at:
            if self.ends_at < self.starts_at:
                raise ValueError("it ends before it starts")
            if self.next(self.starts_at - INSTANT) is None:
                raise ValueError("it never comes due between its start and its end")

    def due_times(self, after: datetime) -> Iterator[datetime]:
        """The due times after ``after``, in UTC. Raises ``ValueError`` for an invalid rule."""
        if self.starts_at is not None:
            after = max(after, self.starts_at - INSTANT)
        if self.every is not None:
            due_times = interval_times(self.starts_at or EPOCH, self.every, after)
        elif self.cron:
            # Only H depends on the name. Without it, equal rules share a cache entry.
            name = self.name if "h" in self.cron.lower() else ""
            due_times = _cron_times(self.cron, self.timezone, self.dst, name, after)
        else:
            raise BrokenCron("the rule has neither a cron expression nor an interval")
        ends_at = self.ends_at
        return due_times if ends_at is None else takewhile(lambda due: due <= ends_at, due_times)

    def next(self, after: datetime) -> datetime | None:
        """The first due time after ``after``, or None."""
        return next(self.due_times(after), None)


@lru_cache(maxsize=4_096)
def _first_two(
    cron: str, timezone: str, dst: str, name: str, after: datetime
) -> tuple[datetime, ...]:
    return tuple(islice(times(cron, timezone, after, dst, name or None), 2))


def _cron_times(
    cron: str, timezone: str, dst: str, name: str, after: datetime
) -> Iterator[datetime]:
    """:func:`times` with the first two results cached: firing mostly needs these two, and thousands
    of schedules may share a rule and a due time."""
    first = _first_two(cron, timezone, dst, name, after)
    yield from first
    if len(first) == 2:
        yield from times(cron, timezone, first[1], dst, name or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do about the due times of a schedule.

    ``fire`` make jobs and ``late`` were missed, each ascending. ``more_missed``: others were missed
    that are in neither. ``next_due`` may be in the past; the next plan begins there.
    """

    fire: list[datetime] = field(default_factory=list)
    late: list[datetime] = field(default_factory=list)
    more_missed: bool = False
    next_due: datetime | None


def plan(
    rule: Rule, first: datetime, now: datetime, catch_up: str, limit: float | None = None
) -> Plan:
    """Plan the due times of ``rule`` from ``first`` to ``now``.

    ``limit`` is a number of jobs for ``at_most`` and seconds for ``window``. The work is bounded: a
    rule that is due every second is planned as fast after a year as after a minute.
    """
    if catch_up == CatchUp.WINDOW:
        return _in_window(rule, first, now, limit or 0.0)
    count = 1
    if catch_up == CatchUp.AT_MOST:
        count = int(max(min(limit or 1, MOST_AT_ONCE), 1))
    missed, more_missed, next_due = _newest(rule, first, now, count + MOST_MISSED_TICKS)
    fire, late = missed[-count:], missed[:-count]
    if catch_up == CatchUp.SKIP and fire and (now - fire[-1]).total_seconds() > ON_TIME_SECONDS:
        fire, late = [], missed
    return Plan(fire=fire, late=late, more_missed=more_missed, next_due=next_due)


def _in_window(rule: Rule, first: datetime, now: datetime, seconds: float) -> Plan:
    begin, seconds = first, max(seconds, ON_TIME_SECONDS)
    late: list[datetime] = []
    more_missed = False
    if (now - first).total_seconds() > seconds:
        begin = now - timedelta(seconds=seconds)
        late, more_missed, _ = _newest(rule, first, begin - INSTANT, MOST_MISSED_TICKS)
    fire, next_due = _walk(rule, begin, now, MOST_AT_ONCE)
    return Plan(fire=fire, late=late, more_missed=more_missed, next_due=next_due)


def _newest(
    rule: Rule, first: datetime, until: datetime, count: int
) -> tuple[list[datetime], bool, datetime | None]:
    """The newest ``count`` due times from ``first`` to ``until``, whether there are more, and the
    next one after ``until``.

    If there are many, it guesses where to begin from the distance of the first ones and then
    bisects, so that it does not visit each.
    """
    begin = many = first
    few = until
    guess: datetime | None = None
    while True:
        due_times, next_due = _walk(rule, begin, until, 2 * count)
        if next_due is not None and next_due <= until:
            many = begin
        elif begin > first and len(due_times) < count:
            few = begin
        else:
            return due_times[-count:], begin > first or len(due_times) > count, next_due
        begin = many + (few - many) / 2
        if guess is None:
            guess = until - (due_times[-1] - due_times[0]) * 0.75
            begin = max(guess, begin)


def _walk(
    rule: Rule, begin: datetime, until: datetime, most: int
) -> tuple[list[datetime], datetime | None]:
    """Up to ``most`` due times from ``begin`` to ``until``, and the next one after them."""
    due_times: list[datetime] = []
    for due in rule.due_times(begin - INSTANT):
        if due > until or len(due_times) == most:
            return due_times, due
        due_times.append(due)
    return due_times, None


def admit(policy: str, limit: int | None, live: int, waiting: int) -> Admission:
    """What a due time does while ``live`` jobs of its schedule have not ended; ``waiting`` of them
    have the status ``waiting``.

    ``limit`` is how many may be live with ``allow``, or waiting with ``queue_all``; None is any
    number.
    """
    if live == 0:
        return Admission.START
    match policy:
        case Overlap.QUEUE_ONE:
            return Admission.WAIT if waiting == 0 else Admission.SKIP
        case Overlap.QUEUE_ALL:
            return Admission.WAIT if limit is None or waiting < limit else Admission.SKIP
        case Overlap.ALLOW:
            return Admission.START if limit is None or live < limit else Admission.SKIP
        case Overlap.CANCEL:
            return Admission.REPLACE
        case _:
            return Admission.SKIP


SHORTEST_INTERVAL = 1.0
LONGEST_INTERVAL = 366 * 86_400.0
"""Seconds."""


def check_every(value: object) -> float:
    """Seconds of a number, a ``Decimal`` or a timedelta from a second to 366 days.

    Raises ``ValueError`` for anything else.
    """
    seconds = as_seconds(value) if isinstance(value, int | float | Decimal | timedelta) else None
    if seconds is None:
        raise ValueError(f"an interval is a number of seconds, not {type(value).__name__}")
    if not SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL:
        raise ValueError(f"an interval is from 1 second to 366 days, not {seconds:g} seconds")
    return seconds


def next_interval(anchor: datetime, every: float, after: datetime) -> datetime:
    """The first of ``anchor``, ``anchor + every``, ``anchor + 2 * every`` … past ``after``: UTC.

    Exact: ``every`` is counted in whole microseconds of elapsed time, so that changes of local
    clocks do not matter. Raises ``ValueError`` for a naive time or an invalid interval, and
    ``OverflowError`` past the year 9999.
    """
    if anchor.utcoffset() is None or after.utcoffset() is None:
        raise ValueError("both times of an interval need a time zone")
    start, step = anchor.astimezone(UTC), timedelta(seconds=check_every(every))
    passed = (after.astimezone(UTC) - start) // step
    return start + max(passed + 1, 0) * step


def interval_times(anchor: datetime, every: float, after: datetime) -> Iterator[datetime]:
    """All due times after ``after``, up to the year 9999."""
    while True:
        try:
            after = next_interval(anchor, every, after)
        except OverflowError:
            return
        yield after
