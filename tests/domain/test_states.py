"""States: which are final, which are live, and where a run can take a job."""

from __future__ import annotations

from django_jobs.domain.states import AFTER_RUNNING, FINAL, LIVE, PENDING, JobState, RunState
from django_jobs.models import JobStatus, RunOutcome


def test_every_state_is_either_final_or_live() -> None:
    assert set(JobState) == FINAL | LIVE
    assert not FINAL & LIVE
    assert {JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED} == FINAL


def test_all_live_states_but_running_are_pending() -> None:
    assert PENDING | {JobState.RUNNING} == LIVE
    assert JobState.RUNNING not in PENDING


def test_every_outcome_leads_out_of_running() -> None:
    assert set(AFTER_RUNNING) == set(RunState)
    for states in AFTER_RUNNING.values():
        assert states
        assert JobState.RUNNING not in states


def test_only_success_leads_to_succeeded() -> None:
    leading = {run for run, states in AFTER_RUNNING.items() if JobState.SUCCEEDED in states}
    assert leading == {RunState.SUCCEEDED}


def test_the_choices_of_the_tables_are_the_states() -> None:
    assert JobStatus.values == [state.value for state in JobState]
    assert RunOutcome.values == [state.value for state in RunState]
