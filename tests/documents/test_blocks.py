"""Every code block of README and of the docs runs as it is written, in a fresh project."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import given
from tests.documents.blocks import EXECUTED, PAGES, SHOWN, blocks_of
from tests.documents.project import Project

FROM_NOTHING = {"README.md", "docs/quickstart.md"}
"""Pages that a newcomer follows: nothing is there that they do not show."""

OTHERS = sorted(
    page
    for page in PAGES
    if page not in FROM_NOTHING and any(one.language in EXECUTED for one in blocks_of(page))
)
SERVER = os.environ["DATABASE_URL"]
OWN = f"documents_{os.getpid()}"


@pytest.fixture(scope="module")
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
    project = Project(tmp_path, SERVER, f"{OWN}_{page}"[:63])
    yield project
    project.drop_database()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_language_that_is_run_or_only_shown(page: str) -> None:
    for block in blocks_of(page):
        known = block.language in EXECUTED | SHOWN or block.language.startswith("{")
        assert known, f"{block}: {block.language!r}"


def follow(project: Project, page: str) -> None:
    """Run all blocks of a page."""
    for block in blocks_of(page):
        if block.language in EXECUTED:
            project.run(block)


BUY = """
from django.test import Client
from django_jobs import enqueue

answer = Client(SERVER_NAME="localhost").post("/buy/", {"email": "b@example.com"}, follow=True)
assert b"Thank you" in answer.content, answer.content
enqueue("shop.send_missing_receipts", {})
"""
LOOK = """
from django.test import Client

client = Client(SERVER_NAME="localhost")
assert client.login(username="ada", password="lovelace")
for page in ("job", "run", "queue", "worker", "deadletter", "schedule"):
    answer = client.get(f"/admin/django_jobs/{page}/")
    assert answer.status_code == 200, page
"""
OUTCOMES = "SELECT outcome, count(*) FROM django_jobs_run GROUP BY 1"
UNSENT = "SELECT id FROM shop_order WHERE receipt_sent_at IS NULL"


def test_readme_runs_as_it_is_written(project: Project) -> None:
    project.create_database()
    project.console("django-admin startproject mysite .")
    project.console("python manage.py startapp shop")
    project.add("mysite/settings.py", given.POSTGRESQL_AND_MAIL)
    follow(project, "README.md")
    project.type(BUY)
    project.console("python manage.py jobworker")
    assert project.fetch(OUTCOMES) == [("succeeded", 2)]
    assert project.fetch(UNSENT) == []
    assert project.fetch("SELECT name, error FROM django_jobs_schedule") == [("receipts", "")]


def test_the_quick_start_runs_as_it_is_written(project: Project) -> None:
    project.create_database()
    follow(project, "docs/quickstart.md")
    assert project.fetch(OUTCOMES) == [("succeeded", 2)]
    assert project.fetch(UNSENT) == []
    project.type(LOOK)


@pytest.mark.parametrize("page", OTHERS)
def test_a_page_of_docs_runs_as_it_is_written(page: str, shop: Project, project: Project) -> None:
    project.create_database(template=shop.database)
    shutil.copytree(shop.directory, project.directory, dirs_exist_ok=True)
    project.write("shop/jobs.py", given.JOBS + given.MORE_JOBS.get(page, ""))
    project.session = given.SESSION
    if page in given.BEFORE:
        project.type(given.SESSION + given.BEFORE[page])
    for block in blocks_of(page):
        if block.language in EXECUTED:
            into_jobs = block.language == "python" and block.declares_jobs and not block.file
            body = f"# shop/jobs.py\n{block.body}" if into_jobs else block.body
            project.run(dataclasses.replace(block, body=body))
    printed = project.type(given.SESSION + given.CALLS.get(page, "") + NAMES)
    handlers = set(re.findall(r"^shop\.\w+$", printed, re.MULTILINE))
    if handlers:
        printed = project.console("python manage.py jobworker")
    succeeded = project.fetch(
        "SELECT DISTINCT job_type FROM django_jobs_job WHERE status = 'succeeded'"
    )
    assert {name for (name,) in succeeded} == handlers, printed


NAMES = """
from django_jobs import registry

print(*registry.names(), sep="\\n")
"""
