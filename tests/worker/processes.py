"""Start real ``jobworker`` processes on the test's database, and wait on conditions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from django.db import connection

from django_jobs.models import Job

PROJECT = Path(__file__).resolve().parents[2]


class JobWorker:
    """A ``jobworker`` in a session of its own, so that its whole group can be signalled."""

    def __init__(self, *arguments: str, log: Path, **environment: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "jobworker", "--skip-checks", *arguments],
                cwd=PROJECT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
                    "PYTHONWARNINGS": "error",
                    **environment,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self.process.pid

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Signal the supervisor."""
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Signal the supervisor and all of its children."""
        os.killpg(self.pid, number)

    def wait(self, timeout: float = 15) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"jobworker did not exit within {timeout} s:\n{self.text()}"
            ) from None

    def end(self) -> None:
        """Kill whatever is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(5)

    def children(self) -> list[psutil.Process]:
        """The processes of the tree, without the supervisor."""
        return psutil.Process(self.pid).children(recursive=True)


def until(condition: Callable[[], Any], timeout: float = 15, what: str = "") -> Any:
    """Wait for ``condition`` to be true; returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(0.01)


def lines(path: Path) -> list[list[str]]:
    """One line for each time the handler that marks ``path`` began: process id and time."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until_marked(path: Path, times: int = 1, timeout: float = 15) -> int:
    """Wait until the handler began ``times`` times; the process id of the last one."""
    until(lambda: len(lines(path)) >= times, timeout, f"{path.name} marked {times} times")
    return int(lines(path)[-1][0])


def until_status(job: Job | int, status: str, timeout: float = 15) -> Job:
    """Wait until the job has that status."""
    pk = job if isinstance(job, int) else job.pk
    until(
        lambda: Job.objects.filter(pk=pk, status=status).exists(), timeout, f"job {pk} is {status}"
    )
    return Job.objects.get(pk=pk)


def let_go(path: Path) -> None:
    """Let the handler that waits on ``path`` go on."""
    Path(f"{path}.go").touch()
