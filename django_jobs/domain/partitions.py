"""Which partitions the history needs: days, weeks or months of UTC, without gaps or overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

AHEAD = timedelta(days=7)
"""How far ahead partitions are made. So long may all workers and ``migrate`` be absent before
finished jobs enter the default partition."""


class Period(StrEnum):
    """The length of a partition. Weeks begin on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Span(NamedTuple):
    """A time from ``start`` up to ``end``, which is not part of it."""

    start: datetime
    end: datetime


def start_of(period: Period, moment: datetime) -> datetime:
    """The begin of the period that ``moment`` lies in."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case Period.DAY:
            return day
        case Period.WEEK:
            return day - timedelta(days=day.weekday())
        case Period.MONTH:
            return day.replace(day=1)


def end_of(period: Period, moment: datetime) -> datetime:
    """The end of the period that ``moment`` lies in."""
    start = start_of(period, moment)
    match period:
        case Period.DAY:
            return start + timedelta(days=1)
        case Period.WEEK:
            return start + timedelta(days=7)
        case Period.MONTH:
            return start_of(period, start + timedelta(days=31))


def missing(period: Period, existing: Sequence[Span], now: datetime) -> list[Span]:
    """The partitions to make so that each moment from now to :data:`AHEAD` has one.

    Those that exist may be of another period: new ones begin and end where they do.
    """
    spans: list[Span] = []
    taken = sorted(existing)
    at = start_of(period, now)
    for start, end in [*taken, Span(datetime.max.replace(tzinfo=UTC), at)]:
        while at < start and at <= now + AHEAD:
            until = min(end_of(period, at), start)
            if until > now:
                spans.append(Span(at, until))
            at = until
        at = max(at, end)
    return spans
