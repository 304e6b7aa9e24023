"""What the app does after ``migrate``, whichever app was migrated."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command

from tests.factories import run_sql
from tests.throwaway import Project, fresh_database

ORDERS = {
    "a fresh database": ("migrate shop", "migrate auth", "migrate django_jobs", "migrate"),
    "back to nothing": ("migrate", "migrate django_jobs zero", "migrate sessions", "migrate"),
    "step by step": ("migrate django_jobs 0001", "migrate contenttypes", "migrate"),
}
COUNTS = """shell -c "from django_jobs.models import Queue, Schedule
print('there are', Queue.objects.count(), Schedule.objects.count())" """
WITHOUT_ADMIN = """
INSTALLED_APPS = ["django.contrib.contenttypes", "django_jobs", "shop"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
"""


@pytest.mark.django_db
@pytest.mark.parametrize("order", ORDERS)
def test_any_app_may_be_migrated_in_any_order(order: str, tmp_path: Path) -> None:
    with fresh_database() as database:
        ended = Project(tmp_path, database).manage(*ORDERS[order], COUNTS)
    assert ended.returncode == 0, ended.stderr
    assert "there are 1 1" in ended.stdout


@pytest.mark.django_db
@pytest.mark.parametrize("table, column", [("queue", "retention"), ("schedule", "dst")])
def test_tables_of_an_older_release_are_not_written_to_after_migrate(
    table: str, column: str
) -> None:
    run_sql(f"DELETE FROM django_jobs_{table}")
    run_sql(f"ALTER TABLE django_jobs_{table} DROP COLUMN {column}")
    call_command("migrate", verbosity=0)
    assert run_sql(f"SELECT count(*) FROM django_jobs_{table}") == [(0,)]


@pytest.mark.django_db
def test_a_project_without_djangos_admin_has_no_problem(tmp_path: Path) -> None:
    with fresh_database() as database:
        project = Project(tmp_path, database)
        project.write("settings.py", (tmp_path / "settings.py").read_text() + WITHOUT_ADMIN)
        ended = project.manage("check --database default", "migrate -v0", COUNTS)
    assert ended.returncode == 0, ended.stderr
    assert "there are 1 1" in ended.stdout
