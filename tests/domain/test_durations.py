"""Seconds, however they were given."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from django_jobs.domain.durations import as_seconds


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
