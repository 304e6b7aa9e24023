"""The rates of a backlog that is estimated, because it is too long to be counted."""

from __future__ import annotations

import pytest

from django_jobs.admin.overview.numbers import Numbers, rates_of_queue
from django_jobs.domain.pressure import Rates
from django_jobs.lifecycle.backlog_samples import Past

PAST = Past(
    runs=160,
    running=0,
    counted=True,
    seconds=250.0,
    ready_before=400_000,
    running_before=0,
    runs_before=0,
    last_seconds=50.0,
    last_ready=399_900,
    last_running=0,
    last_runs=100,
    forecasts=0,
    error_ratio=None,
)


@pytest.mark.parametrize(
    "estimated, rates",
    [
        (1, Rates(arrived=0.0, claimed=0.5, ended=0.5)),
        (None, Rates(arrived=160 / 250, claimed=160 / 250, ended=160 / 250)),
    ],
)
def test_the_rates_of_an_estimated_backlog_are_those_of_its_samples(
    estimated: int | None, rates: Rates
) -> None:
    jobs = {"queue": "default", "state": "ready", "jobs": 400_000, "estimated": estimated}
    past = {"queue": "default", **PAST._asdict()}
    numbers = Numbers({"jobs": [jobs]}, {"past": [past]})
    assert rates_of_queue(numbers, "default") == rates
