"""What a look at a schedule finds: due times to fire, to skip, and the next one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs.domain.due_times import (
    MOST_MISSED_TICKS,
    Plan,
    first_due,
    made_of,
    plan,
    stretches,
)
from django_jobs.domain.policies import MOST_AT_ONCE
from django_jobs.domain.schedules import Rule
from tests.calls import calls_of

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
YEAR = timedelta(days=365)
HOURLY = Rule(every=3600.0)
EVERY_SECOND = Rule(every=1.0)

ordinary = st.one_of(
    st.builds(Rule, every=st.sampled_from([1.0, 7.0, 90.0, 3600.0, 86_400.5])),
    st.builds(
        Rule,
        name=st.sampled_from(["a", "b"]),
        cron=st.sampled_from(
            ["* * * * *", "*/7 3-9 * * *", "0 12 * * *", "H H * * 1", "30 2 1 * *"]
        ),
        timezone=st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe"]),
        dst=st.sampled_from(["once", "skip", "twice"]),
    ),
)
dates = st.dates(NOON.date() - timedelta(days=6), NOON.date() + timedelta(days=20))
with_gaps = st.builds(
    lambda rule, days: replace(rule, excluded_dates=days),
    rule=ordinary,
    days=st.frozensets(dates, max_size=12),
)
rules = st.one_of(ordinary, with_gaps)
spans = st.integers(0, 3_000_000).map(lambda seconds: timedelta(seconds=seconds / 7))
policies = st.one_of(
    st.tuples(st.sampled_from(["latest", "skip"]), st.none()),
    st.tuples(st.just("at_most"), st.integers(1, 150)),
    st.tuples(st.just("window"), st.sampled_from([60, 3600, 10_000_000, float("inf")])),
)


def hours_before(*numbers: int) -> list[datetime]:
    return [NOON - timedelta(hours=number) for number in numbers]


def between(rule: Rule, first: datetime, last: datetime) -> list[datetime]:
    """All due times from ``first`` to ``last``, both included, one by one."""
    everything = replace(rule, excluded_dates=frozenset())
    found = everything.due_times(first - timedelta(microseconds=1))
    zone = ZoneInfo(rule.timezone)
    return [
        due
        for due in takewhile(lambda due: due <= last, found)
        if due.astimezone(zone).date() not in rule.excluded_dates
    ]


# One look


def test_a_due_time_seen_in_time_fires_and_the_next_is_returned() -> None:
    for policy, limit in (("latest", None), ("skip", None), ("at_most", 3), ("window", 60)):
        seen = plan(HOURLY, NOON, NOON + timedelta(seconds=1), policy, limit)
        assert seen == Plan(fire=[NOON], next_due=NOON + timedelta(hours=1)), policy


def test_nothing_fires_before_its_time() -> None:
    seen = plan(HOURLY, NOON, NOON - timedelta(microseconds=1), "latest")
    assert seen == Plan(next_due=NOON)


def test_after_an_outage_the_latest_fires_and_the_others_are_late() -> None:
    seen = plan(HOURLY, *hours_before(3, 0), "latest")
    assert (seen.fire, seen.late, seen.more_missed) == ([NOON], hours_before(3, 2, 1), False)


def test_skip_fires_nothing_more_than_a_minute_late() -> None:
    (first,) = hours_before(3)
    assert plan(HOURLY, first, NOON + timedelta(seconds=60), "skip").fire == [NOON]
    late = plan(HOURLY, first, NOON + timedelta(seconds=61), "skip")
    assert (late.fire, late.late) == ([], hours_before(3, 2, 1, 0))


@pytest.mark.parametrize("limit, fired", [(1, 1), (2.9, 2), (4, 4), (9, 4), (0, 1), (None, 1)])
def test_at_most_fires_the_newest_up_to_its_limit(limit: float | None, fired: int) -> None:
    seen = plan(HOURLY, *hours_before(3, 0), "at_most", limit)
    everything = hours_before(3, 2, 1, 0)
    assert (seen.fire, seen.late) == (everything[4 - fired :], everything[: 4 - fired])


def test_a_window_fires_all_due_times_in_it_including_its_start() -> None:
    seen = plan(HOURLY, *hours_before(5, 0), "window", 7200)
    assert (seen.fire, seen.late) == (hours_before(2, 1, 0), hours_before(5, 4, 3))


def test_a_window_is_never_shorter_than_on_time() -> None:
    seen = plan(EVERY_SECOND, NOON - timedelta(seconds=30), NOON, "window", 0.001)
    assert len(seen.fire) == 31


def test_a_look_fires_at_most_its_cap_and_a_window_continues_next_time() -> None:
    first = NOON - timedelta(hours=1)
    for limit in (1_000_000.0, float("inf")):
        assert len(plan(EVERY_SECOND, first, NOON, "at_most", limit).fire) == MOST_AT_ONCE
        seen = plan(EVERY_SECOND, first, NOON, "window", limit)
        assert len(seen.fire) == MOST_AT_ONCE
        assert seen.next_due == seen.fire[-1] + timedelta(seconds=1) <= NOON


def test_only_the_newest_missed_due_times_get_separate_ticks() -> None:
    seen = plan(EVERY_SECOND, NOON - YEAR, NOON, "latest")
    assert seen.more_missed
    assert seen.late == [NOON - timedelta(seconds=n) for n in range(MOST_MISSED_TICKS, 0, -1)]
    one_more = NOON - timedelta(seconds=MOST_MISSED_TICKS + 1)
    assert plan(EVERY_SECOND, one_more, NOON, "latest").more_missed
    assert not plan(EVERY_SECOND, one_more + timedelta(seconds=1), NOON, "latest").more_missed


def test_an_ended_rule_has_no_next_due_time() -> None:
    rule = Rule(every=3600.0, ends_at=NOON)
    assert plan(rule, NOON, NOON + timedelta(hours=5), "latest") == Plan(fire=[NOON], next_due=None)
    ended = plan(rule, NOON - YEAR, NOON + YEAR, "window", 3600)
    assert (ended.fire, len(ended.late), ended.next_due) == ([], MOST_MISSED_TICKS, None)


BEFORE = frozenset(NOON.date() - timedelta(days=number) for number in range(366))
EVERY_OTHER = frozenset(NOON.date() - timedelta(days=2 * number) for number in range(1, 367))
SEASONS = (
    EVERY_SECOND,
    Rule(every=1.0, ends_at=NOON - YEAR),
    Rule(cron="* * * * *", timezone="Europe/Paris"),
    Rule(cron="* * * 4-9 *"),
    Rule(cron="* * 1 1 *"),
    Rule(cron="* * * * *", ends_at=NOON - 3 * YEAR),
    Rule(every=1.0, timezone="Europe/Paris", excluded_dates=BEFORE),
    Rule(cron="* * * * *", timezone="Europe/Paris", excluded_dates=BEFORE),
    Rule(cron="* * * * *", excluded_dates=EVERY_OTHER),
)


@pytest.mark.parametrize(
    "rule", SEASONS, ids=[f"season {number}" for number in range(len(SEASONS))]
)
@pytest.mark.parametrize("policy, limit", [("latest", None), ("at_most", 1e9), ("window", 86_400)])
def test_years_of_missed_due_times_are_planned_quickly(
    rule: Rule, policy: str, limit: float | None
) -> None:
    seen = plan(rule, NOON - 5 * YEAR, NOON, policy, limit)
    calls = calls_of(lambda: plan(rule, NOON - 5 * YEAR, NOON, policy, limit))
    assert calls < 1_000_000  # 340,000 at most; to visit each minute takes 2,600,000 and more
    assert seen.more_missed
    assert len(seen.late) == MOST_MISSED_TICKS
    assert seen.next_due == rule.next((seen.late + seen.fire)[-1])


# Many looks


@given(rule=rules, missed=spans, policy=policies)
@settings(max_examples=200, deadline=None)
def test_a_plan_fires_only_due_times_of_the_rule_and_each_once(
    rule: Rule, missed: timedelta, policy: tuple[str, Any]
) -> None:
    first = rule.next(NOON - missed)
    assert first is not None
    seen = plan(rule, first, NOON, *policy)
    due_times = seen.late + seen.fire
    assert due_times == sorted(set(due_times))
    assert all(first <= due <= NOON for due in due_times)
    assert len(seen.fire) <= MOST_AT_ONCE
    if due_times:
        assert due_times == between(rule, due_times[0], due_times[-1])
        assert seen.more_missed == (due_times[0] > first)
    assert seen.next_due == (rule.next(due_times[-1]) if due_times else first)
    assert policy[0] == "window" or seen.next_due is None or seen.next_due > NOON


@given(
    rule=rules,
    steps=st.lists(st.integers(1, 200_000), min_size=1, max_size=8),
    policy=policies,
)
@settings(max_examples=100, deadline=None)
def test_any_sequence_of_looks_fires_each_due_time_at_most_once(
    rule: Rule, steps: list[int], policy: tuple[str, Any]
) -> None:
    now = NOON
    start = due = rule.next(now)
    fired: list[datetime] = []
    for step in steps:
        now += timedelta(seconds=step)
        for _ in range(3_000):
            if due is None or due > now:
                break
            seen = plan(rule, due, now, *policy)
            assert not seen.fire or not fired or seen.fire[0] > fired[-1]
            assert seen.next_due is None or seen.next_due > due
            fired += seen.fire
            due = seen.next_due
            if len(fired) > 2_000:
                return
        else:
            pytest.fail("the looks do not come to the present")
    assert start is not None
    if policy[0] == "window" and policy[1] > 8 * 200_000:
        assert fired == between(rule, start, now)


# Repeated hours

BACK = [
    (zone, change.begin)
    for zone in (
        *("Europe/Berlin", "America/New_York", "America/St_Johns", "America/Santiago"),
        *("Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca", "Africa/Cairo"),
    )
    for change in stretches(zone, NOON - YEAR, NOON + YEAR)
    if change.offset < change.before
]


@given(
    rule=rules,
    back=st.sampled_from(BACK),
    before=st.integers(-200, 400).map(lambda minutes: timedelta(minutes=minutes)),
    passed=st.integers(0, 400).map(lambda minutes: timedelta(minutes=minutes)),
    policy=policies,
)
@settings(max_examples=300, deadline=None)
def test_a_plan_is_the_same_in_each_zone(
    rule: Rule,
    back: tuple[str, datetime],
    before: timedelta,
    passed: timedelta,
    policy: tuple[str, Any],
) -> None:
    zone, change = ZoneInfo(back[0]), back[1]
    first = rule.next(change - before)
    assert first is not None
    now = first + passed
    in_zone = plan(rule, first.astimezone(zone), now.astimezone(zone), *policy)
    assert in_zone == plan(rule, first, now, *policy)
    assert all(due.tzinfo is UTC for due in in_zone.late + in_zone.fire)


# Other time zone tables


TABLES = {  # by how much a clock is ahead
    zone: datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).utcoffset() or timedelta()
    for zone in ("Etc/GMT-4", "Asia/Karachi", "Asia/Kolkata", "Asia/Kathmandu", "Etc/GMT-7")
}
tables = st.sampled_from(sorted(TABLES))


class Row:
    """A schedule in its table, and the workers that look at it: each with tables of its own."""

    def __init__(self, rule: Rule, zone: str, now: datetime) -> None:
        self.rule, self.since = rule, now
        self.next, self.last = self.by(zone).next(now), None
        self.made: list[datetime] = []

    def by(self, zone: str) -> Rule:
        return replace(self.rule, timezone=zone)

    def first(self, zone: str, now: datetime) -> datetime | None:
        return first_due(self.by(zone), self.next, now, last=self.last, since=self.since)

    def compare(self, zone: str, now: datetime) -> None:
        if self.next is None or self.next > now:
            self.next = self.first(zone, now)

    def look(self, zone: str, now: datetime) -> None:
        if self.next is not None and self.next <= now:
            seen = plan(self.by(zone), self.first(zone, now) or self.next, now, "at_most", 100)
            self.made += seen.fire
            self.next = seen.next_due
            self.last = seen.fire[-1] if seen.fire else self.last


def days_of(made: list[datetime]) -> list[int]:
    """The days since :data:`NOON` of due times at 12:00, by whatever clock of ours."""
    return [(due - NOON + timedelta(hours=18)).days for due in made]


@given(
    begin=tables,
    shift=st.sampled_from([0, 30, 90, 300]),
    before=st.integers(0, 7 * 24 * 4),
    after=tables,
)
@settings(max_examples=200, deadline=None)
def test_a_worker_with_other_tables_makes_each_due_time_once(
    begin: str, shift: int, before: int, after: str
) -> None:
    quarter = timedelta(minutes=15)
    for cron in ("0 12 * * *", "0 12 * * 1,4"):
        now = NOON - timedelta(hours=16) + timedelta(minutes=shift)
        row = Row(Rule(cron=cron), begin, now)
        for _ in range(before):
            now += quarter
            row.look(begin, now)
        row.compare(after, now)
        for _ in range(8 * 24 * 4):
            now += quarter
            row.look(after, now)
        days = days_of(row.made)
        wanted = list(range(days[0], days[-1] + 1))
        if cron != "0 12 * * *":
            wanted = [day for day in wanted if (NOON + timedelta(days=day)).weekday() in (0, 3)]
        assert days == wanted
        assert timedelta() <= now - row.made[-1] < timedelta(days=4)


@given(looks=st.lists(st.tuples(tables, st.booleans()), min_size=400, max_size=400))
@settings(max_examples=40, deadline=None)
def test_workers_with_different_tables_make_each_due_time_once(
    looks: list[tuple[str, bool]],
) -> None:
    now = NOON - timedelta(hours=16)
    row = Row(Rule(cron="0 12 * * *"), "Asia/Karachi", now)
    for zone, compares in looks:
        now += timedelta(minutes=30)
        if compares:
            row.compare(zone, now)
        row.look(zone, now)
    days = days_of(row.made)
    assert days == list(range(days[0], days[0] + len(days)))
    assert len(days) in (8, 9)


def test_what_is_due_earlier_by_todays_tables_is_made_late() -> None:
    rule = Rule(cron="0 7 1 * *", timezone="America/Vancouver")
    right = rule.next(NOON)
    assert right is not None
    last, stored, since = right - timedelta(days=31), right + timedelta(hours=1), NOON - YEAR
    for now in (NOON, right - timedelta(minutes=1), right, right + timedelta(minutes=59), stored):
        assert first_due(rule, stored, now, last=last, since=since) == right, now
        assert first_due(rule, stored, now, last=None, since=since) == right, now
        assert first_due(rule, right, now, last=last, since=since) == right, now
    later = right - timedelta(hours=1)
    assert first_due(rule, later, NOON, last=last, since=since) == later
    assert plan(rule, later, later, "latest") == Plan(next_due=right)


def test_nothing_from_before_a_schedule_began_or_went_on_is_made() -> None:
    rule = Rule(cron="0 7 1 * *", timezone="America/Vancouver")
    right = rule.next(NOON)
    assert right is not None
    stored = right + timedelta(hours=1)
    for last in (None, right - timedelta(days=31)):
        since = right + timedelta(minutes=1)
        assert first_due(rule, stored, stored, last=last, since=since) == stored


def test_a_rule_that_ended_by_other_tables_goes_on() -> None:
    last = datetime(2026, 3, 2, 15, tzinfo=UTC)
    rule = Rule(cron="0 7 * * *", timezone="Etc/GMT+7", ends_at=last + timedelta(hours=23.5))
    for day in (last, last - timedelta(hours=1)):
        found = first_due(rule, None, last + timedelta(minutes=1), last=day, since=None)
        assert found == last + timedelta(hours=23)
    ended = replace(rule, ends_at=last + timedelta(hours=22))
    assert first_due(ended, None, last, last=last - timedelta(hours=1), since=None) is None
    moved, early = replace(rule, ends_at=last), last - timedelta(hours=2)
    assert first_due(moved, None, early, last=early, since=None) is None


@given(
    rule=rules, missed=spans, ahead=st.integers(0, 500_000), last=st.none() | st.just(NOON - YEAR)
)
@settings(max_examples=200, deadline=None)
def test_a_due_time_of_the_same_tables_stays(
    rule: Rule, missed: timedelta, ahead: int, last: datetime | None
) -> None:
    """Also of a rule that was changed, which has due times before it was."""
    now = NOON - missed
    stored = rule.next(now)
    now += timedelta(seconds=ahead)
    if stored is not None and now < stored:
        assert first_due(rule, stored, now, last=last, since=None) == stored
    if stored is not None:
        assert first_due(rule, stored, stored + missed, last=last, since=None) == stored


def test_a_time_that_was_fired_by_other_tables_is_the_nearest_due_time() -> None:
    due = [NOON + timedelta(days=day) for day in range(5)]
    hour = timedelta(hours=1)
    assert made_of(due, []) == set()
    assert made_of(due, [due[0], due[1] - hour, due[3] + hour]) == {due[0], due[1], due[3]}
    assert made_of(due, [due[0] + hour, due[0]]) == {due[0]}
    assert made_of(due, [due[0] - 4 * hour, due[4] + 4 * hour]) == set()
    assert made_of(due, [due[0] - hour, due[4] + hour]) == {due[0], due[4]}
    assert made_of([], due) == set()
