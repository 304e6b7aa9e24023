"""How many retries a budget allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.admission import ALWAYS, retries_allowed

counts = st.floats(0, 1e6)


@given(st.floats(0, 0.99), counts, counts)
def test_what_is_allowed_stays_within_the_budget_or_the_few_that_any_allows(
    budget: float, starts: float, retries: float
) -> None:
    more = retries_allowed(budget, starts, retries)
    assert more >= 0
    if more:
        bound = max(ALWAYS, budget * (starts + more))
        assert retries + more <= bound + 1e-6 * bound


@pytest.mark.parametrize(
    ("budget", "starts", "retries", "allowed"),
    [(0.2, 0, 0, 10), (0.2, 100, 0, 25), (0.2, 100, 20, 0), (0.0, 100, 0, 10), (0.5, 30, 15, 0)],
)
def test_the_rule(budget: float, starts: float, retries: float, allowed: int) -> None:
    assert retries_allowed(budget, starts, retries) == allowed
