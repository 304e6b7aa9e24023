"""``jobdoctor``: its words, its JSON and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from django_jobs.doctor.findings import KINDS
from tests.factories import run_sql

pytestmark = pytest.mark.django_db

OFF = "ALTER TABLE django_jobs_job_live SET (autovacuum_enabled = off)"


@pytest.fixture(autouse=True)
def _only_what_a_test_provokes(settings: Settings) -> None:
    """Without the findings of a database that other tests use just now."""
    silenced = {f"django_jobs.{number}" for number in ("D103", "D104")}
    settings.SILENCED_SYSTEM_CHECKS = [*KINDS.keys() - silenced, "django_jobs.W002"]


def examine(*arguments: str, code: int = 0) -> str:
    out = StringIO()
    if not code:
        call_command("jobdoctor", *arguments, stdout=out)
        return out.getvalue()
    with pytest.raises(CommandError) as failure:
        call_command("jobdoctor", *arguments, stdout=out)
    assert failure.value.returncode == code
    return f"{out.getvalue()}{failure.value}"


def test_nothing_is_found_in_new_tables() -> None:
    assert examine() == "Nothing was found.\n"


def test_a_finding_is_printed_with_what_to_do() -> None:
    run_sql(OFF)
    text = examine(code=2)
    assert text.startswith("ERROR django_jobs.D103: Autovacuum is off for django_jobs_job_live")
    assert "ALTER TABLE django_jobs_job_live RESET (autovacuum_enabled);" in text
    assert text.endswith("1 error, 0 warnings")


def test_warnings_alone_exit_with_1() -> None:
    run_sql("ALTER TABLE django_jobs_worker RESET (fillfactor)")
    assert examine(code=1).endswith("0 errors, 1 warning")


def test_json_has_the_facts() -> None:
    assert json.loads(examine("--json")) == {"findings": [], "not_examined": []}
    run_sql(OFF)
    printed = examine("--json", code=2)
    (one,) = json.loads(printed.partition("\n")[0])["findings"]
    assert (one["id"], one["severity"]) == ("django_jobs.D103", "error")
    assert one["facts"] == {"table": "django_jobs_job_live"}
    assert one["commands"] == ["ALTER TABLE django_jobs_job_live RESET (autovacuum_enabled);"]


def test_missing_tables_exit_with_2() -> None:
    run_sql("ALTER TABLE django_jobs_job_live RENAME TO elsewhere")
    assert "run manage.py migrate" in examine(code=2)


def test_a_database_that_does_not_answer_exits_with_2() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "django", "jobdoctor"],
        env={
            "PATH": "/usr/bin:/bin",
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "does not answer" in ran.stderr
    assert "Traceback" not in ran.stderr
