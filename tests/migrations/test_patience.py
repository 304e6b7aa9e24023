"""The operations for tables in use: what they accept, and what they do without other clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLite
from django.db.migrations import Migration
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from django_jobs.domain.outcomes import Succeeded
from django_jobs.migrations._patience import Patient, PatientAddField, PatientAddIndex
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    due_schedule,
    leaves,
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


INDEXES = """
SELECT indrelid::regclass::text, indexrelid::regclass::text, indisvalid FROM pg_index
WHERE pg_get_indexdef(indexrelid) LIKE ANY(
    ARRAY['%%(finished_at)', '%%(finished_at)%%''lost''::text)'])
"""
A_DAY = """
CREATE TABLE django_jobs_run_{day} (LIKE django_jobs_run_default INCLUDING ALL);
ALTER TABLE django_jobs_run ATTACH PARTITION django_jobs_run_{day}
    FOR VALUES FROM ('{day} 00:00Z') TO ('{day} 24:00Z')
"""


@pytest.fixture
def make_day(transactional_db: None) -> Iterator[Callable[[str], None]]:
    """Makes a partition of runs."""
    made: list[str] = []

    def make(day: str) -> None:
        run_sql(A_DAY.format(day=day))
        made.append(day)

    yield make
    for day in made:
        run_sql(f"DROP TABLE django_jobs_run_{day}")


def indexes() -> dict[str, str]:
    """Of each table with one of the next release, all valid, its name."""
    rows = run_sql(INDEXES)
    assert [row for row in rows if not row[2]] == []
    assert len(rows) == len({table for table, *_ in rows})
    return {table: name for table, name, _ in rows}


def test_an_index_of_jobs_is_for_the_live_ones_and_one_of_runs_for_each_partition(
    make_day: Callable[[str], None],
) -> None:
    make_day("20200101")
    migrate(NEXT)
    try:
        made = indexes()
        assert set(made) == {"django_jobs_job_live", *leaves("django_jobs_run")}
        assert made["django_jobs_job_live"] == "django_jobs_job_finished"
        assert made["django_jobs_run_default"] == "django_jobs_run_lost"
        assert made["django_jobs_run_20200101"] == "django_jobs_run_lost_20200101"
        make_day("20200102")
        made = indexes()
        assert "lost" not in made["django_jobs_run_20200102"]  # PostgreSQL chose a name
    finally:
        migrate(FIRST)
    assert indexes() == {}


def test_an_interrupted_build_continues_with_the_partition_where_it_stopped(
    make_day: Callable[[str], None],
) -> None:
    make_day("20200101")
    make_day("20200102")
    migrate(NEXT)
    make_day("20200103")
    try:
        before = indexes()
        run_sql("DROP INDEX django_jobs_run_lost_20200101")
        run_sql(
            "UPDATE pg_index SET indisvalid = false"
            " WHERE indexrelid = 'django_jobs_run_lost_20200102'::regclass"
        )
        MigrationRecorder(connection).record_unapplied("django_jobs", NEXT)
        migrate(NEXT)
        assert indexes() == before
    finally:
        migrate(FIRST)
    assert indexes() == {}


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
