"""Cron rules: which are accepted, and when they are due around changes of the clock."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs.domain.cron import (
    DST_POLICIES,
    BrokenCron,
    UnknownTimezone,
    check_cron,
    check_timezone,
    clock_change,
    times,
)
from tests.calls import calls_of
from tests.domain.cron_oracle import Tick, due_times, transitions, walk


def next_times(
    cron: str,
    timezone: str,
    after: datetime,
    count: int,
    dst: str = "once",
    hash_id: str | None = None,
) -> list[datetime]:
    """The next ``count`` due times, or fewer if the rule has no more."""
    return list(islice(times(cron, timezone, after, dst, hash_id), count))


HOUR = timedelta(hours=1)
ZONES = sorted(name for name in available_timezones() if name[0].isupper() and name != "Factory")
CHANGING_ZONES = [
    ("Europe/Paris", 2026),
    ("America/New_York", 2026),
    ("Europe/Dublin", 2026),
    ("Australia/Lord_Howe", 2026),
    ("Asia/Beirut", 2026),
    ("Africa/Casablanca", 2026),
    ("America/Sao_Paulo", 2018),
    ("Pacific/Apia", 2011),
    ("Antarctica/Troll", 2026),
]
RULES = [
    "30 2 * * *",
    "*/20 2 * * *",
    "15,45 0-4,22,23 * * *",
    "30 */2 * * *",
    "0 0 * * *",
    "0 12 * * *",
    "*/15 * * * *",
    "0 * * * *",
    "10 23-2 * * *",
    "30 1 30,25 * sun",
    "0 0 L * sat",
]


# -- examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timezone, cron, dst, after, expected",
    [
        # Paris goes forward at 02:00 on 2026-03-29, back at 03:00 on 2026-10-25.
        ("Europe/Paris", "30 2 * * *", "once", "03-28 12:00", ["29 03:00+2", "30 02:30+2"]),
        ("Europe/Paris", "30 2 * * *", "skip", "03-28 12:00", ["30 02:30+2", "31 02:30+2"]),
        ("Europe/Paris", "30 2 * * *", "twice", "03-28 12:00", ["29 03:00+2", "30 02:30+2"]),
        ("Europe/Paris", "*/20 2 * * *", "once", "03-29 01:00", ["29 03:00+2", "30 02:00+2"]),
        ("Europe/Paris", "*/30 2,3 * * *", "once", "03-29 01:00", ["29 03:00+2", "29 03:30+2"]),
        ("Europe/Paris", "30 */2 * * *", "once", "03-29 00:00", ["29 00:30+1", "29 03:00+2"]),
        ("Europe/Paris", "*/30 * * * *", "once", "03-29 01:00", ["29 01:30+1", "29 03:00+2"]),
        ("Europe/Paris", "30 * * * *", "once", "03-29 01:00", ["29 01:30+1", "29 03:30+2"]),
        ("Europe/Paris", "30 2 * * *", "once", "10-24 12:00", ["25 02:30+2", "26 02:30+1"]),
        ("Europe/Paris", "30 2 * * *", "skip", "10-24 12:00", ["25 02:30+2", "26 02:30+1"]),
        ("Europe/Paris", "30 2 * * *", "twice", "10-24 12:00", ["25 02:30+2", "25 02:30+1"]),
        (
            "Europe/Paris",
            "*/30 2 * * *",
            "twice",
            "10-25 02:00",
            ["25 02:30+2", "25 02:00+1", "25 02:30+1", "26 02:00+1"],
        ),
        (
            "Europe/Paris",
            "0 * * * *",
            "once",
            "10-25 01:00",
            ["25 02:00+2", "25 02:00+1", "25 03:00+1"],
        ),
        # New York: 02:00 on 2026-03-08, 02:00 on 2026-11-01.
        ("America/New_York", "30 2 * * *", "once", "03-07 12:00", ["08 03:00-4", "09 02:30-4"]),
        ("America/New_York", "30 1 * * *", "once", "10-31 12:00", ["01 01:30-4", "02 01:30-5"]),
        ("America/New_York", "30 1 * * *", "twice", "10-31 12:00", ["01 01:30-4", "01 01:30-5"]),
        # Dublin's winter time is its daylight saving time, by a negative hour.
        ("Europe/Dublin", "30 1 * * *", "once", "03-28 12:00", ["29 02:00+1", "30 01:30+1"]),
        ("Europe/Dublin", "30 1 * * *", "once", "10-24 12:00", ["25 01:30+1", "26 01:30+0"]),
        # Lord Howe moves by half an hour: forward at 02:00 on 10-04, back at 02:00 on 04-05.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "once",
            "10-03 12:00",
            ["04 02:30+11", "05 02:15+11"],
        ),
        (
            "Australia/Lord_Howe",
            "45 2 * * *",
            "once",
            "10-03 12:00",
            ["04 02:45+11", "05 02:45+11"],
        ),
        (
            "Australia/Lord_Howe",
            "45 1 * * *",
            "twice",
            "04-04 12:00",
            ["05 01:45+11", "05 01:45+10:30", "06 01:45+10:30"],
        ),
        # Midnight itself does not exist, or comes after an hour that was there before.
        ("Asia/Beirut", "0 0 * * *", "once", "03-28 12:00", ["29 01:00+3", "30 00:00+3"]),
        ("Asia/Beirut", "0 0 * * *", "skip", "03-28 12:00", ["30 00:00+3", "31 00:00+3"]),
        ("Asia/Beirut", "30 23 * * *", "once", "10-24 12:00", ["24 23:30+3", "25 23:30+2"]),
        ("Asia/Beirut", "0 0 * * *", "twice", "10-24 12:00", ["25 00:00+2", "26 00:00+2"]),
        ("America/Sao_Paulo", "0 0 * * sun", "once", "2018-11-03 12:00", ["04 01:00-2"]),
        ("America/Sao_Paulo", "30 23 17 * *", "once", "2018-02-17 12:00", ["17 23:30-2"]),
        # Casablanca goes back for Ramadan and forward after it.
        ("Africa/Casablanca", "30 2 * * *", "once", "02-14 12:00", ["15 02:30+1", "16 02:30+0"]),
        ("Africa/Casablanca", "30 2 * * *", "once", "03-21 12:00", ["22 03:00+1", "23 02:30+1"]),
        # Samoa had no 30 December 2011.
        (
            "Pacific/Apia",
            "0 12 * * *",
            "once",
            "2011-12-29 00:00",
            ["29 12:00-10", "31 00:00+14", "31 12:00+14"],
        ),
        ("Pacific/Apia", "0 12 * * *", "skip", "2011-12-29 12:00", ["31 12:00+14"]),
        ("Pacific/Apia", "0 0 * * *", "once", "2011-12-29 12:00", ["31 00:00+14", "01 00:00+14"]),
        ("Pacific/Apia", "0 */6 * * *", "once", "2011-12-29 18:00", ["31 00:00+14", "31 06:00+14"]),
        ("Pacific/Apia", "0 * * * *", "once", "2011-12-29 22:00", ["29 23:00-10", "31 00:00+14"]),
        ("Pacific/Apia", "0 9 30 * *", "once", "2011-12-29 12:00", ["31 00:00+14", "30 09:00+14"]),
    ],
)
def test_a_change_of_the_clock(
    timezone: str, cron: str, dst: str, after: str, expected: list[str]
) -> None:
    zone = ZoneInfo(timezone)
    start = datetime.fromisoformat(after if after.count("-") == 2 else f"2026-{after}")
    due = next_times(cron, timezone, start.replace(tzinfo=zone), len(expected), dst)
    assert [shown(moment.astimezone(zone)) for moment in due] == expected
    assert all(moment.tzinfo is UTC for moment in due)


def shown(local: datetime) -> str:
    offset = (local.utcoffset() or timedelta()) // timedelta(minutes=1)
    hours, minutes = divmod(abs(offset), 60)
    sign = "-" if offset < 0 else "+"
    return f"{local:%d %H:%M}{sign}{hours}" + (f":{minutes:02}" if minutes else "")


def test_croniter_with_a_zone_fires_twice_in_an_overlap() -> None:
    zone = ZoneInfo("Europe/Paris")
    alone = croniter("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=zone))
    assert [alone.get_next(datetime).day for _ in range(3)] == [25, 25, 26]


# -- the oracle ----------------------------------------------------------------------------------


@cache
def ticks_around(timezone: str, moment: datetime) -> list[Tick]:
    return walk(ZoneInfo(timezone), moment - 20 * HOUR, moment + 8 * HOUR)


def assert_as_the_oracle_says(
    cron: str, timezone: str, ticks: list[Tick], dst: str, after: datetime
) -> None:
    end = ticks[-1].instant
    expected = [due for due in due_times(cron, ticks, dst) if due > after]
    assert list(takewhile(lambda due: due <= end, times(cron, timezone, after, dst))) == expected


@pytest.mark.parametrize("timezone, year", CHANGING_ZONES)
def test_the_oracle_agrees_at_every_change_of_the_named_zones(timezone: str, year: int) -> None:
    changes = [moment for moment in transitions(timezone) if moment.year == year]
    assert changes
    for moment in changes:
        ticks = walk(ZoneInfo(timezone), moment - 28 * HOUR, moment + 14 * HOUR)
        for cron in RULES:
            for dst in DST_POLICIES:
                assert_as_the_oracle_says(cron, timezone, ticks, dst, moment - 14 * HOUR)


def some_values(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    step = high - low
    return st.one_of(
        numbers.map(str),
        st.lists(numbers, min_size=2, max_size=4).map(lambda many: ",".join(map(str, many))),
        st.lists(numbers, min_size=2, max_size=2, unique=True).map("{0[0]}-{0[1]}".format),
        st.integers(1, step).map("*/{}".format),
        st.tuples(st.integers(low, high - 1), st.just(1)).map("{0[0]}/{0[1]}".format),
    )


minutes = st.one_of(st.sampled_from(["0", "30", "*/15", "*/20", "*"]), some_values(0, 59))
hours = st.one_of(st.just("*"), some_values(0, 5), st.just("0,23"), some_values(0, 23))


@st.composite
def rules_at_a_change(draw: st.DrawFn) -> tuple[str, str, datetime]:
    """A rule, a zone and a moment; the rule's days are near the moment, so that it fires."""
    timezone = draw(st.sampled_from(ZONES))
    moments = transitions(timezone) or (datetime(2026, 3, 29, 1, tzinfo=UTC),)
    moment = draw(st.sampled_from(moments))
    days = [moment + timedelta(days=shift) for shift in (-1, 0, 1)]
    day = st.one_of(
        *(st.just("*") for _ in range(3)),
        st.sampled_from(days).map("{0.day}".format),
        st.sampled_from(["L", "*/2", "1-31", "?", "15W", "28-2"]),
    )
    weekday = st.one_of(
        *(st.just("*") for _ in range(3)),
        st.sampled_from(days).map("{0:%a}".format),
        st.sampled_from(["1-5", "fri-mon", "5-7", "0-7", "*/2", "?"]),
    )
    month = st.sampled_from(["*", "*", "*", "*/2", "jan-jun", f"{moment:%b}", "11-3"])
    nth = [f"{one:%a}#{(one.day - 1) // 7 + 1}" for one in days]
    one, other = draw(day), draw(weekday)
    if one in "*?" and draw(st.integers(0, 4)) == 0:
        other = draw(st.sampled_from([*nth, "L0", "L6,L5"]))
    if one == "15W":
        other = "*"
    return f"{draw(minutes)} {draw(hours)} {one} {draw(month)} {other}", timezone, moment


@settings(max_examples=200, deadline=None)
@given(rules_at_a_change(), st.sampled_from(DST_POLICIES), st.integers(-14 * 3600, 4 * 3600))
def test_the_oracle_agrees_in_all_zones_wherever_one_starts(
    drawn: tuple[str, str, datetime], dst: str, shift: int
) -> None:
    cron, timezone, moment = drawn
    after = moment + timedelta(seconds=shift)
    assert_as_the_oracle_says(cron, timezone, ticks_around(timezone, moment), dst, after)


@settings(max_examples=60, deadline=None)
@given(rules_at_a_change(), st.sampled_from(DST_POLICIES))
def test_the_time_after_a_result_is_its_successor(
    drawn: tuple[str, str, datetime], dst: str
) -> None:
    cron, timezone, moment = drawn
    due = next_times(cron, timezone, moment - 3 * HOUR, 12, dst)
    assert all(one < other for one, other in pairwise(due))
    for one, other in pairwise(due):
        assert next_times(cron, timezone, one, 1, dst) == [other]
        assert next_times(cron, timezone, other - timedelta(microseconds=1), 1, dst) == [other]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ZONES), st.data(), st.sampled_from(DST_POLICIES))
def test_a_quarter_hourly_rule_is_regular_in_all_zones(
    timezone: str, data: st.DataObject, dst: str
) -> None:
    moment = data.draw(
        st.sampled_from(transitions(timezone) or (datetime(2026, 1, 1, tzinfo=UTC),))
    )
    due = next_times("*/15 * * * *", timezone, moment - 2 * HOUR, 20, dst)
    assert {other - one for one, other in pairwise(due)} == {timedelta(minutes=15)}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ZONES), st.data(), st.integers(0, 23), st.integers(0, 59))
def test_a_daily_rule_is_due_once_a_day_in_all_zones(
    timezone: str, data: st.DataObject, hour: int, minute: int
) -> None:
    moment = data.draw(
        st.sampled_from(transitions(timezone) or (datetime(2026, 1, 1, tzinfo=UTC),))
    )
    due = next_times(f"{minute} {hour} * * *", timezone, moment - 72 * HOUR, 7)
    pauses = [other - one for one, other in pairwise(due)]
    assert all(pause <= 27 * HOUR for pause in pauses)
    assert sum(pauses, timedelta()) > 5 * 24 * HOUR - 4 * HOUR
    assert all(pause >= 20 * HOUR or (timezone, moment.year) in LOST_DAYS for pause in pauses)


LOST_DAYS = {("Pacific/Apia", 2011), ("Pacific/Fakaofo", 2011)}
"""There the lost day's time is due at midnight, and the next day's at its own."""


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    many = st.lists(st.integers(low, high), min_size=1, max_size=3, unique=True)
    return many.map(lambda values: ",".join(map(str, values)))


@settings(max_examples=100, deadline=None)
@given(
    numbers(0, 59),
    st.one_of(numbers(0, 4), numbers(0, 23)),
    st.sampled_from(["*", "1,15", "25-31"]),
    st.sampled_from(["*", "1-5", "0"]),
    st.sampled_from(ZONES),
    st.data(),
)
def test_cronsim_agrees_on_fixed_hours(
    minute: str, hour: str, day: str, weekday: str, timezone: str, data: st.DataObject
) -> None:
    """Debian's cron, of which cronsim is a copy, fires once as "once" does.

    Known differences, kept out here: it takes a minute or hour field that begins with ``*`` for a
    rule of every hour; ``*/2`` in a day field makes the other day field an "and"; it does not know
    ranges that go round the end; started in the second pass of an overlap, it goes back in time.
    """
    moment = data.draw(
        st.sampled_from(transitions(timezone) or (datetime(2026, 1, 1, tzinfo=UTC),))
    )
    start = moment - 10 * HOUR
    cron = f"{minute} {hour} {day} * {weekday}"
    theirs = CronSim(cron, start.astimezone(ZoneInfo(timezone)))
    ours = next_times(cron, timezone, start, 8)
    assert ours == [due.astimezone(UTC) for due in islice(theirs, 8)]


# -- the edges of the calendar -------------------------------------------------------------------

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MOST_CALLS = 30_000
"""A hundredth of a second. The worst that is known takes 8,000: 5 Mondays in a February."""


def test_a_rare_rule_is_found_without_delay() -> None:
    years = [due.year for due in next_times("0 0 29 2 *", "UTC", MOMENT, 3)]
    assert years == [2028, 2032, 2036]
    for cron, after, year in (
        ("0 0 * 2 mon#5", MOMENT, 2044),
        ("0 0 29 2 *", datetime(2096, 3, 1, tzinfo=UTC), 2104),
    ):
        found: list[datetime] = []
        search = partial(next_times, cron, "UTC", after, 1)
        assert calls_of(lambda search=search, found=found: found.extend(search())) < MOST_CALLS  # type: ignore[misc]
        assert found[0].year == year


def test_the_times_end_with_the_calendar() -> None:
    late = datetime(9999, 11, 1, tzinfo=UTC)
    assert len(next_times("0 0 1 * *", "UTC", late, 10)) == 1
    assert next_times("0 0 1 1 *", "UTC", late, 10) == []
    for timezone in ("UTC", "Asia/Tokyo", "America/New_York"):
        for cron in ("* * * * *", "0 */2 * * *"):
            last = datetime(9999, 12, 31, 3, tzinfo=UTC)
            assert 0 < len(next_times(cron, timezone, last, 5000)) < 1300
            assert next_times(cron, timezone, datetime.max.replace(tzinfo=UTC), 5) == []


def test_the_times_of_long_ago_are_found_too() -> None:
    """Paris was 9 minutes and 21 seconds ahead of Greenwich until 1911."""
    long_ago = datetime(1890, 1, 1, tzinfo=UTC)
    (noon,) = next_times("0 12 * * *", "Europe/Paris", long_ago, 1)
    assert noon.astimezone(ZoneInfo("Europe/Paris")).strftime("%H:%M:%S") == "12:00:00"


def test_the_times_are_strictly_after_and_on_the_minute() -> None:
    assert next_times("0 0 * * *", "UTC", MOMENT, 1) == [MOMENT + timedelta(days=1)]
    just_before = MOMENT - timedelta(microseconds=1)
    assert next_times("0 0 * * *", "UTC", just_before, 1) == [MOMENT]


def test_the_start_may_be_in_any_zone() -> None:
    elsewhere = MOMENT.astimezone(ZoneInfo("Asia/Kathmandu"))
    assert next_times("7 * * * *", "UTC", elsewhere, 5) == next_times("7 * * * *", "UTC", MOMENT, 5)


def test_a_start_without_a_zone_and_an_unknown_policy_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        next_times("* * * * *", "UTC", datetime(2026, 1, 1), 1)
    with pytest.raises(ValueError, match="once, skip, twice"):
        next_times("* * * * *", "UTC", MOMENT, 1, "never")


def test_a_broken_rule_is_refused_before_its_first_due_time() -> None:
    with pytest.raises(BrokenCron):
        times("61 * * * *", "UTC", MOMENT)
    with pytest.raises(UnknownTimezone):
        times("* * * * *", "Mars/Olympus", MOMENT)


def test_an_hour_field_that_lists_all_hours_is_every_hour() -> None:
    overlap = datetime(2026, 10, 24, 22, tzinfo=UTC)
    hourly = next_times("0 * * * *", "Europe/Paris", overlap, 6)
    for same in ("0 */1 * * *", "0 0-23 * * *", "0 0-11,12-23 * * *", "@hourly"):
        assert next_times(same, "Europe/Paris", overlap, 6) == hourly


# -- H -------------------------------------------------------------------------------------------


def test_h_is_the_same_time_for_a_name_and_spreads_names() -> None:
    def first(name: str) -> datetime:
        return next_times("H H * * *", "UTC", MOMENT, 1, hash_id=name)[0]

    assert first("reports") == first("reports")
    assert len({first(f"schedule {number}") for number in range(50)}) > 40


def test_h_without_a_name_has_no_due_times() -> None:
    check_cron("H H * * *")
    with pytest.raises(BrokenCron, match="schedule's name"):
        next_times("H H * * *", "UTC", MOMENT, 1)
    with pytest.raises(BrokenCron, match="schedule's name"):
        next_times("H(0-29)/10 * * * *", "UTC", MOMENT, 1)


@pytest.mark.parametrize("cron", ["0 0 * * THU", "0 0 1 MAR *", "@monthly", "0 3 * * thu#1"])
def test_a_name_changes_nothing_for_a_rule_without_h(cron: str) -> None:
    named = next_times(cron, "UTC", MOMENT, 3, hash_id="reports")
    assert named == next_times(cron, "UTC", MOMENT, 3)


def test_h_on_a_day_that_never_comes_is_refused_for_the_names_that_it_hits() -> None:
    refused = 0
    for number in range(200):
        try:
            check_cron("0 0 H 2 *", hash_id=f"schedule {number}")
        except BrokenCron:
            refused += 1
    assert 0 < refused < 40


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron, reason",
    [
        (None, "is text"),
        (5, "is text"),
        (b"* * * * *", "is text"),
        ("", "empty"),
        ("  \t ", "empty"),
        ("* " * 80, "100 characters"),
        ("* * * *", "4 fields, not five"),
        ("* * * * * *", "6 fields, not five"),
        ("* * * * * * 2030", "7 fields, not five"),
        ("@reboot", "@hourly"),
        ("@every 5m", "@hourly"),
        ("61 * * * *", "minute '61': 61 is not between 0 and 59"),
        ("0 0 * * 1L,suNL", "write L1"),
        ("0 0 * * Monday-Fri", "'monday' is not a value; write mon"),
        ("0 0 1 january *", "'january' is not a value; write jan"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day '0'"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day of the week '8'"),
        ("-1 * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("* * * jän *", "month"),
        ("mon * * * *", "minute"),
        ("* * * mon *", "month"),
        ("* * 31 2 *", "never"),
        ("0 0 30 2 *", "never"),
        ("0 0 31 4,6,9,11 *", "never"),
        ("0 0 30 2 1", "never"),
        ("0 0 31W 2 *", "never"),
        ("R * * * *", "R stands for a random value"),
        ("R(0-5)/2 * * * *", "R stands for a random value"),
        ("5-5 * * * *", "range of one value"),
        ("5-5/0 * * * *", "range of one value"),
        ("* * * jan-jan *", "range of one value"),
        ("* * * * sun-0", "range of one value"),
        ("* * * * 7-0", "range of one value"),
        ("59/15 * * * *", "means 59 only; write 59, or \\*/15"),
        ("0 23/6 * * *", "means 23 only"),
        ("0 0 1 DEC/3 *", "means dec only"),
        ("0 0 31/2 * *", "means 31 only"),
        ("50/15 * * * *", "means 50 only"),
        ("*/60 * * * *", "means 0 only; write 0, or use an interval"),
        ("10-12/5 * * * *", "means 10 only"),
        ("*/0 * * * *", "a step must be at least 1"),
        ("0 22-4/3 * * *", "wraps around with a step"),
        ("*,5 * * * *", "use it alone"),
        ("0 0 */1,5 * 1", "use it alone"),
        ("? * * * *", "minute"),
        ("0-9999999999 * * * *", "not between"),
        ("0-59/99999999999999 * * * *", "means 0 only"),
        ("H/60 * * * *", "step of H"),
        ("H(9-3) * * * *", "range of H"),
        ("H(0-99) * * * *", "not between"),
        ("H,5 * * * *", "minute"),
        ("0 0 * * 5L", "day of the week '5l': for the last one of the month write L5"),
        ("0 0 * * friL,1", "write L5"),
        ("0 0 * * Lsun", "write L0"),
        ("0 0 * * 9L", "9 is not between"),
        ("0 0 LW * *", "day 'lw': there is no last weekday of the month; L is its last day"),
        ("0 0 WL * *", "no last weekday"),
        ("0 0 L-3 * *", "day 'l-3': no day can be counted from the last one; L is the last day"),
        ("0 0 1,L-2W * *", "no day can be counted from the last one"),
        ("0 0 15W,30W * *", "15W is alone in its field; make a schedule for each"),
        ("0 0 1,W15 * *", "15W is alone"),
        (
            "CRON_TZ=Europe/Berlin 0 3 * * *",
            "CRON_TZ= is no part of the expression: write timezone='Europe/Berlin'",
        ),
        ("  tz=UTC @daily", "tz= .* write timezone='UTC'"),
        ("CRON_TZ = Asia/Kolkata\n0 3 * * *", "write timezone='Asia/Kolkata'"),
        ("TZ=", "write timezone="),
        ("TZ=:Europe/Paris 0 7 * * *", "write timezone='Europe/Paris'"),
        ("CRON_TZ='Europe/Paris' 0 7 * * *", "write timezone='Europe/Paris'"),
        ('cron_tz="UTC"', "write timezone='UTC'"),
        (
            "CRON_TZ=Mars/X 0 3 * * *",
            "write timezone='Europe/Paris' or the like; no time zone is called 'Mars/X'$",
        ),
        ("TZ=utc 0 3 * * *", "no time zone is called 'utc'"),
        ("CRON_TZ=" + 300 * "x" + " 0 3 * * *", "no time zone is called 'xxx"),
        ("0 3 * * * /usr/bin/backup", "6 fields, not five: .*; the user and the command of a line"),
        ("0 3 * * * root /usr/bin/backup -q", "8 fields, .* command of a line of a crontab are"),
        ("@daily /usr/bin/backup", "is not one of .*command of a line of a crontab are left out"),
        ("0 3 * * * " + "x" * 100, "at most 100 characters; .* command of a line of a crontab"),
        ("0 3 * *", "4 fields, not five: minute, hour, day, month, day of the week$"),
        (
            "0 0 31W 2,4 *",
            "day '31w': there is never a day 31 in February, April; list the months that have it",
        ),
        ("0 0 31W 1,2,4 *", "never a day 31 in February, April;"),
        ("0 0 31W * *", "never a day 31 in February, April, June, September, November;"),
        ("0 0 W31 9-11 *", "never a day 31 in September, November;"),
        ("0 0 30W * *", "never a day 30 in February;"),
        ("0 0 30w jan-mar *", "never a day 30 in February;"),
        (
            "0 0 29W 2 *",
            "in most years there is no day 29 in February; .* write L for the last day",
        ),
        ("0 0 29W * *", "no day 29 in February;"),
        ("0 0 31W */2 *", "never a day 31 in September, November;"),
        ("0 0 * * 1#6", "day of the week"),
        ("0 0 * * 1,2#1", "do not mix"),
        ("0 0 1 * 1#1", "do not combine"),
        ("0 0 15W * 1", "do not combine"),
        ("0 0 15W,3 * *", "day"),
        ("1,,2 * * * *", "minute"),
        ("1-2-3 * * * *", "minute"),
        ("1/2/3 * * * *", "minute"),
        ("*\x00 * * * *", "minute"),
    ],
)
def test_a_rule_is_refused_with_its_reason(cron: object, reason: str) -> None:
    with pytest.raises(BrokenCron, match=reason) as refused:
        check_cron(cron)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "cron",
    [
        *RULES,
        "  0\t9 * *  MON-FRI ",
        "@Daily",
        "@weekly",
        "@monthly",
        "@yearly",
        "@annually",
        "@midnight",
        "0 0 29 2 *",
        "0 0 L * *",
        "0 0 15W * *",
        "0 0 28W * *",
        "0 0 29W 1,3-12 *",
        "0 0 30W 3-12/2 *",
        "0 0 W31 jan,DEC *",
        "0 0 31W 12-1 *",
        "0 0 * * L5",
        "0 0 * * mon#1,mon#3",
        "0 0 ? * 0-7",
        "0/15 * * * *",
        "0 22-4 * * fri-mon",
        "0 0 * nov-feb 1-7/2",
        "H H(0-5) * * *",
        "H/15 * * * *",
    ],
)
def test_a_rule_is_accepted(cron: str) -> None:
    check_cron(cron)
    assert len(next_times(cron, "Europe/Paris", MOMENT, 3, hash_id="reports")) == 3


def test_the_month_that_a_name_derives_has_the_day_of_its_nearest_weekday() -> None:
    refused = 0
    for number in range(60):
        try:
            check_cron("0 0 31W H *", f"schedule {number}")
        except BrokenCron:
            refused += 1
        else:
            found = next_times("0 0 31W H *", "UTC", MOMENT, 2, hash_id=f"schedule {number}")
            assert {due.day for due in found} <= {29, 30, 31}
            assert found[0].month in (1, 3, 5, 7, 8, 10, 12)
    assert 5 < refused < 55


tokens = st.sampled_from(
    [
        *"*?,-/#LWHR0159",
        "59",
        "31",
        "99999999999",
        "(",
        ")",
        "MON",
        "dec",
        "thu",
        "@",
        "_",
        "H(1-9)",
    ]
)
fields = st.lists(tokens, min_size=1, max_size=6).map("".join)
expressions = st.lists(fields, min_size=4, max_size=6).map(" ".join) | st.lists(
    st.one_of(st.just("*"), fields), min_size=5, max_size=5
).map(" ".join)


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=110) | expressions)
def test_any_text_is_accepted_or_refused_at_once(cron: str) -> None:
    def check() -> None:
        with suppress(BrokenCron):
            check_cron(cron)
            next_times(cron, "Europe/Paris", MOMENT, 2, hash_id="")

    assert calls_of(check) < MOST_CALLS


@pytest.mark.parametrize("cron", ["0 0 * 2 1#5", "0 0 29 2 *", "* 0-22 * * *", "0 0 31 12 *"])
def test_the_slowest_rules_are_still_checked_at_once(cron: str) -> None:
    hash_id = f"not asked before {uuid.uuid4()}"
    assert calls_of(lambda: check_cron(cron, hash_id=hash_id)) < MOST_CALLS


# -- time zones ----------------------------------------------------------------------------------


def test_all_zones_of_the_database_are_known() -> None:
    for name in ZONES:
        assert check_timezone(name).key == name


@pytest.mark.parametrize(
    "name",
    [
        None,
        0,
        b"UTC",
        "",
        " UTC",
        "UTC\n",
        "Mars/Olympus",
        "Europe",
        "Europe/",
        "/etc/passwd",
        "../UTC",
        "Europe/../UTC",
        "Europe//Paris",
        "localtime",
        "posixrules",
        "right/Europe/Paris",
        "posix/Europe/Paris",
        "Factory",
        "leapseconds",
        "tzdata.zi",
        "Europe/Paris\x00",
        "Euröpe/Paris",
        "A" * 65,
        "A/" * 5000,
        "CEST",
        "+02:00",
    ],
)
def test_an_invalid_zone_is_refused_with_a_bounded_message(name: Any) -> None:
    with pytest.raises(UnknownTimezone) as refused:
        check_timezone(name)
    assert len(str(refused.value)) < 200


@given(st.text(max_size=80) | st.text("/.EuropeParis+-_0", max_size=20))
def test_any_other_name_raises_nothing_else(name: str) -> None:
    with suppress(UnknownTimezone):
        assert str(check_timezone(name)) == name


# -- days of a change ----------------------------------------------------------------------------


def local_times(timezone: str, *moments: str) -> Iterator[datetime]:
    for moment in moments:
        yield datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(timezone))


@pytest.mark.parametrize(
    "timezone, moments, change",
    [
        ("Europe/Paris", ["2026-03-29 00:00", "2026-03-29 23:59"], "clock goes forward"),
        ("Europe/Paris", ["2026-10-25 00:00", "2026-10-25 23:59"], "clock goes back"),
        ("Europe/Paris", ["2026-03-28 23:59", "2026-03-30 00:00", "2026-10-26 00:00"], None),
        ("Australia/Lord_Howe", ["2026-10-04 02:30"], "clock goes forward"),
        ("Asia/Beirut", ["2026-03-29 01:00", "2026-03-29 20:00"], "clock goes forward"),
        ("Asia/Beirut", ["2026-03-28 23:00", "2026-10-25 00:00"], None),
        ("Asia/Beirut", ["2026-10-24 00:00", "2026-10-24 23:30"], "clock goes back"),
        ("Pacific/Apia", ["2011-12-31 00:00", "2011-12-31 12:00"], "clock goes forward"),
        ("Pacific/Apia", ["2011-12-29 12:00", "2012-01-01 00:00"], None),
        ("UTC", ["2026-03-29 01:00"], None),
    ],
)
def test_the_day_of_a_change_is_marked(
    timezone: str, moments: list[str], change: str | None
) -> None:
    for moment in local_times(timezone, *moments):
        assert clock_change(moment, timezone) == change
        assert clock_change(moment.astimezone(UTC), timezone) == change


def test_the_last_days_of_the_calendar_are_ordinary() -> None:
    assert clock_change(datetime(9999, 12, 31, 12, tzinfo=UTC), "UTC") is None
    assert clock_change(datetime(9999, 12, 31, 23, tzinfo=UTC), "Asia/Tokyo") is None
