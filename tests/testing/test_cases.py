"""The kit in unittest's and in pytest's clothes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.test import TransactionTestCase

from django_jobs.models import Job
from django_jobs.testing import JobsMixin, JobsTestCase
from django_jobs.testing.travelling import travelled
from tests.app import jobs

ROOT = Path(__file__).resolve().parents[2]


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
