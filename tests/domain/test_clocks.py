"""The difference of two clocks."""

from __future__ import annotations

import pytest

from django_jobs.domain.numbers import clock_skew


@pytest.mark.parametrize(
    "before, there, after, skew",
    [
        (100.0, 100.5, 101.0, 0.0),
        (100.0, 100.0, 100.0, 0.0),
        (100.0, 10.0, 101.0, 90.0),
        (100.0, 190.0, 101.0, -89.0),
        (100.0, 104.9, 105.0, 0.0),
    ],
    ids=["within", "equal", "ahead", "behind", "slow"],
)
def test_the_time_that_an_answer_takes_is_no_difference(
    before: float, there: float, after: float, skew: float
) -> None:
    assert clock_skew(before, there, after) == skew
