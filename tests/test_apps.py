"""What the app does after ``migrate``, whichever app was migrated."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils.module_loading import import_string

import django_jobs
from django_jobs import checks
from django_jobs.checks import project as check_project
from django_jobs.checks import settings as check_settings
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


LOADED = """
import sys
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=[*{apps}, "django.contrib.contenttypes", "django.contrib.auth", "django_jobs"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql"}}}},
    USE_TZ=True,
)
django.setup()
import django_jobs
django_jobs.enqueue, django_jobs.job
{then}
print(*(name for name in sys.modules if name.startswith("django_jobs") or name == "croniter"))
"""
CONSOLE = ("django.contrib.admin", "django.contrib.sessions", "django.contrib.messages")


WORKER = (
    "import django_jobs.management.commands.jobworker, django_jobs.worker.process.worker_process"
)


NEVER = "checks. domain.errors domain.schedules http worker.context croniter"
"""What no process that enqueues needs; with a full stop, modules of a room but not its own."""


@pytest.mark.parametrize(
    "apps, then, most, unused",
    [
        (
            (),
            "",
            62,
            f"{NEVER} admin api.steps contrib. domain.cron domain.graph lifecycle.backlog metrics",
        ),
        (
            CONSOLE,
            "",
            133,
            f"{NEVER} doctor lifecycle.operations. maintenance metrics.gauges why",
        ),
        ((), WORKER, 198, "admin backend. checks. contrib. doctor. http metrics why"),
    ],
)
def test_a_process_loads_few_modules(
    apps: tuple[str, ...], then: str, most: int, unused: str
) -> None:
    """Each takes 0.4 ms of the start of each web process, ``manage.py`` and worker."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED.format(apps=apps, then=then)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    names = {name.removeprefix("django_jobs.") for name in loaded} - {"contrib.celery"}
    assert not {name for name in names if name.startswith(tuple(unused.split()))}
    assert len(loaded) <= most


@pytest.mark.parametrize("line", ["django_jobs import job", "django_jobs.models import Job"])
def test_a_project_without_the_app_is_told_so(line: str) -> None:
    code = (
        "import django; from django.conf import settings;"
        f"settings.configure(INSTALLED_APPS=[]); django.setup(); from {line}"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1] == 'RuntimeError: "django_jobs" is not in INSTALLED_APPS'


def test_each_page_that_is_given_by_its_path_is_there() -> None:
    """Its module is imported by the first request alone."""
    admin = Path(django_jobs.__file__).parent / "admin"
    text = "".join(path.read_text() for path in sorted(admin.rglob("*.py")))
    paths = set(re.findall(r'"((?:\w+\.)+\w+_view)"', text))
    assert len(paths) == 16
    for path in paths:
        assert callable(import_string(f"django_jobs.admin.{path}"))


def test_each_check_is_registered_by_its_name() -> None:
    """Their modules are imported when they run, so a decorator there would come too late."""
    modules = {"settings": check_settings, "project": check_project}
    assert set(checks.CHECKS) == {
        f"{module}.{name}"
        for module, of in modules.items()
        for name, one in inspect.getmembers(of, inspect.isfunction)
        if name.startswith("check_") and one.__module__ == of.__name__
    }
