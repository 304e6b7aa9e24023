"""``jobschedule skip``, ``move``, ``change`` and ``restore``."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.core.management import CommandError

from django_jobs.management.base import operator
from django_jobs.models import Schedule, ScheduleException, Tick
from tests.factories import run_sql

from .test_jobschedule import armed, jobschedule, listed, row_of

pytestmark = pytest.mark.django_db

START = dt.datetime(2099, 10, 24, tzinfo=dt.UTC)
DUE = dt.datetime(2099, 10, 24, 0, 30, tzinfo=dt.UTC)


def in_paris(**fields: Any) -> Schedule:
    """Due at 02:30 from 24 October 2099 on; on the 25th the clock goes back."""
    return armed(timezone="Europe/Paris", starts_at=START, **fields)


def test_a_due_time_is_named_in_the_time_zone_of_the_schedule() -> None:
    in_paris()
    assert jobschedule("skip", "nightly", "2099-10-24T02:30", "--reason", "closed") == (
        "nightly: 2099-10-24 02:30:00 CEST is skipped. Its tick will say so."
    )
    row = ScheduleException.objects.get()
    assert (row.due_at, row.skipped) == (DUE, True)
    assert (row.requested_by, row.reason) == (operator(), "closed")


def test_an_offset_tells_the_passes_of_a_repeated_hour_apart() -> None:
    in_paris(dst="twice")
    jobschedule("skip", "nightly", "2099-10-25T02:30")
    text = jobschedule("move", "nightly", "2099-10-25T02:30+01:00", "2099-10-25T02:40+02:00")
    assert text == ("nightly: 2099-10-25 02:30:00 CET is moved to 2099-10-25 02:40:00 CEST.")
    shown = jobschedule("next", "nightly", "--count", "3").splitlines()
    assert [" ".join(line.split()) for line in shown[1:]] == [
        "2099-10-24 02:30:00 CEST 2099-10-24 00:30:00",
        "2099-10-25 02:30:00 CEST 2099-10-25 00:30:00 clock goes back; skipped by " + operator(),
        "2099-10-25 02:40:00 CEST 2099-10-25 00:40:00 clock goes back; moved from"
        f" 2099-10-25 02:30:00 CET by {operator()}",
    ]


@pytest.mark.parametrize(
    ("zone", "given", "due"),
    [
        ("Europe/Paris", "2099-10-24 02:30:00 CEST", DUE),
        ("Europe/Paris", "2099-10-24 00:30:00 UTC", DUE),
        ("Europe/Paris", "2099-10-25 02:30:00 CEST", DUE + dt.timedelta(days=1)),
        ("Europe/Paris", "2099-10-25 02:30:00 CET", DUE + dt.timedelta(days=1, hours=1)),
        ("America/Sao_Paulo", "2099-10-24 02:30:00 -03", DUE + dt.timedelta(hours=5)),
        ("Europe/Paris", "2099-10-24 02:30:00 CET", None),
        ("Europe/Paris", "2099-10-24 02:30:00 EST", None),
        ("Europe/Paris", "2099-10-24 02:30:00+02:00 CEST", None),
        ("Europe/Paris", "CEST", None),
    ],
)
def test_a_time_is_read_as_it_is_printed(zone: str, given: str, due: dt.datetime | None) -> None:
    armed(timezone=zone, starts_at=START, dst="twice")
    if due is None:
        with pytest.raises(CommandError, match="is neither a date"):
            jobschedule("skip", "nightly", given)
        return
    jobschedule("skip", "nightly", given)
    assert ScheduleException.objects.get().due_at == due


def test_each_refusal_is_in_the_time_zone_of_the_schedule() -> None:
    schedule = in_paris()
    due, late = "2099-10-24T02:30", "2026-01-01 00:00:00 CET"
    for asked, refusal in (
        (("move", due, "2025-12-31T23:00Z"), f"the new time {late} has passed"),
        (("move", due, "9000-01-01"), "9000-01-01 00:00:00 CET is more than a century ahead"),
        (("restore", due), "2099-10-24 02:30:00 CEST has no exception"),
        (("skip", "2026-01-01T00:00"), f"{late} is no due time of the schedule; after it come"),
    ):
        with pytest.raises(CommandError, match=refusal):
            jobschedule(asked[0], "nightly", *asked[1:])
    run_sql(TICK, [schedule.pk, 0, "fired", 0])
    Tick.objects.update(due_at=DUE)
    with pytest.raises(CommandError, match="02:30:00 CEST has a tick already"):
        jobschedule("skip", "nightly", due)


def test_a_time_that_the_clock_skips_is_refused() -> None:
    in_paris()
    for due, to in (("2099-10-24T02:30", "2099-03-29T02:30"), ("2100-03-28T02:30", "2100-01-01")):
        with pytest.raises(CommandError, match="02:30:00 does not exist in Europe/Paris"):
            jobschedule("move", "nightly", due, to)
    assert not ScheduleException.objects.exists()


def test_a_move_by_half_a_second_says_so() -> None:
    armed(cron="", every=3600.0)
    text = jobschedule("move", "nightly", "2099-10-24T03:00", "2099-10-24 03:00:00.5 UTC")
    expected = "nightly: 2099-10-24 03:00:00 UTC is moved to 2099-10-24 03:00:00.5 UTC."
    assert text == expected


def test_the_due_times_that_a_refusal_names_can_be_changed() -> None:
    """They are due times by the rule, not those to which others are moved."""
    in_paris()
    jobschedule("move", "nightly", "2099-10-25T02:30", "2099-10-24T05:00")
    with pytest.raises(CommandError, match="after it come") as refused:
        jobschedule("skip", "nightly", "2099-10-24T05:00")
    named = str(refused.value).rpartition("after it come ")[2].split(", ")
    assert named[0] == "2099-10-25 02:30:00 CEST"
    for due in named:
        assert "is skipped" in jobschedule("skip", "nightly", due)
    with pytest.raises(CommandError, match="after it come 2099-10-24 02:30:00 CEST"):
        jobschedule("skip", "nightly", "2020-01-01")


def test_a_payload_is_checked_and_restore_undoes_it() -> None:
    in_paris(job_type="app.add", payload={"first": 1})
    due = "2099-10-24T02:30"
    with pytest.raises(CommandError, match="not JSON"):
        jobschedule("change", "nightly", due, "first=2")
    with pytest.raises(CommandError, match="third"):
        jobschedule("change", "nightly", due, '{"third": 3}')
    text = jobschedule("change", "nightly", due, '{"first": 2}')
    assert text == "nightly: the job of 2099-10-24 02:30:00 CEST will have this payload."
    assert ScheduleException.objects.get().payload == {"first": 2}
    text = jobschedule("restore", "nightly", due)
    assert text == "nightly: 2099-10-24 02:30:00 CEST does again what its rule says."
    assert not ScheduleException.objects.exists()
    with pytest.raises(CommandError, match="has no exception"):
        jobschedule("restore", "nightly", due)


@pytest.mark.parametrize("action", ["skip", "move", "change", "restore"])
def test_what_cannot_be_is_refused_with_a_reason(action: str) -> None:
    in_paris()
    more = {"move": ["2099-10-24T03:00"], "change": ["{}"]}.get(action, [])
    with pytest.raises(CommandError, match="no schedule is named 'nightli'; did you mean"):
        jobschedule(action, "nightli", "2099-10-24T02:30", *more)
    with pytest.raises(CommandError, match="is neither a date"):
        jobschedule(action, "nightly", "tomorrow", *more)
    if action != "restore":
        expected = (
            "2099-10-24 03:00:00 CEST is no due time of the schedule; after it come 2099-10-25"
            " 02:30:00 CEST, 2099-10-26 02:30:00 CET"
        )
        with pytest.raises(CommandError, match=expected):
            jobschedule(action, "nightly", "2099-10-24T03:00", *more)


def test_the_list_says_that_the_next_due_time_is_an_exception() -> None:
    in_paris()
    jobschedule("skip", "nightly", "2099-10-24T02:30", "--reason", "closed")
    row = row_of("nightly", jobschedule("list"))
    assert "on: its next due time is skipped by" in row
    jobschedule("move", "nightly", "2099-10-25T02:30", "2099-10-23T02:30")
    row = row_of("nightly", jobschedule("list"))
    assert "2099-10-23 00:30:00" in row
    assert "on: its next due time is moved from" in row


def test_one_that_is_moved_and_changed_says_both() -> None:
    in_paris()
    jobschedule("change", "nightly", "2099-10-24T02:30", "{}")
    jobschedule("move", "nightly", "2099-10-24T02:30", "2099-10-24T03:30", "--reason", "late")
    text = f"moved from 2099-10-24 02:30:00 CEST with another payload by {operator()}: late"
    assert text in jobschedule("next", "nightly")
    assert f"its next due time is {text}"[:75] in row_of("nightly", jobschedule("list"))


def test_what_is_no_longer_a_due_time_is_named() -> None:
    schedule = in_paris()
    jobschedule("skip", "nightly", "2099-10-24T02:30")
    schedule.cron = "40 2 * * *"
    schedule.save()
    assert jobschedule("next", "nightly").endswith(
        "No longer a due time, so that its exception does nothing: 2099-10-24 02:30:00 CEST."
    )


def test_a_skip_by_request_is_no_failure() -> None:
    schedule = in_paris()
    for outcome, failing in (("skipped", []), ("skipped_late", ["nightly"])):
        Tick.objects.all().delete()
        run_sql(
            "INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds,"
            " created_at) VALUES (%s, now(), %s, '', 0, now())",
            [schedule.pk, outcome],
        )
        assert listed("--failing") == failing


TICK = (
    "INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds, created_at)"
    " VALUES (%s, now() + make_interval(mins => %s), %s, '', 0, now() + make_interval(mins => %s))"
)


@pytest.mark.parametrize("ahead", [5, 60 * 24 * 30])
def test_the_last_tick_is_the_one_that_was_written_last(ahead: int) -> None:
    """Not that of a due time to come, which was moved to an earlier time."""
    schedule = armed()

    def last() -> tuple[str, bool]:
        (row,) = json.loads(jobschedule("list", "--json"))["schedules"]
        assert row["last_at"] <= dt.datetime.now(dt.UTC).isoformat()
        return row["last"]["outcome"], listed("--failing") == ["nightly"]

    run_sql(TICK, [schedule.pk, ahead, "suppressed", -9])
    assert last() == ("suppressed", True)
    run_sql(TICK, [schedule.pk, ahead + 1, "fired", -8])
    assert last() == ("fired", False)
    run_sql(TICK, [schedule.pk, -7, "skipped_late", -7])
    assert last() == ("skipped_late", True)
    run_sql(TICK, [schedule.pk, -6, "fired", -6])
    assert last() == ("fired", False)
    run_sql(TICK, [schedule.pk, ahead - 1, "skipped_overlap", -5])
    assert last() == ("skipped_overlap", True)


def test_the_list_says_of_a_skipped_due_time_what_its_tick_says() -> None:
    schedule = armed()
    run_sql(TICK, [schedule.pk, -1, "skipped", -1])
    assert "skipped: by request" in row_of("nightly", jobschedule("list"))
    for reason in ("skipped", f"skipped by {operator()}", "skipped by ann: the bank is closed"):
        Tick.objects.update(reason=reason)
        row = row_of("nightly", jobschedule("list"))
        assert f"  {reason}  " in row
        assert "by request" not in row
