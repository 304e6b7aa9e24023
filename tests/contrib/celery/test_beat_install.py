"""``jobimport celery`` on tables that django-celery-beat made and filled itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import DjangoDbBlocker

from django_jobs.management.base import operator
from django_jobs.models import Schedule
from tests.factories import run_sql

PROJECT = Path(__file__).resolve().parents[3]
MAPPED = ("--map", "proj.tasks.renamed=app.noop")

REASON = (
    "django-celery-beat is not installed: it does not allow Django 6.1 yet"
    if django.VERSION >= (6, 1)
    else "django-celery-beat is not installed: pip install -e '.[test-beat]'"
)
pytestmark = [
    pytest.mark.skipif(find_spec("django_celery_beat") is None, reason=REASON),
    pytest.mark.django_db,
]

Fields = dict[str, list[int]]


@pytest.fixture(scope="module")
def of_celery(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[dict[str, Any]]:
    """The tables, as a project of its own made and filled them; what it told of Celery."""
    with django_db_blocker.unblock():
        try:
            beat("django", "migrate", "--verbosity=0")
            yield json.loads(beat("tests.contrib.celery.beat_project"))
        finally:
            beat("django", "migrate", "--verbosity=0", "django_celery_beat", "zero")
            connection.close()


@pytest.fixture(autouse=True)
def _tables(of_celery: dict[str, Any]) -> None:
    pass


def beat(*module: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=PROJECT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.contrib.celery.beat_settings",
            "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
        },
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def import_beat(*arguments: str) -> str:
    """What it says, where some tasks cannot be imported."""
    out = StringIO()
    with pytest.raises(CommandError, match=r"of \d+ tasks cannot be imported$"):
        call_command("jobimport", "celery", *arguments, stdout=out)
    return out.getvalue()


def imported(name: str) -> Schedule:
    return Schedule.objects.get(name=name)


def test_a_task_becomes_a_schedule_of_the_job_type_of_its_name() -> None:
    assert "imported  nightly in Paris: app.noop at 02:30 every day Europe/Paris" in import_beat()
    made = imported("nightly in Paris")
    assert (made.job_type, made.cron, made.timezone) == ("app.noop", "30 2 * * *", "Europe/Paris")
    assert (made.payload, made.queue, made.priority) == ({}, "", None)
    assert (made.enabled, made.declared, made.overlap) == (True, False, "allow")


def test_each_crontab_is_due_when_celery_says(of_celery: dict[str, Any]) -> None:
    """Every minute of three days, and every day of a leap year."""
    import_beat()
    begin, day = datetime(2028, 1, 1, tzinfo=UTC), timedelta(days=1)
    assert len(of_celery["crontabs"]) > 50
    for name, fields in of_celery["crontabs"].items():
        rule = imported(name).rule
        found = rule.due_times(begin - timedelta(seconds=1))
        due = list(takewhile(lambda moment: moment < begin + 3 * day, found))
        assert due == list(celery_times(fields, begin, 3)), name
        for midnight in (begin + number * day for number in range(366)):
            first = rule.next(midnight - timedelta(seconds=1))
            output = first is not None and first < midnight + day
            assert output == fits(fields, midnight), (name, midnight)


def fits(fields: Fields, day: datetime) -> bool:
    return (
        day.day in fields["day_of_month"]
        and day.month in fields["month_of_year"]
        and day.isoweekday() % 7 in fields["day_of_week"]
    )


def celery_times(fields: Fields, begin: datetime, days: int) -> Iterator[datetime]:
    for minute in range(days * 24 * 60):
        moment = begin + timedelta(minutes=minute)
        in_time = moment.minute in fields["minute"] and moment.hour in fields["hour"]
        if in_time and fits(fields, moment):
            yield moment


def test_celery_handles_clock_changes_as_the_docs_say(
    of_celery: dict[str, Any],
) -> None:
    """What is otherwise here is told at the end of ``docs/reference/commands.md``'s section."""
    nightly, quarters = of_celery["changes"].values()
    assert nightly == ["28 03:30 CEST", "31 02:30 CEST"]
    assert {"31 02:45 CEST", "31 03:00 CET"} < set(quarters)
    assert "31 02:00 CET" not in quarters


def test_an_interval_continues_from_its_last_run() -> None:
    import_beat()
    assert (imported("every 90 minutes").every, imported("every 90 minutes").cron) == (5400.0, "")
    assert imported("ran before").starts_at == datetime(2026, 5, 1, 14, 3, 7, tzinfo=UTC)


def test_bounds_are_kept_and_nothing_is_due_at_the_end_itself() -> None:
    import_beat()
    made = imported("from and until")
    assert made.starts_at == datetime(2040, 5, 1, 12, tzinfo=UTC)
    assert made.ends_at == datetime(2041, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)


def test_arguments_are_bound_to_the_handler() -> None:
    import_beat()
    assert imported("by position").payload == {"first": 1, "second": 2}


def test_a_disabled_task_stays_disabled() -> None:
    assert "Europe/Paris, disabled" in import_beat()
    assert not imported("disabled").enabled
    assert imported("nightly in Paris").enabled


def test_an_existing_queue_is_kept_and_can_be_mapped() -> None:
    output = import_beat()
    assert "refused   in a queue of Celery (proj.tasks.noop): app.noop: no queue is" in output
    assert imported("in bulk").queue == "bulk"
    import_beat("--queue", "celery=default")
    assert imported("in a queue of Celery").queue == "default"


def test_priorities_are_read_as_rabbitmq_or_redis_does() -> None:
    assert "note: priority 200 becomes 100" in import_beat()
    assert (imported("first").priority, imported("far above").priority) == (9, 100)
    Schedule.objects.all().delete()
    import_beat("--broker", "redis")
    assert (imported("first").priority, imported("far above").priority) == (-9, -9)


def test_parts_that_are_not_imported_are_noted() -> None:
    output = import_beat()
    assert "note: its routing key, headers are not imported" in output
    assert "note: its jobs do not expire after 60 s: declare app.noop with max_age" in output
    assert "note: its description is not imported" in output
    assert "app.noop is not declared with schedulable=True" in output


@pytest.mark.parametrize(
    "name, reason",
    [
        ("too often (proj.tasks.noop)", "an interval is from 1 second to 366 days"),
        ("too many arguments (proj.tasks.add)", "app.add(first: 'int', second: 'int' = 1)"),
        ("no JSON (proj.tasks.add)", "args is not JSON"),
        (
            "a date of Celery (proj.tasks.add)",
            "its arguments contain a date, which JSON cannot represent",
        ),
        ("once (proj.tasks.noop)", "it runs once; enqueue a job with run_at instead"),
        ("at a time (proj.tasks.noop)", "it runs once; enqueue a job with run_at instead"),
        ("by the sun (proj.tasks.noop)", "it is a solar schedule"),
        (
            "both days (proj.tasks.noop)",
            "it restricts both the day of the month and the day of the week",
        ),
        ("nobody's (proj.tasks.unheard_of)", "no job type is called 'unheard_of'; choose one with"),
        ("mapped (proj.tasks.renamed)", "no job type is called 'renamed'; choose one with --map"),
        ("celery.backend_cleanup (celery.backend_cleanup)", "it is Celery's clean-up task"),
    ],
)
def test_a_task_that_cannot_be_imported_is_reported_with_the_reason(name: str, reason: str) -> None:
    assert f"refused   {name}: {reason}" in import_beat()
    assert not Schedule.objects.filter(name=name.partition(" (")[0]).exists()


def test_a_dry_run_says_the_same_and_writes_nothing() -> None:
    would = import_beat("--dry-run", *MAPPED)
    assert not Schedule.objects.filter(declared=False).exists()
    assert would.replace("Would import", "Imported") == import_beat(*MAPPED)


def test_a_second_import_does_not_change_existing_schedules() -> None:
    import_beat()
    Schedule.objects.filter(name="nightly in Paris").update(cron="0 5 * * *")
    output = import_beat(*MAPPED)
    assert "exists    nightly in Paris: not changed" in output
    assert imported("nightly in Paris").cron == "0 5 * * *"
    assert imported("mapped").job_type == "app.noop"
    assert output.splitlines()[-1].startswith("Imported 1 schedule; ")


def test_imported_schedules_can_be_paused_at_once() -> None:
    import_beat("--paused")
    made = imported("nightly in Paris")
    assert made.paused_at is not None
    assert made.paused_reason == f"imported by {operator()}"


def test_the_exit_code_is_zero_if_all_were_imported() -> None:
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE name <> 'nightly in Paris'")
    out = StringIO()
    call_command("jobimport", "celery", stdout=out)
    assert out.getvalue().splitlines()[-1] == (
        "Imported 1 schedule; 0 existed already and 0 cannot be imported."
    )


def test_columns_that_an_older_version_lacks_are_not_missed() -> None:
    dropped = ("priority", "one_off", "start_time", "expire_seconds", "headers", "clocked_id")
    drops = ", ".join(f"DROP COLUMN {name} CASCADE" for name in dropped)
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE clocked_id IS NOT NULL OR one_off")
    run_sql(f"ALTER TABLE django_celery_beat_periodictask {drops}")
    run_sql("ALTER TABLE django_celery_beat_crontabschedule DROP COLUMN timezone")
    assert "imported  nightly in Paris: app.noop at 02:30 every day UTC" in import_beat()
