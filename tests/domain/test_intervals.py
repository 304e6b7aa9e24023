"""Anchored intervals: no drift, whatever is late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.schedules import (
    LONGEST_INTERVAL,
    check_every,
    interval_times,
    next_interval,
)

ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)
moments = st.datetimes(
    datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC), allow_imaginary=False
)
lengths = st.one_of(
    st.floats(1, LONGEST_INTERVAL), st.integers(1, 86_400), st.sampled_from([0.1 + 0.9, 1.1, 3.3])
)


@pytest.mark.parametrize(
    "every, after, expected",
    [
        (3600, ANCHOR - timedelta(days=400), ANCHOR),
        (3600, ANCHOR - timedelta(microseconds=1), ANCHOR),
        (3600, ANCHOR, ANCHOR + timedelta(hours=1)),
        (3600, ANCHOR + timedelta(minutes=61), ANCHOR + timedelta(hours=2)),
        (1.1, ANCHOR + timedelta(days=1), ANCHOR + timedelta(microseconds=78_546 * 1_100_000)),
    ],
)
def test_the_first_due_time_after_a_moment(
    every: float, after: datetime, expected: datetime
) -> None:
    assert next_interval(ANCHOR, every, after) == expected


@given(moments, lengths, moments)
def test_the_next_interval_is_the_first_after_a_time(
    anchor: datetime, every: float, after: datetime
) -> None:
    due = next_interval(anchor, every, after)
    step = timedelta(seconds=every)
    assert due > after
    assert due == anchor or due - step <= after
    assert (due - anchor) % step == timedelta()
    assert due >= anchor


@given(moments, lengths, moments)
def test_intervals_are_equally_spaced(anchor: datetime, every: float, after: datetime) -> None:
    first, *others = islice(interval_times(anchor, every, after), 5)
    step = timedelta(seconds=every)
    assert others == [first + count * step for count in range(1, 5)]


def test_an_interval_ignores_changes_of_the_local_clock() -> None:
    anchor = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Paris"))
    due = next_interval(anchor, 86_400, anchor)
    assert due.astimezone(ZoneInfo("Europe/Paris")).hour == 13
    assert due.tzinfo is UTC


def test_interval_times_end_with_the_calendar() -> None:
    late = datetime(9999, 12, 30, tzinfo=UTC)
    assert len(list(interval_times(late, 86_400, late))) == 1
    with pytest.raises(OverflowError):
        next_interval(late, 7 * 86_400, late)


def test_times_without_a_zone_are_refused() -> None:
    for anchor, after in ((datetime(2026, 1, 1), ANCHOR), (ANCHOR, datetime(2026, 1, 1))):
        with pytest.raises(ValueError, match="time zone"):
            next_interval(anchor, 60, after)


@pytest.mark.parametrize(
    "given_as, seconds",
    [
        (1, 1.0),
        (0.1 + 0.9, 1.0),
        (90, 90.0),
        (Decimal("1.5"), 1.5),
        (timedelta(days=366), LONGEST_INTERVAL),
    ],
)
def test_an_interval_is_returned_in_seconds(given_as: Any, seconds: float) -> None:
    assert check_every(given_as) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 0.999, float("nan"), float("inf"), -float("inf"), 10**400, LONGEST_INTERVAL + 1),
        *(True, False, None, "60", b"60", [], object(), Decimal("NaN"), timedelta(days=367)),
    ],
)
def test_invalid_intervals_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="an interval is"):
        check_every(value)
    with pytest.raises(ValueError, match="an interval is"):
        next_interval(ANCHOR, value, ANCHOR)
