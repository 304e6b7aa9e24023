"""``jobschedule``: see when schedules are due, and steer them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError

from django_jobs.lifecycle.notifying import SCHEDULES
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.lifecycle.schedules import due as schedule_errors
from django_jobs.lifecycle.schedules.firing import JobRequest
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.management.base import operator
from django_jobs.models import Job, Schedule, Tick
from tests.commands import printed
from tests.factories import listening, run_sql


def jobschedule(*arguments: object) -> str:
    return printed("jobschedule", *arguments).strip()


def make_schedule(name: str = "nightly", **fields: Any) -> Schedule:
    if "every" not in fields:
        fields.setdefault("cron", "30 2 * * *")
    return Schedule.objects.create(name=name, **{"job_type": "app.noop", **fields})


def armed(name: str = "nightly", **fields: Any) -> Schedule:
    """A schedule that a worker has seen."""
    made = make_schedule(name, **fields)
    Scheduling().look()
    made.refresh_from_db()
    return made


def row_of(name: str, shown: str) -> str:
    return next(line for line in shown.splitlines() if line.startswith(name))


def listed(*arguments: object) -> list[str]:
    output = json.loads(jobschedule("list", "--json", *arguments))
    return [row["name"] for row in output["schedules"]]


def overdue(schedule: Schedule, seconds: int = 100) -> None:
    sql = "UPDATE django_jobs_schedule SET next_due_at = now() - make_interval(secs => %s)"
    run_sql(f"{sql} WHERE id = %s", [seconds, schedule.pk])


# list


EITHER = "A day that matches either day field is due; Debian's cron and pg_cron need both."


@pytest.mark.django_db
def test_a_list_shows_the_next_due_time_and_the_last_outcome() -> None:
    schedule = armed(timezone="Asia/Tokyo")
    schedule_operations.run_now(
        [schedule.pk], lambda _: JobRequest(scheduling_request(), "{}", None)
    )
    line = row_of("nightly", jobschedule("list"))
    assert schedule.next_due_at is not None
    assert "at 02:30 every day  Asia/Tokyo" in line
    assert f"{schedule.next_due_at.astimezone(UTC):%Y-%m-%d} 17:30:00" in line
    assert "02:30:00 JST" in line
    assert f"fired, job {Job.objects.get().pk} ready" in line
    assert line.endswith("on")


def scheduling_request() -> Any:
    from django_jobs import registry

    return registry.get("app.noop").request()


@pytest.mark.django_db
def test_json_has_the_same_content() -> None:
    schedule = armed(every=5400)
    Tick.objects.create(
        schedule=schedule,
        due_at=datetime(2026, 5, 1, tzinfo=UTC),
        created_at=datetime(2026, 5, 1, tzinfo=UTC),
        outcome="skipped_overlap",
        reason="1 of its jobs had not ended",
        late_seconds=0.25,
    )
    output = json.loads(jobschedule("list", "--json", "nightly"))
    (row,) = output["schedules"]
    assert output["total"] == 1
    assert (row["when"], row["every"], row["state"]) == ("every 1 h 30 min", 5400, "on")
    assert datetime.fromisoformat(row["next_due_at"]) == schedule.next_due_at
    assert row["last"] == {
        "due_at": "2026-05-01T00:00:00+00:00",
        "outcome": "skipped_overlap",
        "reason": "1 of its jobs had not ended",
        "late_seconds": 0.25,
        "job": None,
        "job_status": None,
    }


@pytest.mark.django_db
def test_each_state_is_shown_with_its_reason() -> None:
    make_schedule("new")
    armed("well")
    schedule_operations.pause([make_schedule("resting").pk], reason="the bank is closed")
    make_schedule("off", enabled=False)
    armed("over", ends_at=datetime(2020, 1, 1, tzinfo=UTC))
    overdue(armed("behind"))
    schedule_errors.mark_error(make_schedule("broken").pk, "no time zone\nis called Mars/Base")
    Schedule.objects.filter(name="new").update(stale=True)
    shown = jobschedule("list")
    for name, output in {
        "new": "on: no worker has read its rule yet",
        "well": "on",
        "resting": "paused: the bank is closed",
        "broken": "error: no time zone is called Mars/Base",
        "off": "disabled",
        "over": "ended",
        "behind": "overdue: by 100 s",
    }.items():
        # Seconds may pass between the write of the row and the command.
        row = re.sub(r"by 1\d\d s$", "by 100 s", row_of(name, shown))
        assert row.endswith(f"  {output}"), name


@pytest.mark.django_db
def test_a_broken_zone_and_a_deleted_job_are_shown() -> None:
    schedule = armed()
    run_sql("UPDATE django_jobs_schedule SET timezone = 'Mars/Base' WHERE id = %s", [schedule.pk])
    jobschedule("run", "nightly")
    Job.objects.all().delete()
    line = row_of("nightly", jobschedule("list"))
    assert "Mars/Base" in line
    assert " deleted" in line


@pytest.mark.django_db
def test_failing_lists_schedules_that_need_attention() -> None:
    for name in ("well", "dies", "skips", "behind", "broken", "resting"):
        armed(name)
    jobschedule("run", "well", "dies", "skips")
    run_sql(
        "UPDATE django_jobs_job SET status = 'dead', finished_at = now() WHERE schedule_id ="
        " (SELECT id FROM django_jobs_schedule WHERE name = 'dies')"
    )
    Tick.objects.filter(schedule__name="skips").update(outcome="skipped_late", job=None)
    overdue(Schedule.objects.get(name="behind"))
    schedule_errors.mark_error(Schedule.objects.get(name="broken").pk, "why")
    jobschedule("pause", "resting")
    assert listed("--failing") == ["behind", "broken", "dies", "skips"]


@pytest.mark.django_db
def test_a_part_of_the_name_and_a_limit_shorten_the_list() -> None:
    for number in range(4):
        make_schedule(f"Report {number}")
    make_schedule("clean")
    assert listed("report", "--limit", 2) == ["Report 0", "Report 1"]
    assert jobschedule("list", "report", "--limit", 2).endswith(
        "Showing 2 of 4; raise --limit, or give a part of a name."
    )
    assert jobschedule("list", "nothing") == "No schedule matches."


@pytest.mark.django_db
@pytest.mark.parametrize(
    "every, words",
    [
        (1, "every 1 s"),
        (90, "every 1 min 30 s"),
        (3600, "every 1 h"),
        (172_800, "every 2 d"),
        (1.5, "every 1.5 s"),
    ],
)
def test_intervals_are_described_in_words(every: float, words: str) -> None:
    make_schedule(every=every)
    assert words in row_of("nightly", jobschedule("list"))


# next


@pytest.mark.django_db
def test_limits_of_a_schedule_are_respected_and_shown() -> None:
    armed(max_jobs=4, jobs_made=2)
    assert len(jobschedule("next", "nightly", "--count", "9").splitlines()) == 1 + 2
    Schedule.objects.update(jobs_made=4)
    Scheduling().look()
    assert "It has no further due times." in jobschedule("next", "nightly")
    assert "ended: it has made all of its jobs" in jobschedule("list")
    Schedule.objects.update(max_jobs=None, excluded_dates=[datetime.now(UTC).date()])
    assert str(datetime.now(UTC).date()) not in jobschedule("next", "nightly")


@pytest.mark.django_db
def test_the_next_times_are_local_and_utc() -> None:
    make_schedule(timezone="Asia/Tokyo")
    head, *lines = jobschedule("next", "nightly", "--count", 3).splitlines()
    assert head.split() == ["LOCAL", "UTC"]
    assert len(lines) == 3
    assert all("02:30:00 JST" in line and line.endswith("17:30:00") for line in lines)


def test_an_expression_can_be_previewed_with_clock_changes() -> None:
    # A month more than a year: after this year's change, the next one may be later in its month.
    lines = jobschedule(
        *("next", "--cron", "30 2 * 3,10 *", "--timezone", "Europe/Paris", "--count", "93")
    ).splitlines()
    marked = [line.split() for line in lines if "clock goes" in line]
    assert {(*local, which) for _, *local, _, _, _, _, which in marked} == {
        ("03:00:00", "CEST", "forward"),
        ("02:30:00", "CEST", "back"),
    }


def test_the_clock_policy_can_be_tried_too() -> None:
    tried = ("next", "--cron", "30 2 * 3 *", "--timezone", "Europe/Paris", "--count", "62", "--dst")
    assert "forward" in jobschedule(*tried, "once")
    assert "forward" not in jobschedule(*tried, "skip")


@pytest.mark.django_db
def test_next_says_if_a_schedule_is_not_due() -> None:
    make_schedule("over", ends_at=datetime(2020, 1, 1, tzinfo=UTC))
    jobschedule("pause", make_schedule("resting").name, "--reason", "holiday")
    assert jobschedule("next", "over") == "It has no further due times."
    output = jobschedule("next", "resting")
    assert output.startswith(
        f"resting is paused: holiday ({operator()}). Otherwise it would be due:\n"
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("next",), "give either the name of a schedule or --cron"),
        (
            ("next", "nightly", "--cron", "* * * * *"),
            "give either the name of a schedule or --cron",
        ),
        (("next", "nightly", "--timezone", "UTC"), "--timezone and --dst require --cron"),
        (("next", "--cron", "61 * * * *"), "61 is not between 0 and 59"),
        (("next", "--cron", "H * * * *"), "H is computed from the schedule's name"),
        (("next", "--cron", "* * * * *", "--timezone", "Mars/Base"), "no time zone is called"),
        (("next", "--cron", "* * * * *", "--timezone", ""), "no time zone is called ''"),
        (("next", "nightly", "--timezone", ""), "--timezone and --dst require --cron"),
        (("next", "nightly", "--count", "0"), "--count takes 1 to 1,000"),
        (("list", "--limit", "0"), "--limit takes 1 or more"),
        (("backfill", "nightly"), "give the name of a schedule with --from and --to"),
        (("backfill", "nightly", "--cancel", "1"), "--cancel takes the id of a backfill"),
        (("backfill", "--cancel", "99"), "there is no backfill 99"),
        (("backfill", "--cancel", f"{2**70}"), "there is no backfill"),
        (("pause",), "NAME"),
        ((), "ACTION"),
    ],
)
def test_bad_input_is_refused_with_valid_input(arguments: tuple[str, ...], problem: str) -> None:
    make_schedule()
    with pytest.raises(CommandError, match=problem):
        jobschedule(*arguments)


# run, pause, resume


@pytest.mark.django_db
def test_run_makes_a_job_of_each_schedule_and_stores_the_operator() -> None:
    make_schedule("one")
    make_schedule("other", job_type="app.add", payload={"first": 1})
    output = jobschedule("run", "other", "one").splitlines()
    jobs = dict(Job.objects.values_list("schedule__name", "pk"))
    assert output == [
        f"one: made job {jobs['one']} of app.noop.",
        f"other: made job {jobs['other']} of app.add.",
    ]
    assert {tick.reason for tick in Tick.objects.all()} == {f"run now by {operator()}"}


@pytest.mark.django_db
def test_if_one_schedule_cannot_run_none_does() -> None:
    make_schedule("good")
    make_schedule("bad", job_type="app.gone")
    with pytest.raises(CommandError, match=r"no job type is named 'app\.gone'"):
        jobschedule("run", "good", "bad")
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_a_pause_stores_operator_and_reason_and_a_resume_clears_them() -> None:
    make_schedule("one")
    make_schedule("other")
    assert jobschedule("pause", "one", "--reason", "holiday").startswith("one: paused.")
    assert Schedule.objects.get(name="one").paused_reason == f"holiday ({operator()})"
    output = jobschedule("pause", "other", "one").splitlines()
    assert output[0].startswith("other: paused.")
    assert output[1] == f"one: already paused: holiday ({operator()})"
    assert Schedule.objects.get(name="other").paused_reason == f"paused by {operator()}"
    assert row_of("other", jobschedule("list")).endswith(f"  paused by {operator()}")
    assert jobschedule("resume", "one") == "one: resumed from now on."
    assert jobschedule("resume", "one") == "one: it was not paused."
    assert Schedule.objects.get(name="one").paused_at is None


@pytest.mark.django_db
def test_a_resume_says_if_the_schedule_is_still_disabled() -> None:
    make_schedule(enabled=False)
    assert jobschedule("resume", "nightly") == "nightly: it was not paused, but it is disabled."


@pytest.mark.django_db
def test_a_misspelt_name_is_refused_with_similar_ones_and_changes_nothing() -> None:
    make_schedule("nightly report")
    make_schedule("clean")
    for verb in ("run", "pause", "resume", "next"):
        names = ("nightly reprot",) if verb == "next" else ("clean", "nightly reprot", "xyz")
        with pytest.raises(CommandError) as refused:
            jobschedule(verb, *names)
        assert "'nightly reprot'; did you mean 'nightly report'?" in str(refused.value)
        if verb != "next":
            assert "'xyz'; run jobschedule list for all names" in str(refused.value)
    assert not Job.objects.exists()
    assert not Schedule.objects.exclude(paused_at=None).exists()


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_at_once() -> None:
    make_schedule()
    with listening() as heard:
        jobschedule("pause", "nightly")
        assert SCHEDULES in "".join(heard())


@pytest.mark.django_db
def test_options_of_django_may_follow_the_action() -> None:
    make_schedule()
    assert "nightly" in jobschedule("list", "-v", 2, "--settings", "tests.settings")


@pytest.mark.django_db
@pytest.mark.parametrize("cron, noted", [("0 0 */2 * 1", True), ("0 0 1 * 1", False)])
def test_a_pasted_rule_that_needs_both_day_fields_elsewhere_is_noted(
    cron: str, noted: bool
) -> None:
    for shown in (
        jobschedule("next", "--cron", cron),
        jobschedule("next", armed(cron=cron).name),
    ):
        last = shown.splitlines()[-1]
        assert (last == EITHER) is noted


@pytest.mark.parametrize(
    ("cron", "advice"),
    [
        ("CRON_TZ=UTC 0 3 * * *", "write --timezone UTC"),
        ("TZ='Asia/Tokyo' 0 3 * * *", "write --timezone Asia/Tokyo"),
        (
            "CRON_TZ=Mars/X 0 3 * * *",
            "write --timezone Europe/Paris or the like; no time zone is called 'Mars/X'",
        ),
    ],
)
def test_a_line_with_a_zone_is_refused_with_the_option_for_it(cron: str, advice: str) -> None:
    with pytest.raises(CommandError) as refused:
        jobschedule("next", "--cron", cron)
    assert str(refused.value).endswith(f"= is no part of the expression: {advice}")
