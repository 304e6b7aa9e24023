"""What is kept of finished jobs, as people write it."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.retention import ALL, Kept, kept_by_status

DAY = 86_400.0


def test_a_plain_duration_is_an_age() -> None:
    assert kept_by_status({"succeeded": "7d", "cancelled": 60, "dead": "180d"}) == {
        "succeeded": Kept(age=7 * DAY),
        "cancelled": Kept(age=60.0),
        "dead": Kept(age=180 * DAY),
    }


def test_dead_jobs_have_an_age_and_a_number() -> None:
    assert kept_by_status({"dead": {"age": "180d", "number": 10_000}}) == {
        "dead": Kept(age=180 * DAY, number=10_000)
    }
    assert kept_by_status({"dead": {"number": 1}}) == {"dead": Kept(number=1)}


@pytest.mark.parametrize("value", [None, {}, {"age": None}, {"age": None, "number": None}])
def test_none_means_no_limit(value: Any) -> None:
    assert kept_by_status({"dead": value}) == {"dead": ALL}


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"ready": "7d"}, "its keys may be cancelled, dead, succeeded, not 'ready'"),
        ({1: "7d"}, "its keys may be cancelled, dead, succeeded, not 1"),
        ({"dead": "soon"}, "'soon' is not a duration; write it as 90s"),
        ({"dead": {"age": "soon"}}, "'soon' is not a duration; write it as 90s"),
        ({"dead": [1]}, "is not a duration; write it as 90s"),
        ({"dead": {"size": 1}}, "the keys of \"dead\" may be age, number, not 'size'"),
        ({"succeeded": {"number": 1}}, 'only dead jobs have a number: write "succeeded"'),
    ],
)
def test_an_unreadable_retention_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        kept_by_status(given)


@pytest.mark.parametrize("number", [0, -1, 1.5, 100.0, "100", True, 2**31])
def test_a_number_is_whole_and_at_least_one(number: Any) -> None:
    with pytest.raises(ValueError, match='"number" must be a whole number from 1 to 2,147,483,647'):
        kept_by_status({"dead": {"number": number}})
