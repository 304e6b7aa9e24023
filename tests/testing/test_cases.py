"""The kit in unittest's and in pytest's clothes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.test import TransactionTestCase

from django_jobs.models import Job
from django_jobs.testing import (
    JobsMixin,
    JobsTestCase,
    assert_enqueued,
    crash_at,
    expire_lease,
    refute_enqueued,
    run_jobs,
    travel,
)
from django_jobs.testing.travelling import travelled
from tests.app import jobs

ROOT = Path(__file__).resolve().parents[2]


async def soon() -> bool:
    return False


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: run_jobs(jobs.noop), "queue is the name of one, not <JobType app.noop>"),
        (lambda: run_jobs(["default"]), "queue is the name of one, not ['default']"),
        (lambda: run_jobs(job_type=len), "is neither a job type nor the name of one"),
        (lambda: run_jobs(job_type=[jobs.noop]), "is neither a job type nor the name of one"),
        (lambda: assert_enqueued(None), "None is neither a job type nor the name of one"),
        (lambda: refute_enqueued(jobs.noop.handler), "neither a job type nor the name of one"),
        (lambda: crash_at("after_effect", job_type=5).__enter__(), "5 is neither a job type nor"),
        *(
            (lambda until=until: run_jobs(until=until), "until is a plain function")
            for until in (5, "1h", date(2099, 1, 1), soon, jobs.add, True)
        ),
        (lambda: assert_enqueued(jobs.add, payload=[1]), "payload is a dict of arguments by name"),
        (lambda: refute_enqueued(jobs.add, payload="1"), "payload is a dict of arguments by name"),
        *(
            (lambda count=count: assert_enqueued(jobs.add, count=count), "is a number of jobs, not")
            for count in ("1", -1, True, 1.0)
        ),
        (lambda: travel(to=date(2099, 1, 1)), "takes a datetime, not datetime.date(2099, 1, 1)"),
        (lambda: travel(to=60), "takes a datetime, not 60"),
        (lambda: expire_lease(5), "takes a job, as enqueue() returns it, not 5"),
        (lambda: expire_lease("app.noop"), "takes a job, as enqueue() returns it, not 'app.noop'"),
    ],
)
def test_another_value_than_an_argument_takes_is_refused_with_what_it_takes(
    call: Callable[[], Any], problem: str
) -> None:
    jobs.noop.enqueue()
    with pytest.raises(TypeError, match=re.escape(problem)):
        call()
    assert Job.objects.get().status == "ready"


@pytest.mark.django_db
def test_a_job_is_looked_for_with_the_payload_as_json_has_it() -> None:
    jobs.add.enqueue(1, second=[0])  # type: ignore[arg-type]
    assert_enqueued(jobs.add, payload={"first": 1.0, "second": [0]}, count=1)
    refute_enqueued(jobs.add, payload={"first": True})
    with pytest.raises(AssertionError, match=r"its second is \[0\], not \[False\]"):
        assert_enqueued(jobs.add, payload={"second": [False]})


class JobsTestCaseTests(JobsTestCase):
    def test_jobs_run_in_the_transaction_of_a_test_case(self) -> None:
        job = jobs.noop.using(delay=60).enqueue()
        assert self.assert_enqueued(jobs.noop) == [job]
        self.travel(60)
        with self.capture_jobs() as captured:
            assert [run.outcome for run in self.run_jobs()] == ["succeeded"]
        assert captured == []
        self.refute_enqueued(jobs.noop)

    def test_nothing_of_another_test_is_left(self) -> None:
        assert (Job.objects.count(), travelled()) == (0, 0.0)

    async def test_jobs_run_in_an_async_test(self) -> None:
        await jobs.noop.aenqueue()
        runs = await self.arun_jobs()
        assert [run.outcome for run in runs] == ["succeeded"]


class JobsMixinTests(JobsMixin, TransactionTestCase):
    def test_the_journey_of_a_test_without_a_transaction_ends_with_it(self) -> None:
        assert travelled() == 0
        self.travel(60)
        assert travelled() == 60

    def test_the_journey_of_another_test_is_over(self) -> None:
        self.test_the_journey_of_a_test_without_a_transaction_ends_with_it()


@pytest.fixture
def kit(jobs: ModuleType) -> ModuleType:
    """The fixture, whose name is here that of a module."""
    return jobs


def test_the_fixture_has_the_functions_of_the_kit(kit: ModuleType) -> None:
    jobs.noop.using(delay=60).enqueue()
    kit.assert_enqueued(jobs.noop, count=1)
    kit.travel(60)
    assert [run.outcome for run in kit.run_jobs()] == ["succeeded"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [1, 2])
def test_the_fixture_works_without_a_transaction(kit: ModuleType, number: int) -> None:
    assert travelled() == 0
    kit.refute_enqueued(jobs.noop)
    test_the_fixture_has_the_functions_of_the_kit(kit)


WITHOUT_DJANGO = """
import sys

def test_nothing_is_imported():
    assert "django_jobs.testing.pytest_plugin" in sys.modules
    assert "django" not in sys.modules
"""


def run_pytest(test: Path, *options: str, **environment: str) -> str:
    """Run the tests of a file with the plugin; returns what pytest has printed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    plugins = ("-p", "django_jobs.testing.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *options, str(test)],
        cwd=test.parent,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_plugin_is_harmless_where_django_is_not_configured(tmp_path: Path) -> None:
    test = tmp_path / "test_without.py"
    test.write_text(WITHOUT_DJANGO)
    assert "1 passed" in run_pytest(test, "-p", "no:django", DJANGO_SETTINGS_MODULE="")


def test_pytest_finds_the_plugin() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    name = "django_jobs.testing.pytest_plugin"
    assert f'[project.entry-points.pytest11]\n"{name}" = "{name}"\n' in project


def test_an_unknown_name_is_an_attribute_error() -> None:
    import django_jobs.testing

    with pytest.raises(AttributeError, match="has no attribute 'run_job'"):
        _ = django_jobs.testing.run_job
