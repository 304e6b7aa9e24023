"""Intervals that are counted from an anchor, so that no delay ever adds up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django_jobs.domain.durations import as_seconds

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

    Exact: ``every`` counts in whole microseconds, and real time, whatever local clocks do. Raises
    ``OverflowError`` past the year 9999.
    """
    if anchor.utcoffset() is None or after.utcoffset() is None:
        raise ValueError("an interval needs times with a time zone")
    start, step = anchor.astimezone(UTC), timedelta(seconds=check_every(every))
    passed = (after.astimezone(UTC) - start) // step
    return start + max(passed + 1, 0) * step


def interval_times(anchor: datetime, every: float, after: datetime) -> Iterator[datetime]:
    """All due times after ``after``; they end with the calendar."""
    while True:
        try:
            after = next_interval(anchor, every, after)
        except OverflowError:
            return
        yield after
