"""What the first sentence on a job's page says about its time limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_jobs.admin.job_sections.why import ends_by
from django_jobs.domain.numbers import LONGEST_TIMEOUT
from django_jobs.models import Job

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize("timeout", [0.25, 60.0, LONGEST_TIMEOUT])
def test_a_job_ends_by_its_time_limit(timeout: float) -> None:
    assert ends_by(Job(claimed_at=NOON, timeout=timeout)) == NOON + timedelta(seconds=timeout)


@pytest.mark.parametrize("timeout", [None, 0.0, -1.0, LONGEST_TIMEOUT + 1, float("nan")])
def test_a_time_limit_that_no_worker_keeps_is_none(timeout: float | None) -> None:
    assert ends_by(Job(claimed_at=NOON, timeout=timeout)) is None


def test_a_time_limit_beyond_the_year_9999_is_none() -> None:
    claimed_at = datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert ends_by(Job(claimed_at=claimed_at, timeout=7_200.0)) is None
