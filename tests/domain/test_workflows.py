"""What the end of a step means for those after it."""

from __future__ import annotations

import pytest

from django_jobs.domain.states import JobState
from django_jobs.domain.workflows import Fate, Skipped, When, fate_of, is_met


@pytest.mark.parametrize(
    ("status", "skipped", "fate"),
    [
        (JobState.SUCCEEDED, None, Fate.SUCCEEDED),
        (JobState.DEAD, None, Fate.FAILED),
        (JobState.CANCELLED, None, Fate.FAILED),
        (JobState.CANCELLED, Skipped.FAILED, Fate.FAILED),
        (JobState.CANCELLED, Skipped.UNNEEDED, Fate.UNNEEDED),
        (JobState.CANCELLED, Skipped.PASSED, Fate.SUCCEEDED),
    ],
)
def test_a_fate_follows_from_the_status_and_the_reason(
    status: JobState, skipped: Skipped | None, fate: Fate
) -> None:
    assert fate_of(status, skipped) == fate


def test_a_condition_is_met_by_its_own_fate_and_finished_by_each() -> None:
    met = {(when, fate) for when in When for fate in Fate if is_met(when, fate)}
    assert met == {
        (When.SUCCEEDED, Fate.SUCCEEDED),
        (When.FAILED, Fate.FAILED),
        *((When.FINISHED, fate) for fate in Fate),
    }
