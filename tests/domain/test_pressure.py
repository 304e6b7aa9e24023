"""When a backlog is high or full, and how long it takes to drain."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs import Pressure
from django_jobs.domain.pressure import drain_seconds, level_of

LIMITS = st.integers(1, 2**31 - 1)
COUNTS = st.integers(0, 2**31 - 1)
ORDER = ("ok", "high", "full")


@given(COUNTS, LIMITS)
def test_full_is_at_the_limit_and_high_from_four_fifths_of_it(ready: int, limit: int) -> None:
    level = level_of(ready, limit)
    assert (level == "full") == (ready >= limit)
    assert (level == "ok") == (ready * 5 < limit * 4)


@given(st.tuples(COUNTS, COUNTS), LIMITS)
def test_the_level_never_falls_while_the_backlog_grows(ready: tuple[int, int], limit: int) -> None:
    fewer, more = (ORDER.index(level_of(count, limit)) for count in sorted(ready))
    assert fewer <= more


@given(COUNTS, st.tuples(LIMITS, LIMITS))
def test_a_higher_limit_never_raises_the_level(ready: int, limits: tuple[int, int]) -> None:
    lower, higher = (ORDER.index(level_of(ready, limit)) for limit in sorted(limits))
    assert higher <= lower


@given(COUNTS)
def test_without_a_limit_the_level_is_ok(ready: int) -> None:
    assert level_of(ready, None) == "ok"


@pytest.mark.parametrize(
    "ready, limit, level",
    [
        (0, 1, "ok"),
        (1, 1, "full"),
        (1, 2, "ok"),
        (79, 100, "ok"),
        (80, 100, "high"),
        (4, 5, "high"),
    ],
)
def test_small_limits_have_a_level_too(ready: int, limit: int, level: str) -> None:
    assert level_of(ready, limit) == level


@given(COUNTS, st.floats(1e-9, 1e9))
def test_a_backlog_drains_at_its_rate(ready: int, rate: float) -> None:
    assert drain_seconds(ready, rate) == pytest.approx(ready / rate)


def test_an_empty_backlog_is_drained_and_one_that_does_not_run_is_unknown() -> None:
    assert drain_seconds(0, None) == 0.0
    assert drain_seconds(5, None) is None
    assert drain_seconds(5, 0.0) is None


def test_a_pressure_cannot_be_changed() -> None:
    pressure = Pressure("ok", 0, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        pressure.ready = 1  # type: ignore[misc]
