"""The signals of the processes of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app import jobs

from .processes import JobWorker, until, until_status

pytestmark = pytest.mark.processes

CONNECT = """
import os
from django.db import connection
from django_jobs import signals

def tell(name):
    def receive(sender, pid, **_):
        connection.ensure_connection()
        assert pid == os.getpid()
        with open({path!r}, "a") as file:
            file.write(f"{{name}} {{sender}}\\n")
    return receive

for name in ("process_started", "process_ended"):
    getattr(signals, name).connect(tell(name), weak=False)
"""


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told"


@pytest.fixture
def worker(
    transactional_db: None, told: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[JobWorker]:
    before = CONNECT.format(path=str(told))
    worker = JobWorker(*request.param, log=tmp_path / "log", before=before)
    yield worker
    worker.end()
    print(worker.text())


def lines(told: Path) -> list[str]:
    return told.read_text().splitlines() if told.exists() else []


@pytest.mark.parametrize(
    "worker", [("--prefork", "1"), ("--threads", "2"), ("--no-fork",)], indirect=True
)
def test_a_process_tells_its_start_and_its_end(worker: JobWorker, told: Path) -> None:
    until(lambda: len(lines(told)) == 2)
    assert worker.drain() == 0
    assert lines(told) == [
        *("process_started jobworker", "process_started worker"),
        *("process_ended worker", "process_ended jobworker"),
    ]


@pytest.mark.parametrize("worker", [("--prefork", "1")], indirect=True)
def test_the_process_of_one_attempt_does_too(worker: JobWorker, told: Path) -> None:
    until_status(jobs.alone.enqueue(), "succeeded")
    until(lambda: len(lines(told)) == 4)
    assert lines(told)[2:] == ["process_started isolated", "process_ended isolated"]
