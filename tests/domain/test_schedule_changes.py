"""A rule with exceptions: its due times, each once, and what comes at them."""

from __future__ import annotations

import datetime as dt
import random
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from django_jobs.domain.due_times import plan
from django_jobs.domain.policies import Change
from django_jobs.domain.schedules import Rule

UTC = dt.UTC
MIDNIGHT = dt.datetime(2026, 11, 30, tzinfo=UTC)
HOUR = dt.timedelta(hours=1)


def at(hour: float) -> dt.datetime:
    return MIDNIGHT + hour * HOUR


def hours(rule: Rule, after: float, count: int) -> list[float]:
    return [(due - MIDNIGHT) / HOUR for due in islice(rule.due_times(at(after)), count)]


HOURLY = Rule(every=3600.0)


def changed(*changes: Change, **fields: object) -> Rule:
    return Rule(**{"every": 3600.0, "changes": changes, **fields})  # type: ignore[arg-type]


def test_a_moved_due_time_comes_at_its_new_time_alone() -> None:
    rule = changed(Change(due=at(3), moved_to=at(5.5)), Change(due=at(6), moved_to=at(1.5)))
    assert hours(rule, 0, 7) == [1, 1.5, 2, 4, 5, 5.5, 7]
    assert hours(rule, 1.5, 2) == [2, 4]
    assert hours(rule, 5.5, 2) == [7, 8]


def test_a_moment_comes_once_with_all_that_comes_at_it() -> None:
    onto = Change(due=at(3), moved_to=at(5))
    beside = Change(due=at(4), moved_to=at(5))
    rule = changed(onto, beside)
    assert hours(rule, 2, 3) == [5, 6, 7]
    found = rule.occurrences([at(5), at(6)])
    assert [(one.due, one.change) for one in found] == [
        *((at(3), onto), (at(4), beside), (at(5), None), (at(6), None)),
    ]


def test_a_skipped_due_time_stays_and_is_known() -> None:
    rule = changed(Change(due=at(3), skipped=True))
    assert hours(rule, 2, 2) == [3, 4]
    assert [rule.skips(at(hour)) for hour in (2, 3, 4)] == [False, True, False]
    onto = changed(Change(due=at(3), skipped=True), Change(due=at(2), moved_to=at(3)))
    assert not onto.skips(at(3))


def test_a_change_of_no_due_time_does_nothing() -> None:
    stray = Change(due=at(3.5), moved_to=at(4.5))
    rule = changed(stray, Change(due=at(2.5), skipped=True))
    assert hours(rule, 2, 3) == hours(HOURLY, 2, 3)
    assert [one.due for one in rule.strays(at(0))] == [at(3.5), at(2.5)]
    assert rule.strays(at(4)) == [stray]
    assert rule.strays(at(5)) == []


def test_bounds_and_excluded_dates_hold_for_the_due_time_not_for_the_new_time() -> None:
    changes = (Change(due=at(2), moved_to=at(-1)), Change(due=at(4), moved_to=at(30)))
    rule = changed(
        *changes, starts_at=at(2), ends_at=at(4), excluded_dates=frozenset({at(30).date()})
    )
    assert hours(rule, -2, 9) == [-1, 3, 30]
    outside = changed(*changes, starts_at=at(3), ends_at=at(3))
    assert hours(outside, -2, 9) == [3]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("policy, limit", [("latest", None), ("at_most", 9), ("window", 20_000)])
def test_each_due_time_is_planned_once_however_often_one_looks(
    seed: int, policy: str, limit: float | None
) -> None:
    rng = random.Random(seed)
    rule = Rule(cron="*/20 * * * *")
    due = list(islice(rule.due_times(at(0)), 60))
    changes = []
    for moment in rng.sample(due, 12):
        if rng.random() < 0.3:
            changes.append(Change(due=moment, skipped=True))
        else:
            minutes = rng.choice([-70, -20, -5, 5, 20, 40, 200])
            changes.append(Change(due=moment, moved_to=moment + dt.timedelta(minutes=minutes)))
    rule = Rule(cron="*/20 * * * *", changes=tuple(changes))
    first, now = next(rule.due_times(at(-2))), at(-2)
    seen: list[dt.datetime] = []
    while now < at(30):
        now += dt.timedelta(minutes=rng.choice([1, 10, 30, 90]))
        if first > now:
            continue
        planned = plan(rule, first, now, policy, limit)
        assert not planned.more_missed
        assert planned.next_due is not None
        assert set(planned.fire).isdisjoint(planned.late)
        assert not any(rule.skips(moment) for moment in planned.fire)
        seen += [one.due for one in rule.occurrences(sorted([*planned.fire, *planned.late]))]
        first = planned.next_due
    assert len(seen) == len(set(seen))
    assert set(due) <= set(seen)


@pytest.mark.parametrize("at_most", [1, 3])
def test_a_skipped_due_time_takes_no_place_of_one_that_fires(at_most: int) -> None:
    skips = [Change(due=at(hour), skipped=True) for hour in range(4, 40)]
    planned = plan(changed(*skips), at(1), at(40.5), "at_most", at_most)
    fired = [at(hour) for hour in ([1, 2, 3, 40] if at_most > 3 else [2, 3, 40])]
    assert planned.fire == fired[-at_most:]
    assert set(planned.fire) | set(planned.late) == {at(hour) for hour in range(1, 41)}


def test_the_words_of_an_exception() -> None:
    skipped = Change(due=at(1), skipped=True, by="ann", reason="closed")
    moved = Change(due=at(1), moved_to=at(2))
    both = Change(due=at(1), moved_to=at(2), payload_json="", by="ann", reason="late")
    payload = Change(due=at(1), payload_json="{}", reason="once")
    assert skipped.text == skipped.text_there == "skipped by ann: closed"
    assert moved.text == "moved to 2026-11-30 02:00:00 UTC"
    assert moved.text_there == "moved from 2026-11-30 01:00:00 UTC"
    assert payload.text == payload.text_there == "with another payload: once"
    assert both.text == "moved to 2026-11-30 02:00:00 UTC with another payload by ann: late"
    assert both.text_there == (
        "moved from 2026-11-30 01:00:00 UTC with another payload by ann: late"
    )
    paris = ZoneInfo("Europe/Paris")
    assert both.text_in(paris) == (
        "moved to 2026-11-30 03:00:00 CET with another payload by ann: late"
    )
