"""Projects in which the blocks of the pages are run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import given
from tests.documents.project import Project
from tests.worker.conftest import start_worker

__all__ = ["start_worker"]

SERVER = os.environ["DATABASE_URL"]
OWN = f"documents_{os.getpid()}"


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The project and the database that the pages of docs begin with; each has a copy."""
    project = Project(tmp_path_factory.mktemp("shop"), SERVER, f"{OWN}_shop")
    project.create_database()
    project.console("django-admin startproject mysite .")
    project.console("python manage.py startapp shop")
    shutil.rmtree(project.directory / "shop" / "migrations")
    project.add("mysite/settings.py", given.SETTINGS)
    project.write("shop/models.py", given.MODELS)
    project.write("shop/systems.py", given.SYSTEMS)
    project.write("shop/jobs.py", given.JOBS)
    project.write("deploy.sh", given.DEPLOY)
    (project.directory / "deploy.sh").chmod(0o755)
    project.command("python", "manage.py", "migrate", "--run-syncdb", "-v0")
    project.type(given.SESSION + given.ROWS)
    yield project
    project.drop_database()


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """An empty directory, and an empty database for the project that a page makes."""
    page = re.sub(r"\W+", "_", request.node.name)
    project = Project(tmp_path, SERVER, f"{OWN}_{page}"[: 63 - len("test__jobs")])
    yield project
    project.drop_database()
