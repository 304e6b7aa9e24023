"""What a worker warns of before it begins, and while its code is changed."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from django.core.management import CommandError, call_command

from django_jobs import job, registry
from django_jobs.management.worker.reloading import code_watch, project_files
from django_jobs.management.worker.startup import unknown_types, warn_of_job_types
from django_jobs.signals import worker_event
from tests.app import jobs
from tests.factories import heard, register_worker, run_sql


@pytest.fixture
def from_a_view() -> Iterator[str]:
    @job(name="app.from_a_view")
    def from_a_view() -> None: ...

    yield "app.from_a_view"
    registry.unregister("app.from_a_view")


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        (("emails",), "emails; --queues emails,default names the queues"),
        (("-Q", "emails"), "-Q emails; --queues emails,default names the queues"),
        (
            ("-c", "4"),
            "-c 4; --threads 8, or --prefork 8, runs eight at once",
        ),
        (("--concurrency=4",), "--concurrency=4; --threads 8, or --prefork 8, runs eight at once"),
        (("--beat",), "--beat; each worker fires schedules: leave it out"),
        (("-l", "info"), "-l info; --verbosity 2 logs more"),
        (("--workers", "2"), "--workers 2; --processes 2 starts two of them"),
        (("--burts",), "--burts; did you mean '--burst'?"),
        (("--thraeds=4",), "--thraeds=4; did you mean '--threads'?"),
    ],
)
def test_an_option_of_another_worker_is_refused_with_what_to_write(
    arguments: tuple[str, ...], end: str
) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("jobworker", *arguments)
    assert str(refused.value) == f"Error: unrecognized arguments: {end}"


@pytest.mark.parametrize(
    ("command", "end"),
    [
        (("jobstatus", "--chek"), "--chek; did you mean '--check'?"),
        (("jobarchive", "--befor=3d", "--to", "x", "--dropp"), "--dropp; did you mean '--drop'?"),
        (("jobprune", "--xyz"), "--xyz"),
        (("jobstatus", "emails"), "emails"),
    ],
)
def test_a_misspelt_option_of_any_command_is_refused_with_the_one_that_is_meant(
    command: tuple[str, ...], end: str
) -> None:
    with pytest.raises(CommandError) as refused:
        call_command(*command)
    assert str(refused.value) == f"Error: unrecognized arguments: {end}"


@pytest.mark.parametrize("given", ["--parent 1", "--parent=1", "--parent 1 --burst"])
def test_a_parent_without_reload_is_refused(given: str) -> None:
    with pytest.raises(CommandError, match="--parent is an option of --reload: give both"):
        call_command("jobworker", *given.split())


def test_a_worker_warns_of_a_type_that_no_jobs_py_imports(from_a_view: str) -> None:
    with heard(worker_event) as events:
        warn_of_job_types()
    by_job_type = {event["fields"]["job_type"]: event for event in events}
    assert by_job_type[from_a_view]["sender"] == "job_type_by_chance"
    assert by_job_type[from_a_view]["level"] == logging.WARNING
    assert by_job_type[from_a_view]["fields"]["module"] == __name__
    assert f"import {__name__} in the jobs.py" in by_job_type[from_a_view]["fields"]["hint"]
    assert "app.add" not in by_job_type


def test_a_worker_without_job_types_logs_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, settings: object
) -> None:
    monkeypatch.setattr(registry, "_job_types", {})
    monkeypatch.setattr(registry, "_by_chance", set())
    with heard(worker_event) as events:
        warn_of_job_types()
    ((sender, hint),) = [(event["sender"], event["fields"]["hint"]) for event in events]
    assert sender == "no_job_types"
    assert hint == "no handler is declared in jobs.py of: testproject.demo, tests.app"
    monkeypatch.setattr("django.apps.apps.app_configs", {})
    with heard(worker_event) as events:
        warn_of_job_types()
    assert "no app in INSTALLED_APPS has a jobs.py" in events[0]["fields"]["hint"]


def test_a_change_of_a_loaded_module_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop_jobs.py"
    path.write_text("")
    module = ModuleType("shop_jobs")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "shop_jobs", module)
    watch = code_watch()
    os.utime(path, (time.time() - 60,) * 2)
    with heard(worker_event) as events:
        watch.run_once()
        assert events == []
        os.utime(path, (time.time() + 60,) * 2)
        watch.run_once()
        watch.run_once()
    (event,) = events
    assert (event["sender"], event["level"]) == ("code_changed", logging.WARNING)
    assert event["fields"]["files"].endswith("shop_jobs.py")


@pytest.mark.django_db
def test_a_type_that_no_worker_knows_is_named_once() -> None:
    register_worker(job_types={"app.noop": 1})
    jobs.noop.enqueue()
    run_sql("UPDATE django_jobs_job SET job_type = 'app.nop'")
    watch = unknown_types()
    with heard(worker_event) as events:
        assert [watch.run_once() for _ in range(2)] == [0, 0]
    (event,) = events
    assert (event["sender"], event["level"]) == ("unknown_job_type", logging.WARNING)
    assert event["fields"] == {
        "job_type": "app.nop",
        "jobs": 1,
        "hint": "did you mean 'app.noop'?",
    }


def test_installed_packages_are_not_watched() -> None:
    files = set(project_files())
    assert __file__ in files
    assert os.__file__ not in files
    assert pytest.__file__ not in files
