"""The operations for tables in use: what they accept, and what they do without other clients."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLite
from django.db.migrations import Migration
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from pytest_django import Settings

from django_jobs.domain.outcomes import Succeeded
from django_jobs.migrations._patience import Patient, PatientAddField, PatientAddIndex
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    due_schedule,
    look,
    register_worker,
    run_sql,
    settle_one,
)

FIRST, NEXT = "0001_initial", "each_operation"


@pytest.fixture(autouse=True)
def _next_release(settings: Settings) -> None:
    settings.MIGRATION_MODULES = {"django_jobs": "tests.migrations.next_release"}


def migrate(migration: str) -> None:
    MigrationExecutor(connection).migrate([("django_jobs", migration)])


@pytest.fixture
def _newest_schema(transactional_db: None) -> Iterator[None]:
    migrate(NEXT)
    yield
    migrate(FIRST)


def is_patient(migration: Migration) -> bool:
    """Whether each of its operations is a transaction, or several, that waits for a moment only."""
    operations = (Patient, PatientAddIndex)
    return not migration.atomic and all(isinstance(one, operations) for one in migration.operations)


def test_each_migration_but_the_first_waits_only_briefly() -> None:
    found = MigrationLoader(None).disk_migrations
    ours = {name: one for (app, name), one in found.items() if app == "django_jobs"}
    assert not is_patient(ours.pop(FIRST))
    assert NEXT in ours
    assert [name for name, one in ours.items() if not is_patient(one)] == []


@pytest.mark.usefixtures("_newest_schema")
def test_code_of_the_previous_release_runs_on_the_newest_schema() -> None:
    worker = register_worker()
    noop.enqueue()
    noop.enqueue_many([{}, {}])
    due_schedule()
    look()
    for claimed in claim_ready(worker):
        settle_one(claimed, Succeeded())
    rows = run_sql("SELECT status, region, count(*) FROM django_jobs_job GROUP BY 1, 2")
    assert rows == [("succeeded", "here", 4)]
    assert run_sql("SELECT labels FROM django_jobs_worker") == [(None,)]


@pytest.mark.parametrize(
    "field",
    [
        models.BooleanField(),
        models.BooleanField(default=False),
        models.BooleanField(null=True, db_index=True),
        models.IntegerField(null=True, unique=True),
        models.ForeignKey("django_jobs.job", models.CASCADE, null=True, db_index=False),
    ],
    ids=["no default", "default in Python", "index", "unique", "foreign key"],
)
def test_a_column_that_old_code_or_a_long_lock_would_trip_over_is_refused(
    field: models.Field,
) -> None:
    with pytest.raises(TypeError, match=r"^job\.field: .*PatientAddIndex"):
        PatientAddField("job", "field", field)


@pytest.mark.django_db
def test_the_operations_are_djangos_own_on_another_database(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite3"
    sqlite = SQLite({**connection.settings_dict, "NAME": file, "OPTIONS": {}}, "default")
    try:
        for migration, there in ((NEXT, True), (FIRST, False)):
            MigrationExecutor(sqlite).migrate([("django_jobs", migration)])
            with sqlite.cursor() as cursor:
                columns = sqlite.introspection.get_table_description(cursor, "django_jobs_job")
                indexes = sqlite.introspection.get_constraints(cursor, "django_jobs_run")
                tables = sqlite.introspection.table_names(cursor)
            assert ("region" in {column.name for column in columns}) is there
            assert ("django_jobs_run_lost" in indexes) is there
            assert ("django_jobs_remark" in tables) is there
    finally:
        sqlite.close()


@pytest.mark.django_db(transaction=True)  # as the command is run
def test_sqlmigrate_prints_the_statements_without_waiting() -> None:
    out = StringIO()
    call_command("sqlmigrate", "django_jobs", NEXT, stdout=out)
    assert "ADD COLUMN \"region\" varchar(20) DEFAULT 'here' NOT NULL" in out.getvalue()
    assert 'CREATE INDEX CONCURRENTLY "django_jobs_run_lost"' in out.getvalue()
    assert 'CREATE TABLE "django_jobs_remark"' in out.getvalue()
