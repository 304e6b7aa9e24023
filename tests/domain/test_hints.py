"""What a misspelt name was probably meant to be."""

from __future__ import annotations

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
