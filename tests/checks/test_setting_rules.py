"""What is said of a value that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.checks.setting_rules import RULES

CRASHES = '"crashes" must be a whole number from 1 to 2,147,483,647, or None, not '
SECONDS = '"seconds" must be a positive number below 1,000,000,000, not '


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"crashes": "3"}, f"{CRASHES}'3'"),
        ({"crashes": 0}, f"{CRASHES}0"),
        ({"crashes": True, "seconds": 600}, f"{CRASHES}True"),
        ({"seconds": "10m"}, f"{SECONDS}'10m'"),
        ({"seconds": None}, f"{SECONDS}None"),
        ({"crashes": 3, "seconds": float("inf")}, f"{SECONDS}inf"),
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
