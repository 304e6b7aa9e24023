"""What is kept of finished jobs: those up to an age, and of the dead ones a number. Which
partitions that needs: days, weeks or months of UTC, without gaps or overlaps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from .numbers import is_whole, seconds_of
from .states import FINAL, JobState

MOST_KEPT = 2**31 - 1


class Kept(NamedTuple):
    """What is kept of one status: jobs up to ``age`` seconds after their end, and only the newest
    ``number`` of them. None is no limit."""

    age: float | None = None
    number: int | None = None


ALL = Kept()

NOT_OF_JOBS = ("runs", "workflows")
"""Keys of the setting that are ages, and no statuses of jobs."""


def kept_by_status(given: Mapping[Any, Any], others: Collection[str] = ()) -> dict[str, Kept]:
    """A retention as people write it, such as ``{"succeeded": "7d", "dead": {"number": 1000}}``.
    It may have the keys ``others`` too, which are left out.

    Raises ``ValueError`` for a value that cannot be read.
    """
    for status in given:
        if status not in FINAL and status not in others:
            known = ", ".join(sorted([*FINAL, *others]))
            raise ValueError(f"its keys may be {known}, not {status!r}")
    return {str(one): _kept(one, value) for one, value in given.items() if one in FINAL}


def _kept(status: str, value: Any) -> Kept:
    if not isinstance(value, Mapping):
        return Kept(age=seconds_of(value))
    if status != JobState.DEAD:
        raise ValueError(f'only dead jobs have a number: write "{status}" with an age, such as 7d')
    for key in value:
        if key not in ("age", "number"):
            raise ValueError(f'the keys of "{status}" may be age, number, not {key!r}')
    number = value.get("number")
    if number is not None and not (is_whole(number) and 1 <= number <= MOST_KEPT):
        raise ValueError(
            f'"number" must be a whole number from 1 to {MOST_KEPT:,}, or None, not {number!r}'
        )
    return Kept(age=seconds_of(value.get("age")), number=number)


AHEAD = timedelta(days=7)
"""How far ahead partitions are made: so long may all workers be absent."""


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
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case Period.DAY:
            return day
        case Period.WEEK:
            return day - timedelta(days=day.weekday())
        case Period.MONTH:
            return day.replace(day=1)


def end_of(period: Period, moment: datetime) -> datetime:
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
