"""Days, weeks and months follow each other without gaps and overlaps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.retention import AHEAD, Period, Span, end_of, missing, start_of

NOW = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)  # a Sunday
MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def day(month: int, number: int) -> datetime:
    return datetime(2026, month, number, tzinfo=UTC)


@pytest.mark.parametrize(
    "period, span",
    [
        (Period.DAY, Span(day(11, 22), day(11, 23))),
        (Period.WEEK, Span(day(11, 16), day(11, 23))),
        (Period.MONTH, Span(day(11, 1), day(12, 1))),
    ],
)
def test_a_period_begins_at_midnight_of_its_first_day_in_utc(period: Period, span: Span) -> None:
    assert (start_of(period, NOW), end_of(period, NOW)) == span
    east = NOW.astimezone(tz=datetime.strptime("+1400", "%z").tzinfo)
    assert start_of(period, east) == span.start


def test_a_week_ahead_takes_eight_days() -> None:
    spans = missing(Period.DAY, [], NOW)
    assert [span.start for span in spans] == [day(11, 22) + timedelta(days=n) for n in range(8)]


def test_of_another_period_new_ones_begin_where_the_old_ones_end() -> None:
    days = missing(Period.DAY, [], NOW)
    (rest,) = missing(Period.MONTH, days, NOW + timedelta(hours=12))
    assert rest == Span(day(11, 30), day(12, 1))


def test_a_gap_is_filled_up_to_the_next_one() -> None:
    there = [Span(day(11, 24), day(11, 25))]
    assert missing(Period.WEEK, there, NOW) == [
        Span(day(11, 16), day(11, 23)),
        Span(day(11, 23), day(11, 24)),
        Span(day(11, 25), day(11, 30)),
    ]


def test_days_that_are_taken_part_a_period() -> None:
    days = [Span(day(11, number), day(11, number + 1)) for number in (5, 24)]
    assert missing(Period.MONTH, days, NOW) == [
        Span(day(11, 6), day(11, 24)),
        Span(day(11, 25), day(12, 1)),
    ]


@given(
    st.lists(st.tuples(st.sampled_from(Period), MOMENTS), max_size=4),
    st.sampled_from(Period),
    MOMENTS,
)
def test_every_moment_of_the_next_week_is_in_one_partition(
    earlier: list[tuple[Period, datetime]], period: Period, now: datetime
) -> None:
    """Whatever periods were set before, and however long nothing was made."""
    spans: list[Span] = []
    for one, moment in [*earlier, (period, now)]:
        spans += missing(one, spans, moment)
    spans.sort()
    assert all(span.start < span.end for span in spans)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    for hours in range(0, 7 * 24 + 1, 6):
        moment = now + timedelta(hours=hours)
        assert sum(span.start <= moment < span.end for span in spans) == 1
    assert missing(period, spans, now) == []
    assert timedelta(days=7) == AHEAD
