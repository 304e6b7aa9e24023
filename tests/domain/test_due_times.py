"""How often a rule is due in a span: the same as if each due time were visited."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest

from django_jobs.domain.due_times import due_between
from django_jobs.domain.schedules import Rule
from tests.calls import calls_of

MOST = 4
DAY = timedelta(days=1)
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 28), "clock goes forward"),
    ("Europe/Berlin", datetime(2026, 10, 24), "clock goes back"),
    ("Europe/Berlin", datetime(2027, 3, 27), "clock goes forward"),
    ("Europe/Berlin", datetime(2027, 10, 30), "clock goes back"),
    ("America/New_York", datetime(2026, 3, 7), "clock goes forward"),
    ("America/New_York", datetime(2026, 10, 31), "clock goes back"),
    ("America/New_York", datetime(2027, 3, 13), "clock goes forward"),
    ("America/New_York", datetime(2027, 11, 6), "clock goes back"),
    ("Africa/Cairo", datetime(2026, 4, 23), "clock goes forward"),
    ("Africa/Cairo", datetime(2026, 10, 28), "clock goes back"),
    ("Australia/Lord_Howe", datetime(2026, 4, 4), "clock goes back"),
    ("Antarctica/Troll", datetime(2026, 3, 28), "clock goes forward"),
    ("Pacific/Apia", datetime(2011, 12, 29), "clock goes forward"),
]
CRONS = [
    *("*/10 * * * *", "17 * * * *", "30 2 * * *", "0,30 0-3 * * *", "0 3 * * *", "0 0 * * *"),
    *("30 0,1,2 * * sun", "H H(0-3) * * *", "0 12 1,L * *", "30 1 * * 0#1", "30 2 */2 * 1"),
]


def visited(rule: Rule, begin: datetime, end: datetime) -> list[datetime]:
    """Each due time, from the function by which workers fire."""
    after = begin - timedelta(microseconds=1)
    return list(takewhile(lambda due: due < end, rule.due_times(after)))


def assert_as_visited(
    rule: Rule, begin: datetime, end: datetime, around: list[datetime] | None = None
) -> None:
    """``around`` are the due times of a longer span, which was visited already."""
    every = visited(rule, begin, end) if around is None else around
    every = [due for due in every if begin <= due < end]
    for limit in (None, 1, MOST + 1):
        found, all_of_them = due_between(rule, begin, end, MOST, limit), every[:limit]
        assert found.count == len(all_of_them), (rule, begin)
        assert list(found.first) == all_of_them[:MOST], (rule, begin)
        assert found.last == (all_of_them[-1] if all_of_them else None), (rule, begin)


@pytest.mark.parametrize(("zone", "day", "change"), CHANGES)
@pytest.mark.parametrize("dst", ["once", "skip", "twice"])
def test_days_around_a_change_of_the_clock(zone: str, day: datetime, change: str, dst: str) -> None:
    # Days of the zone itself, and of others: they begin before, in and after the change.
    midnights = [day.replace(tzinfo=ZoneInfo(clock)) for clock in (zone, "UTC", "Asia/Kolkata")]
    clocks = [[(one + number * DAY).astimezone(UTC) for number in range(4)] for one in midnights]
    whole = min(days[0] for days in clocks), max(days[-1] for days in clocks)
    for cron in CRONS:
        rule = Rule(name="night", cron=cron, timezone=zone, dst=dst)
        every = visited(rule, *whole)
        for days in clocks:
            for begin, end in pairwise(days):
                assert_as_visited(rule, begin, end, every)
            changes = [due_between(rule, *span, MOST).change for span in pairwise(days)]
            assert sorted(changes) == ["", "", change], days
        for number in range(3):  # one of the dates is excluded
            excluding = replace(rule, excluded_dates=frozenset({(day + number * DAY).date()}))
            every = visited(excluding, *whole)
            for days in clocks:
                assert_as_visited(excluding, days[0], days[-1], every)


@pytest.mark.parametrize("dst", ["once", "skip", "twice"])
@pytest.mark.parametrize("month", [3, 10, 11])
def test_spans_that_begin_and_end_at_any_minute(dst: str, month: int) -> None:
    for zone in ("Europe/Berlin", "America/New_York"):
        first = {3: (29, 8), 10: (25, 25), 11: (1, 1)}[month][zone.startswith("America")]
        start = datetime(2026, month, first, tzinfo=UTC)
        for cron in ("*/20 1-2 * * *", "*/30 * * * *", "30 2 * * *", "0 3 * * *"):
            rule = Rule(cron=cron, timezone=zone, dst=dst)
            for minutes in range(0, 10 * 60, 25):
                begin = start + timedelta(minutes=minutes, seconds=minutes % 60)
                assert_as_visited(rule, begin, begin + timedelta(minutes=35))


def test_what_the_clock_skips_is_left_out_only_if_the_rule_says_so() -> None:
    begin = datetime(2027, 3, 27, 23, tzinfo=UTC)
    for cron, dst, left_out in (
        ("30 2 * * *", "skip", True),
        ("30 2 * * *", "once", False),
        ("30 4 * * *", "skip", False),
        ("30 * * * *", "skip", False),
    ):
        rule = Rule(cron=cron, timezone="Europe/Berlin", dst=dst)
        assert due_between(rule, begin, begin + DAY, MOST).left_out is left_out, (cron, dst)


@pytest.mark.parametrize("every", [1.0, 0.5 + 1, 900.0, 86_400.0, 90_000.0])
def test_intervals_and_bounds(every: float) -> None:
    begin = datetime(2026, 11, 23, tzinfo=UTC)
    starts_at = begin + timedelta(hours=7, seconds=3)
    ends_at = begin + timedelta(hours=8, seconds=3)
    for bounds in ({}, {"starts_at": starts_at}, {"starts_at": starts_at, "ends_at": ends_at}):
        rule = Rule(every=every, **bounds)  # type: ignore[arg-type]
        assert_as_visited(rule, begin, begin + DAY)
    for cron in ("* * * * *", "3 7 * * *", "3 8 * * *"):
        rule = Rule(cron=cron, starts_at=starts_at, ends_at=ends_at)
        assert_as_visited(rule, begin, begin + DAY)
        assert due_between(rule, begin + DAY, begin + 2 * DAY, MOST).count == 0


@pytest.mark.parametrize(("zone", "day", "change"), CHANGES)
def test_intervals_with_excluded_dates(zone: str, day: datetime, change: str) -> None:
    begin = day.replace(tzinfo=UTC) - 12 * timedelta(hours=1)
    for days in ({1}, {0, 1}, {0, 2}, {-1, 3}, set(range(-2, 9))):
        excluded = frozenset((day + number * DAY).date() for number in days)
        for every in (1_777.0, 86_400.0):
            rule = Rule(every=every, timezone=zone, excluded_dates=excluded)
            for hours in range(0, 96, 7):
                at = begin + timedelta(hours=hours)
                assert_as_visited(rule, at, at + timedelta(hours=31))


def test_nothing_is_due_on_an_excluded_date_that_the_clock_changes() -> None:
    begin = datetime(2027, 3, 27, 23, tzinfo=UTC)
    rule = Rule(cron="30 2 * * *", timezone="Europe/Berlin", dst="skip")
    excluding = replace(rule, excluded_dates=frozenset({(begin + DAY).date()}))
    assert due_between(rule, begin, begin + DAY, MOST).left_out
    found = due_between(excluding, begin, begin + DAY, MOST)
    assert (found.count, found.left_out, found.change) == (0, False, "clock goes forward")
    assert due_between(rule, begin, begin + 9 * DAY, MOST, 0).count == 0


def test_a_day_of_many_due_times_costs_as_little_as_one_of_few() -> None:
    begin = datetime(2026, 10, 25, tzinfo=UTC)
    seconds = Rule(every=1.0)
    many = Rule(name="many", cron="* * * * *", timezone="Europe/Berlin")
    few = replace(many, cron="0 * * * *")
    assert due_between(seconds, begin, begin + 31 * DAY, MOST).count == 31 * 86_400
    assert due_between(many, begin, begin + DAY, MOST).count == 1_440
    assert due_between(few, begin, begin + DAY, MOST).count == 24
    of_many, of_few, of_seconds = (
        calls_of(lambda rule=rule: due_between(rule, begin, begin + DAY, MOST))  # type: ignore[misc]
        for rule in (many, few, seconds)
    )
    assert max(of_many, of_seconds) < 2 * of_few


@pytest.mark.parametrize(
    "rule", [Rule(cron="61 * * * *"), Rule(cron=""), Rule(cron="@daily", timezone="Mars/Base")]
)
def test_an_invalid_rule_is_refused(rule: Rule) -> None:
    begin = datetime(2026, 11, 23, tzinfo=UTC)
    with pytest.raises(ValueError, match=r"."):
        due_between(rule, begin, begin + DAY, MOST)


BACK = [
    ("Europe/Berlin", datetime(2026, 10, 25, 1)),
    ("America/New_York", datetime(2026, 11, 1, 6)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15)),
    ("Africa/Cairo", datetime(2026, 10, 29, 21)),
]


@pytest.mark.parametrize(("zone", "change"), BACK)
@pytest.mark.parametrize("minutes", range(-75, 76, 15))
def test_a_bound_in_either_pass_of_a_repeated_hour_is_that_instant(
    zone: str, change: datetime, minutes: int
) -> None:
    bound = change.replace(tzinfo=UTC) + timedelta(minutes=minutes)
    local = bound.astimezone(ZoneInfo(zone))
    for limits in (
        {"starts_at": bound},
        {"ends_at": bound},
        {"starts_at": bound, "ends_at": bound},
    ):
        in_zone = dict.fromkeys(limits, local)
        for options in ({"cron": "*/15 * * * *"}, {"cron": "0,45 * * * *"}, {"every": 900.0}):
            here, there = Rule(**options, **limits), Rule(**options, **in_zone)  # type: ignore[arg-type]
            assert here == there
            begin, end = bound - DAY, bound + DAY
            assert visited(there, begin, end) == visited(here, begin, end)
    rule = Rule(cron="*/15 * * * *")
    assert next(rule.due_times(local)) == next(rule.due_times(bound))
    for span in ((bound, bound + DAY / 12), (bound - DAY / 12, bound)):
        there = due_between(rule, *(at.astimezone(ZoneInfo(zone)) for at in span), 99)
        assert there == due_between(rule, *span, 99)


def test_bounds_out_of_reach_in_utc_and_naive_ones_stay_as_they_are() -> None:
    far = datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))
    rule = Rule(cron="0 0 1 1 *", ends_at=far)
    rule.check()
    assert rule.ends_at is far
    assert rule.next(datetime(2026, 5, 1, tzinfo=UTC)) == datetime(2027, 1, 1, tzinfo=UTC)
    with pytest.raises(TypeError):
        Rule(cron="0 0 1 1 *", starts_at=datetime(2026, 1, 1)).next(
            datetime(2026, 5, 1, tzinfo=UTC)
        )
