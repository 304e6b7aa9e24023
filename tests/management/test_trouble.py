"""What the commands for operators say where the database is not as it should be."""

from __future__ import annotations

import contextlib
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import (
    BaseCommand,
    CommandError,
    call_command,
    execute_from_command_line,
)
from django.db import OperationalError, ProgrammingError, connection, transaction
from pytest_django import Settings

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations import limits
from django_jobs.management.base import database_problem
from tests.app.gate_jobs import bill_tenant
from tests.factories import enqueue_and_claim, run_sql, settle_one

COMMANDS = [
    ("jobstatus",),
    ("jobstatus", "--check"),
    ("jobreplay", "--queue", "default"),
    ("jobprune",),
    ("jobschedule", "list"),
    ("jobschedule", "run", "nightly"),
]


ARCHIVE = ("--before", "30d", "--to", ".")


def unreachable(*args: Any) -> None:
    raise OperationalError("connection refused\n\tIs the server running?")


@pytest.mark.django_db
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_tables_are_reported_with_the_command_to_run(command: tuple[str, ...]) -> None:
    wanted = r"django_jobs has no tables in 'default': run manage.py migrate$"
    with transaction.atomic():
        tables = ("run", "job", "queue", "backfill", "tick", "scheduleexception", "schedule")
        run_sql(f"DROP TABLE {', '.join(f'django_jobs_{table}' for table in tables)}")
        with pytest.raises(CommandError, match=wanted):
            call_command(*command, stdout=StringIO())
        transaction.set_rollback(True)


@pytest.mark.django_db
@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_does_not_answer_is_reported_in_one_line(command: tuple[str, ...]) -> None:
    wanted = "^the database 'default' does not answer: connection refused Is the server running"
    with connection.execute_wrapper(unreachable), pytest.raises(CommandError, match=wanted):
        call_command(*command, stdout=StringIO())


@pytest.mark.parametrize("command", [*COMMANDS, ("jobs", "status"), ("jobs", "archive", *ARCHIVE)])
def test_ctrl_c_ends_a_command_in_one_line(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BaseCommand, "execute", interrupt)
    with pytest.raises(SystemExit) as ended:
        execute_from_command_line(["manage.py", *command])
    assert (ended.value.code, capsys.readouterr().err) == (130, "Interrupted.\n")


@pytest.mark.django_db
def test_a_bug_keeps_its_traceback() -> None:
    def wrong(*args: Any) -> None:
        raise ProgrammingError("syntax error")

    with connection.execute_wrapper(wrong), pytest.raises(ProgrammingError):
        call_command("jobstatus", stdout=StringIO())


@pytest.mark.django_db
def test_a_missing_column_is_reported_too() -> None:
    with pytest.raises(ProgrammingError) as caught, transaction.atomic():
        connection.cursor().execute("SELECT colour FROM django_jobs_job")
    assert "are not those of this code" in str(database_problem(caught.value))


def test_an_alias_other_than_default_is_named(settings: Settings) -> None:
    class Missing(Exception):
        sqlstate = "42P01"

    settings.DJANGO_JOBS = {"DATABASE": "jobs"}
    error = ProgrammingError('relation "django_jobs_job" does not exist')
    error.__cause__ = Missing()
    wanted = "django_jobs has no tables in 'jobs': run manage.py migrate --database=jobs"
    assert database_problem(error) == wanted


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("command", "table", "column", "time"),
    [
        ("jobstatus", "queue", "paused_at", "infinity"),
        ("jobstatus", "worker", "lease_expires_at", "infinity"),
        ("jobstatus --sizing", "run", "started_at", "infinity"),
        ("jobdoctor", "tenant", "paused_at", "-infinity"),
    ],
)
def test_json_has_null_for_a_time_by_hand_that_is_infinite(
    command: str, table: str, column: str, time: str
) -> None:
    bill_tenant.enqueue("acme")
    limits.pause_tenants(["acme"])
    settle_one(enqueue_and_claim(), Succeeded())
    run_sql(f"UPDATE django_jobs_{table} SET {column} = %s", [time])
    out = StringIO()
    with contextlib.suppress(CommandError):
        call_command(*command.split(), "--json", stdout=out)
    assert json.loads(out.getvalue(), parse_constant=refuse)
