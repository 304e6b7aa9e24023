"""The first migration makes the tables of the models."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLite
from django.db.migrations.executor import MigrationExecutor

from django_jobs.models import Queue
from tests.factories import run_sql


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    out = StringIO()
    call_command("makemigrations", "django_jobs", check=True, dry_run=True, stdout=out)
    assert "No changes detected" in out.getvalue()


@pytest.mark.django_db
def test_the_hot_tables_are_vacuumed_early() -> None:
    options = dict(run_sql("SELECT relname, reloptions FROM pg_class WHERE reloptions IS NOT NULL"))
    assert "autovacuum_vacuum_cost_delay=0" in options["django_jobs_job_live"]
    assert "fillfactor=50" in options["django_jobs_worker"]


@pytest.mark.django_db
def test_another_database_vendor_gets_the_tables_without_autovacuum_settings(
    tmp_path: Path,
) -> None:
    file = tmp_path / "other.sqlite3"
    sqlite = SQLite({**connection.settings_dict, "NAME": file, "OPTIONS": {}}, "default")
    tables = sqlite.introspection.table_names
    try:
        executor = MigrationExecutor(sqlite)
        executor.migrate(executor.loader.graph.leaf_nodes("django_jobs"))
        assert "django_jobs_job" in tables()
        MigrationExecutor(sqlite).migrate([("django_jobs", None)])
        assert "django_jobs_job" not in tables()
    finally:
        sqlite.close()


@pytest.mark.django_db
def test_the_hot_columns_have_no_foreign_key_constraint() -> None:
    constraints = run_sql(
        "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid IN"
        " ('django_jobs_job'::regclass, 'django_jobs_run'::regclass)"
    )
    assert constraints == []


@pytest.mark.django_db
def test_live_jobs_are_checked_and_the_history_is_not() -> None:
    """The planner reads the checks of each partition at each lookup by id."""
    checked = run_sql(
        "SELECT conrelid::regclass::text, count(*) FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid::regclass::text LIKE 'django_jobs_job%' GROUP BY 1"
    )
    assert [table for table, _ in checked] == ["django_jobs_job_live"]


@pytest.mark.django_db
def test_the_configured_queues_are_there_after_migrate() -> None:
    names = set(Queue.objects.values_list("name", flat=True))
    assert {"default", "emails", "strict", "bulk"} <= names


@pytest.mark.django_db(transaction=True)
def test_all_migrations_can_be_undone_and_done_again() -> None:
    executor = MigrationExecutor(connection)
    newest = executor.loader.graph.leaf_nodes("django_jobs")
    try:
        executor.migrate([("django_jobs", None)])
        assert not [
            name
            for name in connection.introspection.table_names()
            if name.startswith("django_jobs")
        ]
    finally:
        executor = MigrationExecutor(connection)
        executor.migrate(newest)
    call_command("migrate", verbosity=0)
    assert Queue.objects.filter(name="default").exists()
