"""One number orders the ready jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.numbers import (
    AGEING_WEIGHT,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    STRICT_WEIGHT,
    is_priority,
)

NOW = 1_800_000_000.0
priorities = st.integers(LOWEST_PRIORITY, HIGHEST_PRIORITY)


def rank(available_at: float, priority: int, weight: float) -> float:
    """As the statements compute it."""
    return available_at - priority * weight


def test_a_higher_priority_goes_before_a_lower_of_the_same_age() -> None:
    assert rank(NOW, 5, AGEING_WEIGHT) < rank(NOW, 4, AGEING_WEIGHT)


def test_a_job_that_waited_long_starts_before_a_new_one_of_higher_priority() -> None:
    assert rank(NOW - 9 * 60 - 1, 0, AGEING_WEIGHT) < rank(NOW, 9, AGEING_WEIGHT)
    assert rank(NOW - 9 * 60 + 1, 0, AGEING_WEIGHT) > rank(NOW, 9, AGEING_WEIGHT)


@given(high=priorities, low=priorities, waited=st.floats(0, 3 * 365 * 86_400))
def test_with_the_strict_weight_no_wait_of_three_years_makes_up_for_a_point(
    high: int, low: int, waited: float
) -> None:
    if high > low:
        assert rank(NOW, high, STRICT_WEIGHT) < rank(NOW - waited, low, STRICT_WEIGHT)


@given(priority=priorities, gap=st.floats(1e-5, 10))
def test_with_the_strict_weight_equal_priorities_still_go_by_age(priority: int, gap: float) -> None:
    assert rank(NOW, priority, STRICT_WEIGHT) < rank(NOW + gap, priority, STRICT_WEIGHT)


def test_a_priority_is_a_whole_number_from_minus_100_to_100() -> None:
    assert all(map(is_priority, range(LOWEST_PRIORITY, HIGHEST_PRIORITY + 1)))
    assert not any(map(is_priority, (-101, 101, True, 1.0, "1", None)))
