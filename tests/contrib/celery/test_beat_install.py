"""``jobimport celery`` on tables that django-celery-beat made and filled itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django import DjangoDbBlocker

from django_jobs import registry
from django_jobs.contrib.celery.beat.importing import follow as import_changes
from django_jobs.contrib.celery.beat.periodic_task import Translation
from django_jobs.domain.schedules import Rule
from django_jobs.management.base import operator
from django_jobs.models import Job, Schedule
from tests import forking
from tests.commands import printed, refused
from tests.factories import look, run_sql

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


def beat(*module: str, settings: str = "tests.contrib.celery.beat_settings") -> str:
    environment = {
        **{key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"},
        "DJANGO_SETTINGS_MODULE": settings,
        "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
    }
    if module[0] == "django" and forking.IS_POSSIBLE:
        code, printed = forking.template(PROJECT, environment).run([*module[1:]])
        assert code == 0, printed
        return printed
    command = [sys.executable, "-m", *module]
    ended = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def import_beat(*arguments: str) -> str:
    """What it says, where some tasks cannot be imported."""
    return refused("jobimport", "celery", *arguments, match=r"of \d+ tasks cannot be imported$")


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
        days = [begin + number * day for number in range(366)]
        assert days_of(rule, begin) == [one for one in days if fits(fields, one)], name


def days_of(rule: Rule, begin: datetime) -> list[datetime]:
    """Each day of the year on which the rule is due."""
    day, found = timedelta(days=1), list[datetime]()
    after = begin
    while (due := rule.next(after - timedelta(seconds=1))) and due < begin + 366 * day:
        found.append(due.replace(hour=0, minute=0))
        after = found[-1] + day
    return found


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
    assert made.starts_at == datetime(2099, 5, 1, 12, tzinfo=UTC)
    assert made.ends_at == datetime(2099, 12, 1, tzinfo=UTC) - timedelta(microseconds=1)


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


def test_a_task_that_runs_once_becomes_a_schedule_of_one_job() -> None:
    import_beat()
    once, at_a_time = imported("once"), imported("at a time")
    assert (once.max_jobs, once.cron, once.enabled) == (1, "30 2 * * *", True)
    moment = datetime(2099, 5, 1, 12, tzinfo=UTC)
    assert at_a_time.max_jobs == 1
    assert list(at_a_time.rule.due_times(datetime(2026, 1, 1, tzinfo=UTC))) == [moment]


def ago(age: timedelta) -> datetime:
    return datetime.now(UTC) - age


def change(name: str, /, **fields: Any) -> None:
    """Of a time, its age is given."""
    columns = ", ".join(f"{column} = %s" for column in fields)
    values = [ago(one) if isinstance(one, timedelta) else one for one in fields.values()]
    run_sql(
        f"UPDATE django_celery_beat_periodictask SET {columns} WHERE name = %s", [*values, name]
    )


def clocked_at(moment: datetime) -> None:
    run_sql("UPDATE django_celery_beat_clockedschedule SET clocked_time = %s", [moment])


def jobs_of(name: str) -> int:
    """How many jobs a schedule has made, once all that is due has come."""
    look()
    look()
    return Job.objects.filter(schedule__name=name).count()


@pytest.mark.parametrize(
    "name, fields, jobs",
    [
        ("every 90 minutes", {"last_run_at": timedelta(hours=5)}, 1),
        ("every 90 minutes", {"last_run_at": timedelta(minutes=5)}, 0),
        ("every 90 minutes", {"last_run_at": timedelta(hours=5), "enabled": False}, 0),
        ("nightly in Paris", {"last_run_at": timedelta(days=40)}, 1),
        ("nightly in Paris", {"last_run_at": None, "date_changed": timedelta(days=3)}, 1),
        ("cron leap day", {"last_run_at": timedelta(seconds=1)}, 0),
        ("cron leap day", {"last_run_at": timedelta(days=5 * 366)}, 1),
        ("cron every second day", {"last_run_at": timedelta(days=900)}, 1),
        ("from and until", {"last_run_at": timedelta(days=2)}, 0),
        ("once", {"last_run_at": timedelta(days=2)}, 1),
        ("once", {"last_run_at": timedelta(days=2), "total_run_count": 1}, 0),
        ("disabled", {"last_run_at": timedelta(days=2)}, 0),
    ],
)
def test_a_row_that_is_overdue_runs_at_once_and_once(
    name: str, fields: dict[str, Any], jobs: int
) -> None:
    change(name, **fields)
    import_beat()
    assert jobs_of(name) == jobs
    import_beat("--dry-run")
    import_beat()
    assert jobs_of(name) == jobs


@pytest.mark.parametrize(
    "age, ran, jobs",
    [(timedelta(hours=5), 0, 1), (timedelta(days=900), 0, 1), (timedelta(hours=5), 1, 0)],
)
def test_a_time_that_has_passed_runs_at_once_unless_it_ran(
    age: timedelta, ran: int, jobs: int
) -> None:
    clocked_at(ago(age))
    change("at a time", total_run_count=ran)
    import_beat()
    assert jobs_of("at a time") == jobs


def test_overdue_rows_wait_while_they_are_paused() -> None:
    change("every 90 minutes", last_run_at=timedelta(hours=5))
    import_beat("--paused")
    assert jobs_of("every 90 minutes") == 0


# Rows that change


def follow() -> None:
    import_changes(Translation(job_types={}, queues={}), "default")


def test_a_row_that_changes_changes_its_schedule() -> None:
    import_beat()
    run_sql("UPDATE django_celery_beat_intervalschedule SET every = 7 WHERE every = 90")
    change("nightly in Paris", enabled=False)
    change("by position", args="[4]", kwargs="{}")
    change("in bulk", queue=None, priority=3, name="in no bulk")
    change("from and until", expires=None, start_time=None)
    follow()
    assert imported("every 90 minutes").every == 420.0
    assert not imported("nightly in Paris").enabled
    assert imported("by position").payload == {"first": 4}
    assert (imported("in no bulk").queue, imported("in no bulk").priority) == ("", 3)
    assert not Schedule.objects.filter(name="in bulk").exists()
    assert imported("from and until").ends_at is None
    change("nightly in Paris", enabled=True)
    follow()
    assert imported("nightly in Paris").enabled


def test_rows_that_come_and_go_are_followed() -> None:
    import_beat()
    names = set(Schedule.objects.values_list("name", flat=True))
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE name = 'disabled'")
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE name = 'nightly in Paris'")
    change("too often", interval_id=imported_interval("every 90 minutes"))
    follow()
    assert not imported("nightly in Paris").enabled
    assert set(Schedule.objects.values_list("name", flat=True)) == {*names, "too often"}


def imported_interval(name: str) -> int:
    ((interval,),) = run_sql(
        "SELECT interval_id FROM django_celery_beat_periodictask WHERE name = %s", [name]
    )
    return int(interval)


def test_what_was_changed_here_stays_until_the_row_changes() -> None:
    import_beat()
    row = imported("nightly in Paris")
    row.cron = "0 5 * * *"
    row.save()
    change("nightly in Paris", last_run_at=timedelta(), total_run_count=7, date_changed=timedelta())
    follow()
    assert imported("nightly in Paris").cron == "0 5 * * *"
    change("nightly in Paris", description="Another.")
    follow()
    assert imported("nightly in Paris").cron == "30 2 * * *"


def test_a_schedule_that_was_not_imported_is_never_changed() -> None:
    mine = Schedule.objects.create(name="nightly in Paris", job_type="app.noop", every=60)
    import_beat()
    change("nightly in Paris", enabled=False)
    follow()
    mine.refresh_from_db()
    assert (mine.every, mine.enabled, mine.cron) == (60, True, "")
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE name = 'nightly in Paris'")
    follow()
    mine.refresh_from_db()
    assert mine.enabled


def test_a_row_that_cannot_be_imported_any_longer_is_not_due(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import_beat()
    change("nightly in Paris", args="[1, 2, 3]")
    follow()
    follow()
    made = imported("nightly in Paris")
    assert not made.enabled
    assert "too many positional arguments" in made.error
    told = [one for one in caplog.records if "nightly in Paris" in one.getMessage()]
    assert len(told) == 1
    change("nightly in Paris", args="[]")
    follow()
    made = imported("nightly in Paris")
    assert (made.enabled, made.error) == (True, "")


def test_an_entry_of_beat_schedule_is_left_to_migrate() -> None:
    """DatabaseScheduler makes a row of each entry, which an admin may disable."""
    registry.register_schedule("nightly in Paris", {"queue": ""})
    try:
        assert "exists    nightly in Paris: not changed" in import_beat()
        assert not Schedule.objects.filter(name="nightly in Paris").exists()
    finally:
        registry.forget_schedule("nightly in Paris")
    made = Schedule.objects.create(
        name="nightly in Paris", job_type="app.noop", every=60, declared=True
    )
    assert "exists    nightly in Paris: not changed" in import_beat()
    change("nightly in Paris", enabled=False)
    assert "it is disabled, and its entry of beat_schedule is a schedule" in import_beat()
    follow()
    made.refresh_from_db()
    assert (made.enabled, made.origin) == (True, "")
    Schedule.objects.filter(pk=made.pk).update(paused_at=ago(timedelta()))
    assert "exists    nightly in Paris: not changed" in import_beat()


def test_a_schedule_that_code_declares_later_is_not_followed() -> None:
    import_beat()
    Schedule.objects.filter(name="nightly in Paris").update(declared=True)
    change("nightly in Paris", args="[1, 2]")
    follow()
    assert imported("nightly in Paris").enabled


def test_tables_that_are_gone_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    run_sql("ALTER TABLE django_celery_beat_periodictask RENAME TO away")
    follow()
    follow()
    run_sql("ALTER TABLE away RENAME TO django_celery_beat_periodictask")
    assert len([one for one in caplog.records if "is not followed" in one.getMessage()]) == 1


def test_a_time_that_is_set_anew_runs_again() -> None:
    clocked_at(ago(timedelta(hours=1)))
    import_beat()
    assert jobs_of("at a time") == 1
    follow()
    assert jobs_of("at a time") == 1
    later = ago(-timedelta(hours=1))
    clocked_at(later)
    follow()
    look()
    made = imported("at a time")
    assert (made.jobs_made, made.next_due_at) == (0, later)


def test_a_look_at_unchanged_rows_costs_eight_statements(
    django_assert_num_queries: Callable[..., Any],
) -> None:
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE name <> 'nightly in Paris'")
    call_command("jobimport", "celery", stdout=StringIO())
    with django_assert_num_queries(8):
        follow()


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
    assert printed("jobimport", "celery").splitlines()[-1] == (
        "Imported 1 schedule; 0 existed already and 0 cannot be imported."
    )


def test_columns_that_an_older_version_lacks_are_not_missed() -> None:
    dropped = ("priority", "one_off", "start_time", "expire_seconds", "headers", "clocked_id")
    drops = ", ".join(f"DROP COLUMN {name} CASCADE" for name in dropped)
    run_sql("DELETE FROM django_celery_beat_periodictask WHERE clocked_id IS NOT NULL OR one_off")
    run_sql(f"ALTER TABLE django_celery_beat_periodictask {drops}")
    run_sql("ALTER TABLE django_celery_beat_crontabschedule DROP COLUMN timezone")
    assert "imported  nightly in Paris: app.noop at 02:30 every day UTC" in import_beat()
