"""A worker that starts again with the code, alone and beside the development server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from django.db import connection

from django_jobs import JobType, job, registry
from django_jobs.management.worker.reloading import LOOK_SECONDS, same_command
from django_jobs.models import Job, Worker
from tests.app import jobs
from tests.patience import PATIENCE
from tests.worker.processes import (
    PROJECT,
    is_alive,
    let_go,
    until,
    until_marked,
    until_status,
)

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

SETTINGS = """
from tests.settings import *

DEBUG = True
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [*INSTALLED_APPS, "shop"]
DJANGO_JOBS = {**DJANGO_JOBS, "RUNSERVER": True}
"""
MANAGE = """
import sys
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
JOBS = """
from django_jobs import job

@job(name="shop.version")
def version() -> int:
    return {version}
"""


class Site:
    """A project whose one handler returns the version of its code."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "shop").mkdir()
        for name, text in (
            ("manage.py", MANAGE),
            ("site_settings.py", SETTINGS),
            ("shop/__init__.py", ""),
        ):
            (directory / name).write_text(text)
        self.started: list[subprocess.Popen[bytes]] = []

    def write(self, version: int | str) -> None:
        (self.directory / "shop" / "jobs.py").write_text(JOBS.format(version=version))

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *command],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **inherited,
                    "DJANGO_SETTINGS_MODULE": "site_settings",
                    "PYTHONPATH": f"{self.directory}{os.pathsep}{PROJECT}",
                    "PYTHONDONTWRITEBYTECODE": "1",  # or a change within a second is not seen
                    "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
                },
            )
        self.started.append(process)
        return process

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def processes(self) -> list[psutil.Process]:
        """All that run in its directory, also those whose parent is gone."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(self.directory) and is_alive(process):
                    found.append(process)
        return found

    def runs(self, word: str) -> bool:
        """Whether one of these has the word in its command. One that has just ended has none."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if word in process.cmdline():
                    return True
        return False

    def end(self) -> None:
        def kill() -> bool:
            left = self.processes()
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return not left

        until(kill)
        for process in self.started:
            process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.write(1)
    yield made
    made.end()
    print(made.log)


@pytest.fixture
def version() -> Iterator[Callable[[], Job]]:
    @job(name="shop.version")
    def version() -> int:
        raise NotImplementedError

    declared: JobType[[], int] = version
    yield lambda: until_status(declared.enqueue(), "succeeded")
    registry.unregister("shop.version")


def test_a_worker_runs_the_new_code_and_waits_out_a_mistake(
    site: Site, version: Callable[[], Job]
) -> None:
    process = site.start("jobworker", "--reload")
    assert version().result == 1
    site.write("1 +")
    until(lambda: "It starts at the next change" in site.log)
    site.write(2)
    assert version().result == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not site.processes()
    named = re.findall(r"Changed: (.+)\. Starting again", site.log)
    assert named
    assert all(one.count(".py") == 1 for one in named)


def test_a_stop_waits_for_the_jobs_that_run(site: Site, tmp_path: Path) -> None:
    """The worker gets one signal. A second one would stop its handlers."""
    path = tmp_path / "held"
    held = jobs.hold.enqueue(str(path))
    process = site.start("jobworker", "--reload", "--drain-timeout", "600")
    until_marked(path)
    process.send_signal(signal.SIGTERM)
    until(lambda: Worker.objects.get().status == "draining")
    passed = time.monotonic() + 2 * LOOK_SECONDS  # by then a second signal would have come
    until(lambda: time.monotonic() > passed)
    let_go(path)
    assert process.wait(PATIENCE) == 0
    held.refresh_from_db()
    assert (held.status, held.attempt) == ("succeeded", 1)


def test_a_worker_that_has_nothing_more_to_do_is_not_started_again(site: Site) -> None:
    process = site.start("jobworker", "--reload", "--burst")
    assert process.wait(PATIENCE) == 0


def test_the_development_server_runs_a_worker_and_takes_it_along(
    site: Site, version: Callable[[], Job]
) -> None:
    server = site.start("runserver", "127.0.0.1:0")
    assert version().result == 1
    site.write(2)
    until(lambda: version().result == 2)
    server.kill()
    server.wait()
    until(lambda: not site.runs("jobworker"))


@pytest.mark.parametrize(
    "option",
    ["--reload", "--reloa", "--r", "--reload --parent 1", "--pa 1 --r", "--parent=1 --r"],
)
def test_the_worker_is_started_without_the_option_however_it_is_abbreviated(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Or it would start a worker that starts a worker, and so on."""
    script = str(PROJECT / "testproject" / "manage.py")  # one that is not there is refused
    arguments = [*option.split(), "--queues", "default"]
    monkeypatch.setattr("sys.argv", [script, "jobworker", *arguments])
    assert same_command()[-3:] == ["jobworker", "--queues", "default"]
