"""What is said of a value that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.checks.setting_rules import RULES

CRASHES = '"crashes" is not a whole number from 1 to 2,147,483,647'
SECONDS = '"seconds" is not a positive number below 1,000,000,000'


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"crashes": "3"}, CRASHES),
        ({"crashes": 0}, CRASHES),
        ({"crashes": True, "seconds": 600}, CRASHES),
        ({"seconds": "10m"}, SECONDS),
        ({"seconds": None}, SECONDS),
        ({"crashes": 3, "seconds": float("inf")}, SECONDS),
        ({"crash": 3, 7: 7}, """its keys may be "crashes" and "seconds", not 'crash', 7"""),
    ],
)
def test_an_invalid_quarantine_setting_is_reported_with_the_valid_form(
    value: Any, expected: str
) -> None:
    assert RULES["QUARANTINE"].rule(value) == f"wrong ({expected})"


@pytest.mark.parametrize("value", [{}, {"crashes": None}, {"crashes": 1, "seconds": 0.5}])
def test_a_valid_quarantine_setting_is_not_reported(value: Any) -> None:
    assert RULES["QUARANTINE"].rule(value) is None
