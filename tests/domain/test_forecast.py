"""When a backlog will be gone."""

from __future__ import annotations

import pytest

from django_jobs.domain.pressure import Rates, drain_seconds, rates_of


def test_what_ended_and_what_is_more_than_before_has_arrived() -> None:
    assert rates_of(ready=(80, 100), running=(3, 3), ended=50, seconds=10) == Rates(7, 5, 5)
    assert rates_of(ready=(80, 30), running=(3, 3), ended=50, seconds=10) == Rates(0, 5, 5)


def test_what_ended_and_what_is_running_and_was_not_before_has_been_claimed() -> None:
    assert rates_of(ready=(40, 30), running=(0, 10), ended=0, seconds=10) == Rates(0, 1, 0)
    assert rates_of(ready=(40, 45), running=(5, 10), ended=10, seconds=10) == Rates(2, 1.5, 1)
    assert rates_of(ready=(40, 45), running=(5, 0), ended=0, seconds=10).claimed == 0


def test_jobs_that_were_cancelled_are_no_negative_arrivals() -> None:
    assert rates_of(ready=(80, 0), running=(0, 0), ended=50, seconds=10).arrived == 0


@pytest.mark.parametrize(
    "ready, rates, seconds",
    [
        (100, Rates(2, 12, 1), 10),
        (100, Rates(12, 12, 20), None),
        (100, Rates(13, 12, 20), None),
        (100, None, None),
        (0, None, 0),
        (0, Rates(13, 12, 12), 0),
    ],
)
def test_a_backlog_is_drained_by_what_is_claimed_beyond_what_arrives(
    ready: int, rates: Rates | None, seconds: float | None
) -> None:
    assert drain_seconds(ready, rates and rates.drained) == seconds
