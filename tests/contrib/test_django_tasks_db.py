"""The waiting tasks of django-tasks-db become jobs, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError
from django.db import DataError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from django_jobs.contrib import django_tasks_db
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.app import tasks
from tests.commands import printed, refused
from tests.factories import run_sql
from tests.throwaway import fresh_database

pytestmark = pytest.mark.django_db

TABLE = """
CREATE TABLE django_tasks_database_dbtaskresult (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    status varchar(10) NOT NULL DEFAULT 'READY',
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    finished_at timestamptz,
    args_kwargs jsonb NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    task_path text NOT NULL,
    worker_ids jsonb NOT NULL DEFAULT '[]',
    queue_name varchar(32) NOT NULL DEFAULT 'default',
    backend_name varchar(32) NOT NULL DEFAULT 'default',
    run_after timestamptz NOT NULL DEFAULT '9999-01-01 00:00:00+00',
    return_value jsonb,
    exception_class_path text NOT NULL DEFAULT '',
    traceback text NOT NULL DEFAULT ''
)
"""


@pytest.fixture(autouse=True)
def _table() -> None:
    run_sql(TABLE)


def add(
    path: str = "tests.app.tasks.total",
    arguments: str = '{"args": [1], "kwargs": {}}',
    **columns: Any,
) -> str:
    values = {"task_path": path, "args_kwargs": arguments, **columns}
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {django_tasks_db.TABLE} ({', '.join(values)}) "
            f"VALUES ({', '.join(['%s'] * len(values))}) RETURNING id::text",
            list(values.values()),
        )
        return str(cursor.fetchone()[0])


def left() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id::text FROM {django_tasks_db.TABLE}")
        return {row[0] for row in cursor.fetchall()}


OF_THE_PACKAGE = """
import django, json
from django.conf import settings
apps = ["django_tasks_db"] if django.VERSION >= (6, 0) else ["django_tasks", "django_tasks_db"]
settings.configure(INSTALLED_APPS=apps)
django.setup()
from django_tasks_db.models import DBTaskResult
print(json.dumps([DBTaskResult._meta.db_table, [f.column for f in DBTaskResult._meta.fields]]))
"""


def test_the_table_is_that_of_the_package() -> None:
    program = [sys.executable, "-c", OF_THE_PACKAGE]
    printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    table, columns = json.loads(printed)
    with connection.cursor() as cursor:
        described = connection.introspection.get_table_description(cursor, django_tasks_db.TABLE)
    assert (table, columns) == (django_tasks_db.TABLE, [column.name for column in described])


def take(*arguments: str) -> str:
    return printed("jobimport", "django-tasks-db", *arguments)


def test_waiting_rows_become_jobs_and_are_deleted() -> None:
    later = timezone.now() + timedelta(days=1)
    row = add(arguments='{"args": [2], "kwargs": {"right": 3}}', priority=5)
    add(queue_name="bulk", run_after=later)
    done = {add(status=status) for status in ("SUCCESSFUL", "FAILED")}
    assert "In all, took 2 jobs, and refused 0 rows." in take()
    first, second = Job.objects.order_by("pk")
    assert (first.payload, first.priority, first.status) == ({"left": 2, "right": 3}, 5, "ready")
    assert first.idempotency_key == f"django-tasks-db:{row}"
    assert tasks.total.get_result(str(first.pk)).args == [2]
    assert (second.queue, second.available_at, second.status) == ("bulk", later, "scheduled")
    assert left() == done
    assert "took 0 jobs" in take()


@pytest.mark.parametrize(
    "written", ["9999-01-01 00:00+00", "9999-01-01 00:00+14", "9999-01-01 00:00-12"]
)
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Kiritimati"])
def test_a_row_without_a_due_time_is_ready_in_each_time_zone(
    written: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "timezone", ZoneInfo(zone))
    monkeypatch.setattr(connection, "timezone_name", zone)
    connection.ensure_timezone()
    try:
        add(run_after=written)
        assert "took 1 job" in take()
    finally:
        monkeypatch.undo()
        connection.ensure_timezone()
    assert Job.objects.get().status == "ready"


def test_a_dry_run_writes_nothing() -> None:
    rows = {add(), add()}
    assert "would take 2 jobs of tests.app.tasks.total" in take("--dry-run")
    assert (left(), Job.objects.count()) == (rows, 0)


def test_batches_go_to_the_end_past_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django_tasks_db, "BATCH", 2)
    odd = {
        add("os.system"),
        add("tests.app.tasks.gone"),
        add(arguments='{"args": [], "kwargs": {}}'),
        add(queue_name="nowhere"),
        add(arguments=f'{{"args": [{"[" * 3000}{"]" * 3000}], "kwargs": {{}}}}'),
    }
    for _ in range(3):
        add()
    lines = refused("jobimport", "django-tasks-db", match="5 rows cannot be taken")
    assert "took 3 jobs of tests.app.tasks.total" in lines
    assert "refused 1 row of os.system: this code declares no such Task" in lines
    assert "missing a required argument: 'left'" in lines
    assert "no queue is named 'nowhere'" in lines
    assert "maximum recursion depth exceeded" in lines
    assert left() == odd


@pytest.mark.parametrize(
    "arguments",
    ["[]", "7", '{"args": [1]}', '{"args": "1", "kwargs": {}}', '{"args": [1], "kwargs": null}'],
)
def test_arguments_of_another_form_are_refused_and_other_rows_taken(arguments: str) -> None:
    odd = add(arguments=arguments)
    add()
    lines = refused("jobimport", "django-tasks-db", match="1 row cannot be taken")
    assert 'its args_kwargs is not {"args": [...], "kwargs": {...}}' in lines
    assert (Job.objects.count(), left()) == (1, {odd})


@pytest.mark.parametrize("written", ["infinity", "-infinity"])
def test_a_row_due_at_infinity_is_taken_and_ready(written: str) -> None:
    add(run_after=written)
    assert "took 1 job" in take()
    assert Job.objects.get().status == "ready"


def test_running_tasks_are_left_to_their_workers() -> None:
    running = add(status="RUNNING", started_at=datetime.now(UTC))
    assert "1 task run at the moment" in take()
    assert left() == {running}


def test_a_database_without_the_table_is_named() -> None:
    run_sql(f"DROP TABLE {django_tasks_db.TABLE}")
    with pytest.raises(CommandError, match="has no table of django-tasks-db"):
        take()


@pytest.fixture
def other(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The alias of a database of its own, which has the table. That of the jobs has none."""
    run_sql(f"DROP TABLE {django_tasks_db.TABLE}")

    def connect(wrapper: BaseDatabaseWrapper) -> None:
        if wrapper.connection is None:
            wrapper.connect()

    with fresh_database() as settings:
        monkeypatch.setitem(
            connections.databases,
            "other",
            connections.configure_settings({"default": {}, "other": settings})["other"],
        )
        # Django refuses the databases that a test has not declared before.
        monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", connect)
        with connections["other"].cursor() as cursor:
            cursor.execute(TABLE)
        yield "other"
        connections["other"].close()
        del connections["other"]


@pytest.mark.django_db(transaction=True)
def test_rows_of_another_database_are_taken_once_if_it_is_cut_short(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are committed, and the end of their rows is not."""
    with connections[other].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {django_tasks_db.TABLE} (task_path, args_kwargs)"
            " SELECT 'tests.app.tasks.total', '{\"args\": [1], \"kwargs\": {}}'"
            " FROM generate_series(1, 3)"
        )
    with monkeypatch.context() as patch:
        patch.setattr(django_tasks_db, "TAKEN", "SELECT 1 / 0 FROM (SELECT %s) AS ids")
        with pytest.raises(DataError):
            take("--database", other)
    made = set(Job.objects.values_list("pk", flat=True))
    assert len(made) == 3
    assert len(run_jobs()) == 3, "they have ended, and their keys are still taken"
    assert "took 3 jobs" in take("--database", other)
    assert set(Job.objects.values_list("pk", flat=True)) == made
    assert run_jobs() == []
    assert "took 0 jobs" in take("--database", other)
