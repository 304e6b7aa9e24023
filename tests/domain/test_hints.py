"""What a misspelt name was probably meant to be."""

from __future__ import annotations

import pickle
from inspect import signature
from typing import Any

import pytest

from django_jobs import (
    Backoff,
    Cancel,
    Concurrency,
    Discard,
    If,
    Retry,
    Skip,
    Snooze,
    Stored,
)
from django_jobs.domain.hints import did_you_mean


def test_the_nearest_name_is_named() -> None:
    assert did_you_mean("reprot", ["report", "clean"]) == "did you mean 'report'?"
    assert did_you_mean("REPORT", ["report"]) == "did you mean 'report'?"


def test_most_sets_the_number_of_suggestions() -> None:
    near = did_you_mean("report", ["reports", "Reporter", "clean"], most=3)
    assert near == "did you mean 'reports' or 'Reporter'?"


def test_an_unlike_name_gives_no_hint() -> None:
    assert did_you_mean("xyz", ["report"]) == ""
    assert did_you_mean("report", []) == ""
    assert did_you_mean("app.resize", ["app.report"], cutoff=0.8) == ""


@pytest.mark.parametrize(
    "named", [Retry, Snooze, Discard, Cancel, Skip, If, Backoff, Concurrency, Stored]
)
def test_a_class_that_is_called_otherwise_names_what_it_takes(named: Any) -> None:
    names = ", ".join([*signature(named.__init__).parameters][1:])
    for call in (
        lambda: named(countdown=5),
        lambda: named(*range(9)),
        lambda: named(5, **{names.split(", ")[0]: 5}),
    ):
        with pytest.raises(TypeError) as refused:
            call()
        assert str(refused.value).startswith(f"{named.__name__}: ")
        assert f"; it takes {names}" in str(refused.value)


def test_a_backoff_that_is_called_names_the_ways_to_make_one() -> None:
    for given in ((5,), ([1, 2],), ()):
        with pytest.raises(TypeError, match=r"write Backoff.exponential\(base=5\), or Backoff.f"):
            Backoff(*given)


def test_an_error_inside_of_a_constructor_stays_as_it_is() -> None:
    with pytest.raises(TypeError, match=r"^key is text or a function of the payload, not 5$"):
        Concurrency(5)  # type: ignore[arg-type]
    for made in (Cancel("late"), Backoff.fixed(5), If(equals=1)):
        copied = pickle.loads(pickle.dumps(made))
        assert (type(copied), str(copied)) == (type(made), str(made))
