"""``jobschedule backfill``: the jobs of due times that passed, as one operation."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from django.core.management import CommandError

from django_jobs.management.base import operator
from django_jobs.models import Backfill, Job, Tick
from tests.factories import claim_ready, register_worker

from .test_jobschedule import jobschedule, make_schedule

RANGE = ("backfill", "nightly", "--from", "2026-10-23", "--to", "2026-10-26")


class Terminal(StringIO):
    """An input with a person behind it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())


@pytest.mark.django_db
def test_it_prints_the_number_of_jobs_and_makes_them() -> None:
    make_schedule(timezone="Europe/Paris")
    first, second = jobschedule(*RANGE, "--yes").splitlines()
    assert first == (
        "nightly: 4 jobs of app.noop, due from 2026-10-23 02:30:00 CEST to 2026-10-26 02:30:00 CET."
    )
    row = Backfill.objects.get()
    assert second == f"Made 4 jobs as backfill {row.pk}."
    assert row.requested_by == operator()
    assert Job.objects.filter(status="ready").count() == 4
    assert Tick.objects.filter(backfill=row, outcome="fired").count() == 4
    assert jobschedule(*RANGE) == "nightly: every due time in this range already has a job."


@pytest.mark.django_db
def test_a_dry_run_makes_nothing() -> None:
    make_schedule()
    assert jobschedule(*RANGE, "--dry-run").endswith("No job was made.")
    assert not Backfill.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("answer, jobs", [("y\n", 4), ("Yes\n", 4), ("\n", 0), ("no\n", 0)])
def test_a_person_at_a_terminal_is_asked_for_confirmation(
    monkeypatch: pytest.MonkeyPatch, answer: str, jobs: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    make_schedule()
    output = jobschedule(*RANGE)
    assert Job.objects.count() == jobs
    assert ("Made 4 jobs" in output) == bool(jobs)
    assert ("No job was made." in output) != bool(jobs)


@pytest.mark.django_db
def test_without_a_terminal_backfill_requires_yes() -> None:
    make_schedule()
    with pytest.raises(CommandError, match="give --yes"):
        jobschedule(*RANGE)
    assert not Backfill.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "begin, end, jobs",
    [
        ("2026-10-23", "2026-10-23", 1),
        ("2026-10-23T02:30", "2026-10-23T02:30", 1),
        ("2026-10-23T02:31", "2026-10-24T02:29", 0),
        ("2026-10-23T00:30Z", "2026-10-23T00:30:00+00:00", 1),
        ("2026-10-23T00:31Z", "2026-10-24T00:29Z", 0),
    ],
)
def test_times_without_an_offset_are_in_the_zone_of_the_schedule(
    begin: str, end: str, jobs: int
) -> None:
    make_schedule(timezone="Europe/Paris")
    output = jobschedule("backfill", "nightly", "--from", begin, "--to", end, "--dry-run")
    assert ("1 job of" in output) == bool(jobs)


@pytest.mark.django_db
def test_the_remaining_jobs_of_a_backfill_can_be_cancelled() -> None:
    make_schedule()
    jobschedule(*RANGE, "--yes")
    row = Backfill.objects.get()
    claim_ready(register_worker(), limit=1)
    output = jobschedule("backfill", "--cancel", row.pk)
    assert output == (
        f"nightly: cancelled 4 of 4 jobs of backfill {row.pk}; 1 running job asked to stop."
    )
    assert Job.objects.filter(status="cancelled").count() == 3
    reasons = set(Job.objects.filter(status="cancelled").values_list("reason", flat=True))
    assert reasons == {f"backfill {row.pk} cancelled by {operator()}"}
    row.refresh_from_db()
    assert row.cancelled_at is not None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "begin, end, problem",
    [
        ("yesterday", "2026-10-26", "'yesterday' is neither a date such as"),
        ("2026-13-01", "2026-10-26", "is neither a date such as"),
        ("2026-10-26", "2026-10-23", "ends before it begins"),
        ("2026-10-26", "2190-01-01", "must be in the past"),
        ("1969-12-31", "2026-10-26", "is not between the years 1970 and"),
        ("0001-01-01", "9999-12-31", "is not between the years 1970 and"),
        ("1971-01-01", "2026-10-26", "more than 10,000 due times"),
    ],
)
def test_an_invalid_range_is_refused(begin: str, end: str, problem: str) -> None:
    make_schedule()
    with pytest.raises(CommandError, match=problem):
        jobschedule("backfill", "nightly", "--from", begin, "--to", end)


@pytest.mark.django_db
def test_an_unknown_job_type_is_reported_before_the_confirmation() -> None:
    make_schedule(job_type="app.gone")
    with pytest.raises(CommandError, match=r"no job type is named 'app\.gone'"):
        jobschedule(*RANGE)


@pytest.mark.django_db
def test_a_schedule_with_a_broken_rule_is_reported() -> None:
    make_schedule(timezone="Mars/Base")
    with pytest.raises(CommandError, match="no time zone is called 'Mars/Base'"):
        jobschedule(*RANGE)
