"""When the supervisor ends what did not end by itself. With real processes: test_time_limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_jobs.worker.board import InHand
from django_jobs.worker.watch import SOFT_GRACE, _overdue

RUNNING = InHand(
    index=0,
    job=1,
    worker=1,
    attempt=1,
    started=100.0,
    deadline=110.0,
    silence=5.0,
    heard=104.0,
    finished=False,
    cancel_asked=False,
    alone=False,
)


@pytest.mark.parametrize(
    "now, ending",
    [
        (109.0 + SOFT_GRACE, None),
        (109.1 + SOFT_GRACE, ("silent", 5.0)),
        (110.1 + SOFT_GRACE, ("timed_out", 10.0)),
    ],
)
def test_a_job_is_overdue_a_moment_after_its_time(
    now: float, ending: tuple[str, float] | None
) -> None:
    assert _overdue(RUNNING, now) == ending


@pytest.mark.parametrize("torn", [0.0, 5e-324, 3.2])
def test_a_time_that_was_read_while_it_was_written_ends_nothing(torn: float) -> None:
    assert _overdue(replace(RUNNING, heard=torn), 109.5) is None
    assert _overdue(replace(RUNNING, deadline=torn, heard=109.0), 109.5) is None
