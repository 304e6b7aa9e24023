"""Fate: a pure function of facts and outcome, total, and within the diagram of states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.backoff import LONGEST_DELAY, Backoff
from django_jobs.domain.decisions import (
    LONGEST_RETRY_AFTER,
    LONGEST_SNOOZE,
    WINDOW_OVER,
    Decision,
    Facts,
    decide,
)
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import (
    Cancelled,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from django_jobs.domain.states import AFTER_RUNNING, FINAL, JobState, RunState

NOW = 1_800_000_000.0
ERROR = ErrorReport.plain("ValueError", "boom")
RUN_OF = {
    Succeeded: RunState.SUCCEEDED,
    Failed: RunState.FAILED,
    TimedOut: RunState.TIMED_OUT,
    Lost: RunState.LOST,
    Snoozed: RunState.SNOOZED,
    Cancelled: RunState.CANCELLED,
    Released: RunState.RELEASED,
}

any_float = st.floats(allow_nan=True, allow_infinity=True)
junk = st.none() | st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8))
facts = st.builds(
    Facts,
    failures=st.integers(0, 50),
    crashes=st.integers(0, 5),
    max_attempts=st.integers(1, 50),
    max_crashes=st.integers(1, 5),
    backoff=junk | st.just(Backoff.fixed(10).as_json()),
    expires_at=st.none() | st.floats(NOW - 1e6, NOW + 1e6),
    cancel_requested=st.booleans(),
    at_most_once=st.booleans(),
    down=st.just("") | st.just("stripe"),
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, result=st.none() | st.just("1")),
    st.builds(
        Failed,
        error=st.just(ERROR),
        retry_after=st.none() | any_float,
        final=st.booleans(),
        budget=st.none() | st.integers(1, 50),
        queue=st.none() | st.just("slow"),
        priority=st.none() | st.integers(-100, 100),
        max_attempts=st.none() | st.integers(1, 50),
    ),
    st.builds(TimedOut, seconds=any_float, silent=st.booleans()),
    st.builds(Lost, reason=st.text(max_size=20), alone=st.booleans()),
    st.builds(
        Snoozed,
        seconds=any_float,
        reason=st.text(max_size=20),
        awaits=st.none() | st.just("approval"),
    ),
    st.builds(Cancelled, reason=st.text(max_size=20), skipped=st.booleans()),
    st.builds(Released, reason=st.text(max_size=20), began=st.booleans()),
)


def some_facts(**changes: object) -> Facts:
    plain = {"failures": 0, "crashes": 0, "max_attempts": 5, "max_crashes": 3}
    return Facts(**{**plain, **changes})  # type: ignore[arg-type]


@given(facts, outcomes)
def test_every_outcome_has_a_transition_in_the_diagram(facts: Facts, outcome: Outcome) -> None:
    decision = decide(facts, outcome, NOW)
    assert decision.run == RUN_OF[type(outcome)]
    assert decision.status in AFTER_RUNNING[decision.run]


@given(facts, outcomes)
def test_a_delay_is_bounded_and_set_only_for_postponed_jobs(facts: Facts, outcome: Outcome) -> None:
    delay = decide(facts, outcome, NOW).delay
    status = decide(facts, outcome, NOW).status
    postponed = (JobState.SCHEDULED, JobState.BLOCKED, JobState.WAITING)
    assert (delay is not None) == (status in postponed)
    if delay is not None:
        assert math.isfinite(delay)
        assert 0 <= delay <= LONGEST_DELAY


@given(facts, outcomes)
def test_a_queue_and_a_priority_are_those_asked_for_and_set_only_for_a_retry(
    facts: Facts, outcome: Outcome
) -> None:
    decision = decide(facts, outcome, NOW)
    if isinstance(outcome, Failed) and decision.status == JobState.SCHEDULED:
        assert (decision.queue, decision.priority) == (outcome.queue, outcome.priority)
    else:
        assert (decision.queue, decision.priority) == (None, None)


@given(facts, outcomes)
def test_failures_never_shrink_and_grow_by_one_for_failures_only(
    facts: Facts, outcome: Outcome
) -> None:
    decision = decide(facts, outcome, NOW)
    counted = isinstance(outcome, Failed | TimedOut) and decision.status != JobState.BLOCKED
    assert decision.failures - facts.failures == (1 if counted else 0)


@given(facts, outcomes)
def test_a_loss_adds_a_crash_and_only_a_surviving_process_resets_them(
    facts: Facts, outcome: Outcome
) -> None:
    crashes = decide(facts, outcome, NOW).crashes
    if isinstance(outcome, Lost):
        assert crashes == facts.crashes + 1
    elif isinstance(outcome, Released | Cancelled):
        assert crashes == facts.crashes
    else:
        assert crashes == 0


@given(facts, outcomes)
def test_any_ending_of_a_cancelled_job_but_success_is_cancelled(
    facts: Facts, outcome: Outcome
) -> None:
    decision = decide(facts, outcome, NOW)
    if isinstance(outcome, Succeeded):
        assert decision.status == JobState.SUCCEEDED
        assert decision.result == outcome.result
    elif facts.cancel_requested:
        assert decision.status == JobState.CANCELLED


@given(facts, outcomes)
def test_dead_and_cancelled_jobs_have_a_reason(facts: Facts, outcome: Outcome) -> None:
    decision = decide(facts, outcome, NOW)
    assert bool(decision.reason) == (decision.status in FINAL - {JobState.SUCCEEDED})


@given(facts, st.booleans(), st.none() | any_float, st.none() | st.integers(1, 50))
def test_a_failure_is_dead_exactly_when_a_rule_says_so(
    facts: Facts, final: bool, retry_after: float | None, budget: int | None
) -> None:
    outcome = Failed(error=ERROR, retry_after=retry_after, final=final, budget=budget)
    decision = decide(facts, outcome, NOW, spread=lambda: 0.0)
    if facts.cancel_requested:
        return
    failures = facts.failures + 1
    spent = failures >= facts.max_attempts or (budget is not None and failures >= budget)
    if final or facts.at_most_once or (spent and not facts.down):
        assert decision.status == JobState.DEAD
    elif facts.down:
        assert decision.status == JobState.BLOCKED
    elif facts.expires_at is None:
        assert decision.status == JobState.SCHEDULED
    elif decision.status == JobState.SCHEDULED:
        assert NOW + (decision.delay or 0) < facts.expires_at
    else:
        assert "max_age" in decision.reason


@given(facts, outcomes)
def test_release_and_snooze_count_as_no_failure(facts: Facts, outcome: Outcome) -> None:
    if isinstance(outcome, Released | Snoozed):
        decision = decide(facts, outcome, NOW)
        assert decision.failures == facts.failures
        assert decision.crashes <= facts.crashes
    if isinstance(outcome, Released) and not facts.cancel_requested:
        never_again = facts.at_most_once and outcome.began
        assert decision.status == (JobState.DEAD if never_again else JobState.READY)


@given(facts, outcomes)
def test_an_at_most_once_job_runs_again_only_if_its_handler_asks(
    facts: Facts, outcome: Outcome
) -> None:
    decision = decide(replace(facts, at_most_once=True), outcome, NOW)
    if isinstance(outcome, Snoozed) or (isinstance(outcome, Released) and not outcome.began):
        return
    if isinstance(outcome, Failed) and outcome.max_attempts is not None:
        return
    assert decision.status in FINAL


def test_a_retry_with_its_own_number_of_attempts_overrides_that_of_the_job() -> None:
    facts = some_facts(at_most_once=True, max_attempts=1, failures=1)
    asked = Failed(error=ERROR, retry_after=2 * LONGEST_RETRY_AFTER, max_attempts=3)
    decision = decide(facts, asked, NOW)
    assert (decision.status, decision.delay) == (JobState.SCHEDULED, 2 * LONGEST_RETRY_AFTER)
    decision = decide(replace(facts, failures=2), asked, NOW)
    assert (decision.status, decision.reason) == (JobState.DEAD, "failed 3 of 3 times")


@pytest.mark.parametrize(
    "asked, given",
    [
        (None, 10.0),
        (0, 0.0),
        (30.5, 30.5),
        (-5, 0.0),
        (float("-inf"), 0.0),
        (float("inf"), LONGEST_RETRY_AFTER),
        (float("nan"), LONGEST_RETRY_AFTER),
        (10 * LONGEST_RETRY_AFTER, LONGEST_RETRY_AFTER),
    ],
)
def test_a_retry_after_overrides_the_backoff_within_bounds(
    asked: float | None, given: float
) -> None:
    facts = some_facts(backoff=Backoff.fixed(10).as_json())
    assert decide(facts, Failed(error=ERROR, retry_after=asked), NOW).delay == given


@pytest.mark.parametrize(
    "asked, given",
    [(5, 5.0), (-1, 0.0), (float("nan"), LONGEST_SNOOZE), (float("inf"), LONGEST_SNOOZE)],
)
def test_a_snooze_is_bounded(asked: float, given: float) -> None:
    assert decide(some_facts(), Snoozed(seconds=asked), NOW).delay == given


def test_no_retry_begins_after_the_window_but_a_snooze_may() -> None:
    facts = some_facts(retry_until=NOW + 60)
    for after, status in (60, JobState.SCHEDULED), (61, JobState.DEAD):
        assert decide(facts, Failed(error=ERROR, retry_after=after), NOW).status == status
    assert decide(facts, Lost(reason="killed"), NOW + 61).reason == WINDOW_OVER
    assert decide(facts, Snoozed(seconds=3600), NOW).status == JobState.SCHEDULED
    down = replace(facts, down="stripe")
    assert decide(down, Failed(error=ERROR, retry_after=61), NOW).status == JobState.BLOCKED


def test_a_job_waits_for_a_signal_until_its_time_out_or_its_max_age() -> None:
    waits = Snoozed(seconds=math.inf, awaits="approval")
    decision = decide(some_facts(), waits, NOW)
    assert (decision.status, decision.awaits) == (JobState.WAITING, "approval")
    assert decision.delay == LONGEST_SNOOZE
    decision = decide(some_facts(expires_at=NOW + 60), waits, NOW)
    assert (decision.status, decision.delay) == (JobState.WAITING, 60)
    assert decide(some_facts(expires_at=NOW), waits, NOW).status == JobState.DEAD
    decision = decide(some_facts(cancel_requested=True), waits, NOW)
    assert (decision.status, decision.awaits) == (JobState.CANCELLED, None)


def test_the_backoff_grows_with_the_failures() -> None:
    rule = Backoff.linear(10, jitter=0).as_json()
    delays = [
        decide(some_facts(failures=count, backoff=rule), Failed(error=ERROR), NOW).delay
        for count in range(3)
    ]
    assert delays == [10, 20, 30]


def test_a_poison_pill_is_dead_at_its_third_crash_and_not_before() -> None:
    def after(crashes: int) -> Decision:
        return decide(some_facts(crashes=crashes), Lost(reason="SIGSEGV"), NOW)

    assert [after(0).status, after(1).status] == [JobState.READY, JobState.READY]
    assert after(2).status == JobState.DEAD
    assert after(2).reason == "crashed 3 times: SIGSEGV"
    assert after(2).failures == 0


def test_the_reason_of_a_dead_at_most_once_job_names_its_delivery() -> None:
    once = some_facts(at_most_once=True)
    assert decide(once, Failed(error=ERROR), NOW).reason == (
        "its delivery is at_most_once, and it failed: ValueError: boom"
    )
    assert decide(once, Lost(reason="SIGKILL"), NOW).reason == (
        "its delivery is at_most_once, and its outcome is unknown: SIGKILL"
    )
    assert decide(once, Released(), NOW).reason == (
        "its delivery is at_most_once, and it was interrupted: its worker stopped"
    )


def test_an_error_budget_may_be_smaller_than_max_attempts() -> None:
    outcome = Failed(error=ERROR, budget=2)
    assert decide(some_facts(failures=0), outcome, NOW).status == JobState.SCHEDULED
    spent = decide(some_facts(failures=1), outcome, NOW)
    assert spent.status == JobState.DEAD
    assert spent.reason == "failed 2 times, and the error budget of ValueError is 2"


def test_a_crash_of_a_process_with_one_job_differs_from_one_with_several() -> None:
    kinds = [
        error.type
        for alone in (True, False)
        if (error := decide(some_facts(), Lost(reason="SIGSEGV", alone=alone), NOW).error)
    ]
    assert kinds == ["Crashed", "WorkerLost"]


def test_a_silent_attempt_differs_from_a_long_one() -> None:
    error = decide(some_facts(), TimedOut(seconds=30, silent=True), NOW).error
    assert error is not None
    assert error.message == "reported no progress for 30 s"


def test_a_time_out_counts_as_a_failure_and_says_how_long_it_had() -> None:
    decision = decide(some_facts(), TimedOut(seconds=2.5), NOW)
    assert decision.failures == 1
    assert decision.error is not None
    assert decision.error.summary == "TimedOut: exceeded its time-out of 2.5 s"


@pytest.mark.parametrize(
    "measured, declared, shown",
    [
        (2.99995, 3.0, "3"),
        (0.4999, 0.5, "0.5"),
        (0.2, 0.5, "0.5"),  # the process stood still between two readings
        (600.0, 600.0, "600"),
        (0.00100004, 0.001, "0.001"),
        (1e7 + 0.0001, 1e7, "10000000"),
    ],
)
def test_a_time_out_is_shown_as_declared(measured: float, declared: float, shown: str) -> None:
    decision = decide(some_facts(timeout=declared), TimedOut(seconds=measured), NOW)
    assert decision.error is not None
    assert decision.error.message == f"exceeded its time-out of {shown} s"
    silent = decide(some_facts(timeout=declared), TimedOut(seconds=7.5, silent=True), NOW)
    assert silent.error is not None
    assert silent.error.message == "reported no progress for 7.5 s"
