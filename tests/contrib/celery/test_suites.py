"""The tests of packages that ship Celery tasks pass with ``JobsTask``, without a broker."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import django
import pytest
from django.db import connection

from django_jobs.models import Queue
from tests.factories import run_sql
from tests.sdists import downloaded

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = "tests.contrib.celery.suites.settings"
NO_IMAGE = "needs image.png, which is not in the source distribution"
OF_THE_MESSAGE = "reads the other tasks of a canvas in the body of a message: its rows have them"


@dataclass
class Suite:
    """Files of the source distribution of a package. ``changes`` are made in their text;
    ``exceptions`` are tests that are not run, by the end of their id, and why."""

    package: str
    files: dict[str, str]
    passed: int
    changes: dict[str, str] = field(default_factory=dict)
    exceptions: dict[str, str] = field(default_factory=dict)


SUITES = {
    "djcelery_email": Suite(
        "django-celery-email==3.0.0",
        {"tests.py": "test_mail.py"},
        passed=22,
        changes={
            # "They might as well be executed using a real backend", it says there.
            "task_always_eager = True": "task_always_eager = False",
            "'tests.tests.": "'test_mail.",
        },
        exceptions={
            "UtilTests::test_email_with_attachment": NO_IMAGE,
            "UtilTests::test_email_with_attachment_from_file": NO_IMAGE,
            "UtilTests::test_email_with_mime_attachment": NO_IMAGE,
        },
    ),
    "user_tasks": Suite(
        "django-user-tasks==4.0.0",
        {"test_signals.py": "test_signals.py", "test_tasks.py": "test_tasks.py"},
        passed=27,
        exceptions={
            "TestCreateUserTask::test_create_chain": OF_THE_MESSAGE,
            "TestCreateUserTask::test_create_chord": OF_THE_MESSAGE,
            "TestCreateUserTask::test_create_chord_exclude_body": OF_THE_MESSAGE,
            "TestCreateUserTask::test_create_group": OF_THE_MESSAGE,
        },
    ),
}


def run(*arguments: str, cwd: Path, suite: str) -> str:
    """Run Python in the settings of the suites, on the database of this test."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *arguments],
        cwd=cwd,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "PYTHONPATH": os.pathsep.join((str(Path(__file__).resolve().parents[3]), str(cwd))),
            "SUITE": suite,
            "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.mark.parametrize("name", SUITES)
def test_the_tests_of_a_package_pass(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    suite = SUITES[name]
    if find_spec(name) is None:
        pytest.skip(f"{suite.package} is not installed")
    if name == "djcelery_email" and django.VERSION >= (6, 0):
        pytest.skip("it reads EmailMessage.mixed_subtype: gone in Django 6.0")
    source = downloaded(suite.package, "tests", request)
    for theirs, ours in suite.files.items():
        content = (source / theirs).read_bytes()
        for old, new in suite.changes.items():
            content = content.replace(old.encode(), new.encode())
        (tmp_path / ours).write_bytes(content)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from tests.contrib.celery.suites.at_once import *\n")
    Queue.objects.create(name="django_email")
    if name == "user_tasks":
        run("django", "migrate", "--skip-checks", name, cwd=tmp_path, suite=name)
    try:
        plugins = ("-p", "no:cacheprovider", "-p", "no:randomly")
        out = run("pytest", "-q", *plugins, cwd=tmp_path, suite=name)
    finally:
        run_sql(DROP)
    print(f"{suite.package}: {out.splitlines()[-1]}")
    assert f"{suite.passed} passed, {len(suite.exceptions)} deselected" in out


DROP = """
DROP TABLE IF EXISTS user_tasks_usertaskartifact, user_tasks_usertaskstatus CASCADE;
DELETE FROM django_migrations WHERE app = 'user_tasks';
"""
