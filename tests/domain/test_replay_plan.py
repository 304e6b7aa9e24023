"""The waves of a replay plan, and when it stops by itself."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.replay_plan import MOST_AWAITED, REMEMBERED, Outcome, ReplayPlan, remembered

PLAN = ReplayPlan()


def test_the_first_wave_is_one_job_and_the_second_waits_for_it() -> None:
    assert PLAN.may_send(0, 0, 0) == 1
    assert PLAN.may_send(1, 1, 99) == 0
    assert PLAN.may_send(1, 0, 0) == 20
    assert PLAN.may_send(15, 14, 0) == 6
    assert PLAN.may_send(21, 3, 99) == 0
    assert [PLAN.phase(sent) for sent in (0, 1, 20, 21)] == ["first", "then", "then", "rest"]


def test_the_rest_goes_at_the_rate_without_catching_up() -> None:
    assert PLAN.may_send(21, 0, 1.0) == 10
    assert PLAN.may_send(40, 5, 0.5) == 5
    assert PLAN.may_send(40, 5, 3600) == 20


def test_what_was_due_and_not_sent_is_still_due() -> None:
    assert PLAN.paced(100.0, 101.95, 19) == 101.9
    assert PLAN.paced(100.0, 102.0, 10) == 101.0
    assert PLAN.paced(100.0, 500.0, 0) == 498.0


def test_the_rest_waits_while_too_many_outcomes_are_unknown() -> None:
    fast = ReplayPlan(rate=1_000)
    assert fast.may_send(5_000, MOST_AWAITED - 7, 1.0) == 7
    assert fast.may_send(5_000, MOST_AWAITED, 1.0) == 0


def test_a_plan_without_a_second_wave_waits_for_the_first() -> None:
    plan = ReplayPlan(first=3, then=0)
    assert plan.may_send(0, 0, 0) == 3
    assert plan.may_send(3, 1, 9) == 0
    assert plan.may_send(3, 0, 1) == 10


@pytest.mark.parametrize(
    "outcomes, stops",
    [("", False), (".", False), ("x", True), ("....x", False), ("...x", True), ("x" * 100, True)],
)
def test_a_plan_stops_above_the_share_of_failures(outcomes: str, stops: bool) -> None:
    assert (PLAN.problem(outcomes) is not None) is stops


def test_the_reason_says_how_many_failed() -> None:
    assert PLAN.problem("..xx") == (
        "2 of the last 4 replayed jobs failed again: 50 %, more than 20 %"
    )
    assert ReplayPlan(most_failed=100).problem("xxxx") is None
    assert ReplayPlan(most_failed=0).problem("." * 99 + "x") is not None


def test_only_the_last_outcomes_count() -> None:
    outcomes = remembered("." * REMEMBERED, [Outcome.FAILED] * 21)
    assert (len(outcomes), outcomes.count("x")) == (REMEMBERED, 21)


def test_a_cancelled_job_says_nothing_of_the_next_ones() -> None:
    outcomes = [Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.FAILED]
    assert remembered(".", outcomes) == "..x"


def test_a_plan_survives_its_json() -> None:
    plan = ReplayPlan(first=2, then=3, rate=4, most_failed=5)
    assert ReplayPlan.from_json(plan.as_json()) == plan
    assert plan.seconds(105) == 25.0
    assert plan.seconds(1) == 0.0


@pytest.mark.parametrize(
    "given",
    [
        {"first": 0},
        {"then": -1},
        {"rate": 0},
        {"rate": 1_001},
        {"rate": 0.5},
        {"most_failed": 101},
        {"most_failed": True},
        {"other": 1},
        [],
    ],
)
def test_a_plan_with_other_numbers_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"a plan has|must be from"):
        ReplayPlan.from_json(given)
