"""When a backlog will be gone."""

from __future__ import annotations

import pytest

from django_jobs.domain.forecast import Rates, drain_seconds, rates_of


def test_what_ended_and_what_is_more_than_before_has_arrived() -> None:
    assert rates_of(ready=100, ready_before=80, ended=50, seconds=10) == Rates(7, 5)
    assert rates_of(ready=30, ready_before=80, ended=50, seconds=10) == Rates(0, 5)


def test_jobs_that_were_cancelled_are_no_negative_arrivals() -> None:
    assert rates_of(ready=0, ready_before=80, ended=50, seconds=10).arrived == 0


@pytest.mark.parametrize(
    "ready, rates, seconds",
    [
        (100, Rates(2, 12), 10),
        (100, Rates(12, 12), None),
        (100, Rates(13, 12), None),
        (100, None, None),
        (0, None, 0),
        (0, Rates(13, 12), 0),
    ],
)
def test_a_backlog_is_drained_by_what_ends_beyond_what_arrives(
    ready: int, rates: Rates | None, seconds: float | None
) -> None:
    assert drain_seconds(ready, rates) == seconds
