"""What the end of a step means for those after it."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.states import JobState
from django_jobs.domain.workflows import Fate, If, Skipped, When, condition_text, fate_of, is_met


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


@pytest.mark.parametrize(
    ("path", "asked", "text"),
    [
        ("order.paid", {"equals": True}, "order.paid = true"),
        ("", {"not_equals": "ä"}, 'result ≠ "ä"'),
        ("n", {"at_most": 9.5, "at_least": 1}, "n ≥ 1, n ≤ 9.5"),
        ("state", {"in_": ("new", 1)}, 'state in ["new", 1]'),
    ],
)
def test_a_condition_on_a_result_is_shown_in_any_language(
    path: str, asked: dict[str, Any], text: str
) -> None:
    assert condition_text(If(path, **asked).document) == text


@pytest.mark.parametrize(
    ("path", "asked", "message"),
    [
        ("approved", {}, "needs one of equals=, not_equals=, at_least=, at_most= and in_="),
        (7, {"equals": 1}, "the path is keys joined by dots, not 7"),
        ("a..b", {"equals": 1}, "the path is keys joined by dots, not 'a..b'"),
        ("a", {"at_least": "1"}, "at_least is a number, not '1'"),
        ("a", {"at_most": True}, "at_most is a number, not True"),
        ("a", {"at_most": float("nan")}, "If.at_most"),
        ("a", {"in_": "abc"}, "in_ is a list, not 'abc'"),
        ("a", {"equals": {1}}, "If.equals: a set is not JSON"),
        ("a", {"in_": []}, "no result can be that"),
        ("a", {"at_least": 5, "at_most": 1}, "no result can be that"),
        ("a\x00", {"equals": 1}, "NUL"),
        ("a", {"equals": "x" * 10_000}, "10,000 bytes"),
    ],
)
def test_what_is_no_condition_is_refused(path: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        If(path, **asked)
