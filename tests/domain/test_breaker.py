"""When a breaker opens, lets jobs try, and closes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.breaker import (
    PROBES,
    Breaker,
    BreakerState,
    change,
    is_failure,
    says_something,
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
from django_jobs.models import BreakerState as Choices

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
NEXT = {CLOSED: {OPEN}, OPEN: {HALF_OPEN}, HALF_OPEN: {OPEN, CLOSED}}
ERROR = ErrorReport.plain("ValueError", "boom")

breakers = st.builds(
    Breaker,
    state=st.sampled_from(BreakerState),
    most=st.none() | st.integers(1, 50),
    window=st.floats(1, 1e6),
    open_for=st.floats(1, 1e6),
    seconds=st.floats(0) | st.just(float("inf")),
    failures=st.integers(0, 60),
    successes=st.integers(0, 10),
)


def breaker(state: BreakerState, **values: object) -> Breaker:
    plain = {"most": 20, "window": 60.0, "open_for": 30.0, "seconds": 0.0}
    return Breaker(state=state, **{**plain, **values})  # type: ignore[arg-type]


@given(breakers)
def test_a_change_is_to_a_neighbour_and_has_a_reason(one: Breaker) -> None:
    if (changed := change(one)) is not None:
        state, reason = changed
        assert state in NEXT[one.state]
        assert 0 < len(reason) <= 300


@given(breakers)
def test_what_just_changed_and_has_seen_nothing_stays(one: Breaker) -> None:
    assert change(replace(one, seconds=0.0, failures=0, successes=0)) is None


@given(breakers)
def test_one_more_failure_never_closes(one: Breaker) -> None:
    changed = change(replace(one, failures=one.failures + 1))
    assert changed is None or changed[0] != CLOSED


@given(breakers)
def test_it_opens_by_itself_only_with_a_rule_or_after_a_try(one: Breaker) -> None:
    changed = change(replace(one, state=CLOSED, most=None))
    assert changed is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (breaker(CLOSED, failures=19), None),
        (breaker(CLOSED, failures=20), (OPEN, "20 failures in 60 s")),
        (breaker(OPEN, seconds=29.9, failures=50), None),
        (breaker(OPEN, seconds=30.0), (HALF_OPEN, "it was open for 30 s")),
        (breaker(HALF_OPEN, successes=PROBES - 1), None),
        (
            breaker(HALF_OPEN, successes=PROBES),
            (CLOSED, "3 jobs succeeded while it was half open"),
        ),
        (
            breaker(HALF_OPEN, successes=PROBES, failures=1),
            (OPEN, "a job failed while it was half open"),
        ),
    ],
)
def test_the_rule(before: Breaker, after: tuple[BreakerState, str] | None) -> None:
    assert change(before) == after


@pytest.mark.parametrize(
    ("outcome", "fails"),
    [
        (Failed(error=ERROR), True),
        (Failed(error=ERROR, retry_after=5.0), True),
        (TimedOut(seconds=5.0), True),
        (Failed(error=ERROR, final=True), False),
        (Snoozed(seconds=5.0), False),
        (Succeeded(), False),
        (Lost(reason="killed"), False),
        (Cancelled(), False),
        (Released(), False),
    ],
)
def test_only_what_another_attempt_may_not_meet_is_a_failure(outcome: Outcome, fails: bool) -> None:
    assert is_failure(outcome) == fails
    assert says_something(outcome) == (fails or outcome == Succeeded())


def test_the_choices_of_the_column_are_the_states() -> None:
    assert Choices.values == [state.value for state in BreakerState]
