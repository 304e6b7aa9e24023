"""Backoff: how long to wait before the next attempt."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.backoff import DEFAULT_BACKOFF, LONGEST_DELAY, Backoff

seconds = st.floats(0, LONGEST_DELAY)
shares = st.floats(0, 1)
rules = st.one_of(
    st.builds(
        Backoff.exponential,
        base=seconds,
        factor=st.floats(1, 1000),
        cap=seconds,
        jitter=shares,
    ),
    st.builds(Backoff.linear, seconds, cap=seconds, jitter=shares),
    st.builds(Backoff.polynomial, seconds, exponent=st.floats(0, 1000), cap=seconds, jitter=shares),
    st.builds(Backoff.fixed, seconds, jitter=shares),
)
failures = st.integers(0, 2**31)


@pytest.mark.parametrize(
    "rule, delays",
    [
        (Backoff.exponential(base=2, factor=2, cap=20), [2, 4, 8, 16, 20, 20]),
        (Backoff.exponential(base=1, factor=1), [1, 1, 1]),
        (Backoff.linear(10, cap=25), [10, 20, 25, 25]),
        (Backoff.polynomial(3), [3, 12, 27, 48]),
        (Backoff.polynomial(1, exponent=4, cap=300), [1, 16, 81, 256, 300]),
        (Backoff.polynomial(5, exponent=0), [5, 5, 5]),
        (Backoff.polynomial(0), [0, 0, 0]),
        (Backoff.fixed(7), [7, 7, 7]),
        (Backoff.exponential(base=0), [0, 0, 0]),
    ],
)
def test_delays_follow_the_curve_up_to_the_cap(rule: Backoff, delays: list[float]) -> None:
    assert [rule.longest(count) for count in range(1, len(delays) + 1)] == delays


@given(rules, failures, shares)
def test_a_delay_is_between_nothing_and_the_cap(rule: Backoff, count: int, drawn: float) -> None:
    delay = rule.delay(count, lambda: drawn)
    assert 0 <= delay <= rule.cap
    assert math.isfinite(delay)


@given(rules, failures, shares)
def test_jitter_shortens_a_wait_by_at_most_its_share(
    rule: Backoff, count: int, drawn: float
) -> None:
    longest = rule.longest(count)
    assert longest * (1 - rule.jitter) <= rule.delay(count, lambda: drawn) + 1e-6
    assert rule.delay(count, lambda: drawn) <= longest


@given(rules, failures, failures)
def test_a_delay_before_jitter_never_shrinks_from_failure_to_failure(
    rule: Backoff, one: int, other: int
) -> None:
    earlier, later = sorted((one, other))
    assert rule.longest(earlier) <= rule.longest(later)


@given(failures)
def test_a_base_of_zero_never_grows(count: int) -> None:
    assert Backoff.exponential(base=0).longest(count) == 0
    assert Backoff.polynomial(0, exponent=1000).longest(count) == 0


@given(rules)
def test_a_rule_round_trips_through_json(rule: Backoff) -> None:
    assert Backoff.from_json(json.loads(json.dumps(rule.as_json()))) == rule


def test_an_exponent_is_stored_only_with_the_curve_that_has_one() -> None:
    """A row of each job has the rule."""
    assert "exponent" not in Backoff.exponential().as_json()
    stored = Backoff.polynomial(1, exponent=4).as_json()
    assert stored["exponent"] == 4
    del stored["exponent"]
    assert Backoff.from_json(stored) == Backoff.polynomial(1)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"curve": "cubic", "base": 1},
        {"curve": "fixed", "base": "1"},
        {"curve": "fixed", "base": -1},
        {"curve": "fixed", "base": True},
        {"curve": "fixed"},
        {"unknown": 1},
        {"curve": "fixed", "base": 1e400},
        ["fixed", 1],
        "fixed",
        7,
    ],
)
def test_an_unreadable_rule_is_the_default_rule(stored: Any) -> None:
    assert Backoff.from_json(stored) == DEFAULT_BACKOFF


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff.fixed(-1),
        lambda: Backoff.fixed(float("nan")),
        lambda: Backoff.fixed(float("inf")),
        lambda: Backoff.fixed(1, jitter=1.5),
        lambda: Backoff.exponential(factor=0.5),
        lambda: Backoff.exponential(cap=LONGEST_DELAY * 2),
        lambda: Backoff.linear(10**400),
        lambda: Backoff.polynomial(1, exponent=-1),
        lambda: Backoff.polynomial(1, exponent="2"),  # type: ignore[arg-type]
        lambda: Backoff.fixed("3"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_number_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ValueError, match="backoff"):
        make()
