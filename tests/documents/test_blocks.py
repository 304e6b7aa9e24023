"""Every code block of README and of the docs runs as it is written, in a fresh project."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.blocks import EXECUTED, PAGES, SHOWN, blocks_of
from tests.documents.project import Project

FROM_NOTHING = ("README.md", "docs/quickstart.md")
"""Pages that a newcomer follows, so nothing is there that they do not show."""

A_PROJECT_ON_POSTGRESQL = """

DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"}}
if "MAILERS" not in globals():
    EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
"""
"""What README asks for. The quick start begins with an empty directory."""


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """An empty directory, and an empty database for the project that a page makes."""
    page = re.sub(r"\W+", "_", request.node.name)
    project = Project(tmp_path, os.environ["DATABASE_URL"], f"{page}_{os.getpid()}"[-63:])
    project.create_database()
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


def test_readme_runs_as_it_is_written(project: Project) -> None:
    project.console("django-admin startproject mysite .")
    project.console("python manage.py startapp shop")
    with (project.directory / "mysite" / "settings.py").open("a") as settings:
        settings.write(A_PROJECT_ON_POSTGRESQL)
    follow(project, "README.md")
    project.type(BUY)
    project.console("python manage.py jobworker")
    assert project.fetch("SELECT outcome, count(*) FROM django_jobs_run GROUP BY 1") == [
        ("succeeded", 2)
    ]
    assert project.fetch("SELECT id FROM shop_order WHERE receipt_sent_at IS NULL") == []
    assert project.fetch("SELECT name, error FROM django_jobs_schedule") == [("receipts", "")]


def test_the_quick_start_runs_as_it_is_written(project: Project) -> None:
    follow(project, "docs/quickstart.md")
    assert project.fetch("SELECT outcome, count(*) FROM django_jobs_run GROUP BY 1") == [
        ("succeeded", 2)
    ]
    assert project.fetch("SELECT id FROM shop_order WHERE receipt_sent_at IS NULL") == []
    project.type(LOOK)
