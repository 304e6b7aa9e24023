"""Rates as people write them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.numbers import SECONDS, Rate, rate_of


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50/s", (50, 1)),
        ("100/m", (100, 60)),
        ("3000/h", (3000, 3600)),
        ("10/5s", (10, 5)),
        ("0.5/s", (0.5, 1)),
        ("1/0.5s", (1, 0.5)),
        (" 5 / 2 m ", (5, 120)),
        ("7/d", (7, 86_400)),
    ],
)
def test_a_rate_is_a_number_in_a_period(text: str, rate: tuple[float, float]) -> None:
    assert rate_of(text) == Rate(*rate)


@given(
    st.integers(1, 10**9),
    st.one_of(st.just(""), st.integers(1, 52).map(str)),
    st.sampled_from(list(SECONDS)),
)
def test_every_rate_that_can_be_written_is_read(count: int, periods: str, unit: str) -> None:
    assert rate_of(f"{count}/{periods}{unit}") == (count, int(periods or 1) * SECONDS[unit])


@given(st.text() | st.text("0123456789./ smhdw", max_size=9))
def test_any_text_is_a_positive_rate_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        assert min(rate_of(text)) > 0


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("50", "'50' is not a rate; write it as 50/s, 100/m, 3000/h or 10/5s"),
        (50, "50 is not a rate; write it as 50/s"),
        (None, "None is not a rate"),
        ("", "'' is not a rate"),
        ("-5/s", "'-5/s' is not a rate"),
        ("nan/s", "'nan/s' is not a rate"),
        ("50/sec", "'50/sec' is not a rate, because 'sec' is not a period; write it as 50/s"),
        ("50/5", "'50/5' is not a rate, because '5' is not a period"),
        ("0/s", "'0/s' lets nothing through: a rate is at least 0.0001"),
        ("0.00001/s", "'0.00001/s' lets nothing through"),
        ("5/0s", "'5/0s' has a period of 0 s, not of 0.001 s to 366 days"),
        ("5/53w", "'5/53w' has a period of 32054400.0 s"),
        (f"{'9' * 400}/s", "is not a rate"),
    ],
)
def test_anything_else_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate|nothing|period") as caught:
        rate_of(value)
    assert problem.replace("32054400.0", f"{32054400.0:g}") in str(caught.value)
