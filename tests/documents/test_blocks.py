"""Every code block of README and of the docs runs as it is written, in a fresh project."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, get_commands, load_command_class

from tests.documents import given
from tests.documents.blocks import EXECUTED, PAGES, SHOWN, Block, blocks_of
from tests.documents.project import Project

pytestmark = pytest.mark.processes

FROM_NOTHING = {"README.md", "docs/quickstart.md", "docs/tutorial.md"}
"""Pages that a newcomer follows: nothing is there that they do not show."""

OTHERS = sorted(
    page
    for page in PAGES
    if page not in FROM_NOTHING and any(one.language in EXECUTED for one in blocks_of(page))
)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_known_language(page: str) -> None:
    for block in blocks_of(page):
        known = block.language in EXECUTED | SHOWN or block.language.startswith("{")
        assert known, f"{block}: {block.language!r}"


def follow(project: Project, page: str) -> None:
    """Run all blocks of a page."""
    for block in blocks_of(page):
        if block.language in EXECUTED:
            project.run(block)


def lists_named(value: Any, names: set[str]) -> Iterator[list[str]]:
    """The lists under such a key, anywhere in a YAML document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        if key in names and isinstance(one, list):
            yield one
        if isinstance(one, dict | list):
            yield from lists_named(one, names)


def started_by(block: Block) -> Iterator[list[str]]:
    """The command lines that a unit, a Dockerfile or a manifest starts."""
    match block.language:
        case "ini":
            yield from map(shlex.split, re.findall(r"^ExecStart=(.+)$", block.body, re.MULTILINE))
        case "dockerfile":
            yield from map(json.loads, re.findall(r"^CMD (.+)$", block.body, re.MULTILINE))
        case "text" if block.body.startswith("# Procfile"):
            lines = block.body.splitlines()[1:]
            yield from (shlex.split(line.split(":", 1)[1]) for line in lines)
        case "yaml":
            for document in yaml.safe_load_all(block.body):
                yield from lists_named(document, {"command", "args"})


def test_the_unit_and_the_compose_file_start_options_that_exist() -> None:
    """Nothing here runs systemd or containers: the parser of each command reads the options."""
    started = set()
    for page in PAGES:
        for block in blocks_of(page):
            for line in started_by(block):
                if "manage.py" in line:
                    name, *arguments = line[line.index("manage.py") + 1 :]
                    parser = load_command_class(get_commands()[name], name).create_parser("", name)
                    try:
                        parser.parse_args(arguments)
                    except CommandError as error:
                        raise AssertionError(f"{block}: {error}") from None
                    started.add((page, block.language, name))
    assert started >= {
        *((page, "ini", "jobworker") for page in ("docs/containers.md", "docs/tutorial.md")),
        *((page, "yaml", "jobworker") for page in ("docs/containers.md", "docs/tutorial.md")),
        *(("docs/containers.md", language, "jobworker") for language in ("dockerfile", "text")),
        *(("docs/containers.md", language, "migrate") for language in ("yaml", "text")),
        ("docs/kubernetes.md", "yaml", "jobworker"),
    }


@pytest.mark.slow
def test_the_image_is_built_as_far_as_it_can_be_without_containers(
    shop: Project, project: Project
) -> None:
    """Each instruction of the Dockerfile: what it copies is there, what it installs fits together,
    and its command runs."""
    project.begin_as(shop)
    requirements, image = (
        next(block.body for block in blocks_of("docs/containers.md") if block.body.startswith(name))
        for name in ("# requirements.txt", "# Dockerfile")
    )
    project.write("requirements.txt", requirements)
    done = []
    for line in image.splitlines()[1:]:
        instruction, _, rest = line.partition(" ")
        match instruction:
            case "FROM":
                supported = metadata("django-jobs-postgres").get_all("Classifier")
                version = rest.removeprefix("python:").removesuffix("-slim")
                assert f"Programming Language :: Python :: {version}" in supported
            case "COPY":
                assert (project.directory / rest.split()[0]).exists()
            case "RUN":
                begin, *arguments = shlex.split(rest)
                assert begin == "pip"
                pip = [sys.executable, "-m", "pip", *arguments, "--dry-run", "--no-index"]
                subprocess.run(pip, cwd=project.directory, check=True)
            case "CMD":
                project.console(shlex.join(json.loads(rest)))
            case _:
                assert instruction in ("ENV", "WORKDIR", "USER"), line
        done.append(instruction)
    assert done[0] == "FROM"
    assert done[-2:] == ["USER", "CMD"]


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(project: Project) -> None:
    project.create_database()
    follow(project, "docs/tutorial.md")
    outcomes = f"{OUTCOMES} ORDER BY 1"
    assert project.fetch(outcomes) == [("failed", 1), ("succeeded", 3)]
    assert project.fetch(UNSENT) == []
    assert project.fetch("SELECT result FROM django_jobs_job_history WHERE result > '0'") == [(2,)]
    project.type(LOOK)


@pytest.mark.slow  # some sixty projects; the quick start shows that Django's own begins as shown
@pytest.mark.parametrize("page", OTHERS)
def test_a_page_of_docs_runs_as_it_is_written(page: str, shop: Project, project: Project) -> None:
    pytest.importorskip(given.NEEDS.get(page, "django"))
    project.begin_as(shop)
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
    handlers = set(re.findall(r"^shop\.[\w.]+$", printed, re.MULTILINE))
    if handlers:
        printed = project.console("python manage.py jobworker")
    succeeded = project.fetch(
        "SELECT DISTINCT job_type FROM django_jobs_job"
        " WHERE status = 'succeeded' AND job_type NOT LIKE 'django_jobs.%'"
    )
    assert {name for (name,) in succeeded} == handlers, printed
    if page in given.AFTER:
        project.type(given.SESSION + given.AFTER[page])


NAMES = """
from django_jobs import registry

print(*registry.names(), sep="\\n")
"""
