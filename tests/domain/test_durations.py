"""Seconds, however they were given."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from django_jobs.domain.numbers import as_seconds, seconds_of, without_decimal


class Broken:
    def __float__(self) -> float:
        raise RuntimeError


@pytest.mark.parametrize(
    "given, seconds",
    [
        (5, 5.0),
        (0.5, 0.5),
        (Decimal("1.5"), 1.5),
        (timedelta(minutes=1), 60.0),
        (float("inf"), float("inf")),
        (float("nan"), None),
        (Decimal("NaN"), None),
        (True, None),
        ("soon", None),
        (None, None),
        (10**400, None),
        (Broken(), None),
    ],
)
def test_a_duration_is_converted_to_seconds_or_none(given: Any, seconds: float | None) -> None:
    assert as_seconds(given) == seconds


def test_a_decimal_becomes_a_float_and_nothing_else_changes() -> None:
    assert type(without_decimal(Decimal(5))) is float
    assert without_decimal(Decimal("-0.5")) == -0.5
    for value in (5, True, "soon", None, timedelta(1), Decimal("NaN"), Decimal("sNaN")):
        assert without_decimal(value) is value


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90s", 90),
        ("15m", 900),
        ("12h", 43_200),
        ("7d", 604_800),
        ("2w", 1_209_600),
        (" 1.5 h ", 5_400),
        (30, 30),
        (0.5, 0.5),
        (None, None),
    ],
)
def test_a_duration_is_read_in_seconds(text: Any, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 days", "1e3s", True, -1, float("nan")])
def test_anything_else_is_not_a_duration(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration; write it as 90s"):
        seconds_of(text)
