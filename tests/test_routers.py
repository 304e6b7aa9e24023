"""Jobs in another database than the project's data."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from django.core.checks import run_checks
from django.db import connections
from pytest_django import Settings

from django_jobs.checks import TAG
from django_jobs.models import Job
from django_jobs.routers import JobsRouter
from tests.app.models import Effect
from tests.throwaway import Project, fresh_database

ROUTER = "django_jobs.routers.JobsRouter"


class Forbidding:
    """A router of a project that keeps each app but its own out of all databases."""

    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return app_label == "app"


class Elsewhere:
    """A router that reads from a replica."""

    def db_for_read(self, model: object, **hints: object) -> str:
        return "replica"


def test_the_router_has_an_opinion_about_the_jobs_only(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"DATABASE": "jobs"}
    router = JobsRouter()
    assert (router.db_for_read(Job), router.db_for_write(Job)) == ("jobs", "jobs")
    assert (router.db_for_read(Effect), router.db_for_write(Effect)) == (None, None)
    assert router.allow_relation(Job(), Job()) is True
    assert router.allow_relation(Job(), Effect()) is None
    assert router.allow_migrate("jobs", "django_jobs") is True
    assert router.allow_migrate("default", "django_jobs") is False
    assert router.allow_migrate("default", "app") is None


def ids(settings: Settings, **options: object) -> set[str]:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, **options}
    return {str(message.id) for message in run_checks(tags=[TAG])} & {
        "django_jobs.E020",
        "django_jobs.W004",
    }


def test_routers_are_checked(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ids(settings) == set()
    settings.DATABASE_ROUTERS = [Forbidding()]
    assert ids(settings) == {"django_jobs.E020"}
    settings.DATABASE_ROUTERS = [Elsewhere()]
    assert ids(settings) == {"django_jobs.W004"}
    settings.DATABASE_ROUTERS = [ROUTER, Elsewhere()]
    assert ids(settings) == set()


def test_an_alias_that_no_router_names_is_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "jobs", connections.settings["default"])
    assert ids(settings, DATABASE="jobs") == {"django_jobs.W004"}
    settings.DATABASE_ROUTERS = [ROUTER]
    assert ids(settings, DATABASE="jobs") == set()


ENQUEUE = """
from django.db import transaction
from django_jobs.models import Job
from shop.jobs import greet
from shop.models import Order

with transaction.atomic():
    Order.objects.create(number=1)
    greet.enqueue_on_commit("Ada")
    assert not Job.objects.exists()
assert Job.objects.get().status == "ready"
"""
RESULT = """
from django_jobs.models import Job
assert Job.objects.get().result == "Ada"
"""


def test_the_tables_and_the_jobs_are_on_the_other_alias_alone(tmp_path: Path) -> None:
    with fresh_database() as data, fresh_database() as jobs:
        project = Project(tmp_path, data)
        settings = project.directory / "settings.py"
        with settings.open("a") as file:
            file.write(f"DATABASES['jobs'] = {jobs!r}\n")
            file.write(f"DJANGO_JOBS = {{'DATABASE': 'jobs'}}\nDATABASE_ROUTERS = [{ROUTER!r}]\n")
        done = project.manage(
            *(
                "migrate -v0",
                "migrate --database jobs -v0",
                "check --tag django_jobs --fail-level WARNING",
            ),
            *(f"shell -c '{ENQUEUE}'", "jobworker --burst", f"shell -c '{RESULT}'"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert tables(data, "django_jobs_%") == 0
        assert tables(jobs, "django_jobs_%") > 10


def tables(database: dict[str, object], name: str) -> int:
    """How many tables of this database have such a name."""
    parameters = connections["default"].get_connection_params()
    with psycopg.connect(**{**parameters, "dbname": database["NAME"]}) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE tablename LIKE %s"
        (count,) = connection.execute(query, [name]).fetchone() or (0,)
    return int(count)
