"""The rule of a schedule, and what a due time does while its jobs are live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from django_jobs.domain import schedules
from django_jobs.domain.schedules import MOST_EXCLUDED, Admission, Rule, admit, interval_times

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
YEAR = timedelta(days=365)
HOURLY = Rule(every=3600.0)
DAY = timedelta(days=1)

# The rule


@pytest.mark.parametrize(
    "rule, problem",
    [
        (Rule(), "either a cron expression or every"),
        (Rule(cron="* * * * *", every=60.0), "either a cron expression or every"),
        (Rule(cron="* * *"), "fields"),
        (Rule(cron="0 0 30 2 *"), "'0 0 30 2 \\*' never fires: no such month has that day"),
        (Rule(every=0.5), "from 1 second to 366 days"),
        (Rule(every=float("nan")), "a number of seconds"),
        (Rule(every=60.0, timezone="Europe/Pari"), "no time zone is called 'Europe/Pari'"),
        (Rule(every=60.0, starts_at=NOON, ends_at=NOON - YEAR), "ends before it starts"),
        (
            Rule(cron="0 0 1 7 *", starts_at=NOON, ends_at=NOON + timedelta(days=90)),
            "never comes due between its start and its end",
        ),
        (
            Rule(
                cron="0 12 2,3 3 *",
                starts_at=NOON,
                ends_at=NOON + timedelta(days=90),
                excluded_dates=frozenset({date(2026, 3, 2), date(2026, 3, 3)}),
            ),
            "never comes due between its start and its end",
        ),
    ],
)
def test_an_invalid_rule_is_refused_with_the_reason(rule: Rule, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        rule.check()


def test_both_bounds_of_a_rule_may_be_due_times() -> None:
    rule = Rule(every=60.0, starts_at=NOON, ends_at=NOON + timedelta(seconds=120))
    rule.check()
    assert list(rule.due_times(NOON - YEAR)) == [
        NOON,
        NOON + timedelta(seconds=60),
        NOON + timedelta(seconds=120),
    ]
    Rule(cron="0 12 2 3 *", starts_at=NOON, ends_at=NOON).check()


def test_an_interval_counts_from_its_start_and_without_one_from_1970() -> None:
    start = NOON + timedelta(minutes=7)
    assert Rule(every=3600.0, starts_at=start).next(NOON + timedelta(hours=2)) == (
        start + timedelta(hours=2)
    )
    assert HOURLY.next(NOON + timedelta(minutes=7)) == NOON + timedelta(hours=1)


def test_only_h_depends_on_the_name() -> None:
    def minute(name: str, cron: str) -> int:
        found = Rule(name=name, cron=cron).next(NOON)
        assert found is not None
        return found.minute

    assert len({minute(f"schedule {n}", "H * * * *") for n in range(20)}) > 5
    assert minute("one", "H * * * *") == minute("one", "H * * * *")
    assert minute("one", "5 * * * THU") == minute("other", "5 * * * THU")


# Excluded dates


def days_from(first: date, number: int) -> frozenset[date]:
    return frozenset(first + passed * DAY for passed in range(number))


def test_a_rule_is_not_due_on_an_excluded_date_of_its_zone() -> None:
    rule = Rule(
        cron="0 8,23 * * *", timezone="Asia/Tokyo", excluded_dates=frozenset({date(2026, 3, 3)})
    )
    assert list(islice(rule.due_times(NOON), 4)) == [
        datetime(2026, 3, 2, 14, tzinfo=UTC),
        datetime(2026, 3, 3, 23, tzinfo=UTC),
        datetime(2026, 3, 4, 14, tzinfo=UTC),
        datetime(2026, 3, 4, 23, tzinfo=UTC),
    ]


ZONES = [
    ("Europe/Paris", date(2026, 3, 28)),
    ("Europe/Paris", date(2026, 10, 24)),
    ("Asia/Beirut", date(2026, 3, 28)),  # forward at midnight
    ("America/Havana", date(2026, 10, 31)),  # back from 01:00 to midnight
    ("America/Nuuk", date(2026, 10, 24)),  # back from midnight to the day before
    ("America/St_Johns", date(2010, 11, 5)),  # back from 00:01 to the day before
    ("Australia/Lord_Howe", date(2026, 4, 4)),
    ("Pacific/Apia", date(2011, 12, 28)),  # a day that does not exist
]


@pytest.mark.parametrize(("zone", "first"), ZONES)
@pytest.mark.parametrize(
    "rule",
    [
        Rule(every=577.0),
        Rule(cron="*/10 * * * *"),
        Rule(cron="0,30 0-3,23 * * *"),
        Rule(cron="30 2 * * *", dst="twice"),
    ],
    ids=str,
)
def test_exclusion_leaves_out_exactly_the_due_times_of_these_dates(
    rule: Rule, zone: str, first: date
) -> None:
    """Around changes of the clock, for every set of four days in a row."""
    rule = replace(rule, timezone=zone)
    begin = datetime(first.year, first.month, first.day, tzinfo=UTC) - 2 * DAY
    everything = list(takewhile(lambda due: due < begin + 8 * DAY, rule.due_times(begin)))
    for number in range(1, 16):
        days = frozenset(first + bit * DAY for bit in range(4) if number >> bit & 1)
        kept = [due for due in everything if due.astimezone(ZoneInfo(zone)).date() not in days]
        excluding = replace(rule, excluded_dates=days)
        found = takewhile(lambda due: due < begin + 8 * DAY, excluding.due_times(begin))
        assert list(found) == kept, days


def test_an_excluded_date_costs_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def counted(*args: object) -> Iterator[datetime]:
        nonlocal steps
        for due in interval_times(*args):  # type: ignore[arg-type]
            steps += 1
            yield due

    monkeypatch.setattr(schedules, "interval_times", counted)
    rule = Rule(every=1.0, timezone="Europe/Paris", excluded_dates=days_from(NOON.date(), 366))
    assert rule.next(NOON) == datetime(2027, 3, 2, 23, tzinfo=UTC)
    assert steps == 366 + 2 + 1  # two changes of the clock, and the due time itself


def test_a_rule_ends_where_all_that_is_left_is_excluded() -> None:
    days = days_from(NOON.date(), 3)
    rule = Rule(every=3600.0, ends_at=NOON + DAY, excluded_dates=days)
    assert list(rule.due_times(NOON)) == []
    last = Rule(every=3600.0, excluded_dates=frozenset({date.max}))
    assert list(last.due_times(datetime(9999, 12, 30, 22, 30, tzinfo=UTC))) == [
        datetime(9999, 12, 30, 23, tzinfo=UTC)
    ]


def test_366_dates_can_be_excluded_and_no_more() -> None:
    replace(HOURLY, excluded_dates=days_from(NOON.date(), MOST_EXCLUDED)).check()
    with pytest.raises(schedules.TooManyDates, match="at most 366 dates"):
        replace(HOURLY, excluded_dates=days_from(NOON.date(), MOST_EXCLUDED + 1)).check()


# Overlap


@pytest.mark.parametrize(
    "policy, limit, live, waiting, expected",
    [
        *[(policy, None, 0, 0, "start") for policy in ("skip", "queue_one", "queue_all")],
        *[(policy, 1, 0, 0, "start") for policy in ("allow", "cancel", "unheard of")],
        ("skip", None, 1, 0, "skip"),
        ("queue_one", None, 1, 0, "wait"),
        ("queue_one", 5, 2, 1, "skip"),
        ("queue_all", None, 50, 49, "wait"),
        ("queue_all", 2, 2, 1, "wait"),
        ("queue_all", 2, 3, 2, "skip"),
        ("allow", None, 50, 0, "start"),
        ("allow", 2, 1, 0, "start"),
        ("allow", 2, 2, 0, "skip"),
        ("cancel", None, 3, 0, "replace"),
        ("unheard of", None, 1, 0, "skip"),
    ],
)
def test_live_jobs_decide_the_admission_of_the_next(
    policy: str, limit: int | None, live: int, waiting: int, expected: str
) -> None:
    assert admit(policy, limit, live, waiting) is Admission(expected)
