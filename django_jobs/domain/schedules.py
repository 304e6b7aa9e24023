"""The rule of a schedule: its due times, and what a due time does while jobs are live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from django_jobs.domain.numbers import as_seconds

from .cron import BrokenCron, check_cron, check_timezone, times
from .policies import EPOCH, Change, Occurrence, Overlap, changed, in_utc, occurrences

MOST_EXCLUDED = 366
"""Dates that a rule excludes, at most."""

INSTANT = timedelta(microseconds=1)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


class TooManyDates(ValueError):
    """The rule excludes too many dates."""


class Admission(StrEnum):
    """What a due time does while jobs of its schedule are live."""

    START = "start"
    WAIT = "wait"
    REPLACE = "replace"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a schedule is due: by ``cron`` in ``timezone``, or ``every`` n seconds from
    ``starts_at`` or else from 1970. Both bounds are included. It is not due on
    ``excluded_dates``, which are dates in ``timezone``. ``H`` in a cron expression is computed from
    ``name``. The bounds are kept in UTC. ``changes`` move some due times, also to behind a bound
    and to an excluded date."""

    name: str = ""
    cron: str = ""
    every: float | None = None
    timezone: str = "UTC"
    dst: str = "once"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    excluded_dates: frozenset[date] = frozenset()
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for name in ("starts_at", "ends_at"):
            if (bound := getattr(self, name)) is not None:
                object.__setattr__(self, name, in_utc(bound))

    @property
    def depends_on_tables(self) -> bool:
        """Whether other time zone tables may give it other due times."""
        return self.timezone != "UTC" and (self.every is None or bool(self.excluded_dates))

    def check(self) -> None:
        """Raise ``ValueError`` for a rule that is invalid or never due."""
        if bool(self.cron) == (self.every is not None):
            raise ValueError("give either a cron expression or every, an interval in seconds")
        check_timezone(self.timezone)
        if self.every is None:
            check_cron(self.cron, self.name)
        else:
            check_every(self.every)
        if self.starts_at and self.starts_at.year < EPOCH.year:
            raise ValueError(f"it starts before {EPOCH.year}")
        if len(self.excluded_dates) > MOST_EXCLUDED:
            raise TooManyDates(f"at most {MOST_EXCLUDED} dates can be excluded")
        if self.starts_at and self.ends_at:
            if self.ends_at < self.starts_at:
                raise ValueError("it ends before it starts")
            if self.next(self.starts_at - INSTANT) is None:
                raise ValueError("it never comes due between its start and its end")

    def due_times(self, after: datetime) -> Iterator[datetime]:
        """The due times after ``after``, in UTC, each once: those that are moved at their new
        time, and those that are skipped too. Raises ``ValueError`` for an invalid rule."""
        due_times = self._by_rule(after)
        if not self.changes:
            return due_times
        return changed(due_times, self.changes, in_utc(after), self.has)

    def has(self, due: datetime) -> bool:
        """Whether ``due`` is a due time by the rule, without its changes."""
        return next(self._by_rule(due - INSTANT), None) == due

    def occurrences(self, due_times: Iterable[datetime]) -> list[Occurrence]:
        """What comes at these times of :meth:`due_times`: several, where one is moved to the time
        of another."""
        if not self.changes:
            return [Occurrence(at, at) for at in due_times]
        return occurrences(due_times, self.changes, self.has)

    def skips(self, at: datetime) -> bool:
        """Whether all that comes at a time of :meth:`due_times` is skipped."""
        return bool(self.changes) and all(one.is_skipped for one in self.occurrences([at]))

    def strays(self, now: datetime) -> list[Change]:
        """The changes ahead that do nothing: theirs is no due time any longer."""
        return [one for one in self.changes if one.last > now and not self.has(one.due)]

    def _by_rule(self, after: datetime) -> Iterator[datetime]:
        after = in_utc(after)
        if self.starts_at is not None:
            after = max(after, self.starts_at - INSTANT)
        due_times = self._not_excluded(after) if self.excluded_dates else self._all(after)
        ends_at = self.ends_at
        return due_times if ends_at is None else takewhile(lambda due: due <= ends_at, due_times)

    def next(self, after: datetime) -> datetime | None:
        return next(self.due_times(after), None)

    def _all(self, after: datetime) -> Iterator[datetime]:
        if self.every is not None:
            return interval_times(self.starts_at or EPOCH, self.every, after)
        if self.cron:
            # Only H depends on the name. Without it, equal rules share a cache entry.
            name = self.name if "h" in self.cron.lower() else ""
            return _cron_times(self.cron, self.timezone, self.dst, name, after)
        raise BrokenCron("the rule has neither a cron expression nor an interval")

    def _not_excluded(self, after: datetime) -> Iterator[datetime]:
        """Those on other dates. Takes one due time of an excluded date, or two on a day on which
        the clock changes."""
        zone = check_timezone(self.timezone)
        while True:
            for due in self._all(after):
                try:
                    if due.astimezone(zone).date() in self.excluded_dates:
                        after = _end_of_date(due, zone) - INSTANT
                        break
                except OverflowError:  # past the year 9999
                    return
                yield due
            else:
                return


def _end_of_date(at: datetime, zone: ZoneInfo) -> datetime:
    """The end of the local date of ``at``, or the next change of the clock if that comes first."""
    local = at.astimezone(zone)
    offset = local.utcoffset()
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0, tzinfo=UTC) + DAY
    same, end = at, midnight - (offset or timedelta())
    if (end - INSTANT).astimezone(zone).utcoffset() == offset:
        return end
    while end - same > SECOND:
        middle = same + (end - same) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            same = middle
        else:
            end = middle
    return end.replace(microsecond=0)


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
