"""Processes that handlers start: they end with their work, or with the worker's process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection

from django_jobs import JobType
from django_jobs.models import Job, Run
from tests.app import fork_jobs
from tests.app.models import Effect
from tests.worker.processes import (
    PROJECT,
    JobWorker,
    Start,
    is_alive,
    let_go,
    lines,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes

CHILDREN = {"pool": 2, "executor": 2, "program": 1}


class Work:
    """Handlers in a thread and in a process of their own that work in parallel, all at once."""

    def __init__(self, directory: Path, *job_types: JobType[..., Any]) -> None:
        self.jobs: dict[Path, Job] = {}
        self._ways: dict[Path, str] = {}
        for job_type in job_types:
            for way in CHILDREN:
                path = directory / f"{job_type.name}-{way}"
                self.jobs[path] = job_type.enqueue(str(path), way)
                self._ways[path] = way

    def until_started(self, times: int = 1) -> set[int]:
        """The handlers' processes, once all that they start runs."""
        pids = {until_marked(path, times) for path in self.jobs}
        for path, way in self._ways.items():
            until_marked(Path(f"{path}.started"), times * CHILDREN[way])
        return pids

    def started(self) -> list[int]:
        """The processes that the handlers started."""
        return [int(pid) for path in self.jobs for pid, _ in lines(Path(f"{path}.started"))]

    def let_go(self) -> None:
        """Let all of them end."""
        for path in self.jobs:
            let_go(path)

    def until_ended(self, status: str) -> None:
        """Wait until all have ended so."""
        for job in self.jobs.values():
            until_status(job, status)


@pytest.fixture
def start_wide(start_worker: Start) -> Iterator[Start]:
    """Start a worker with a thread for each of the jobs; nothing of it is left in the end."""
    started: list[JobWorker] = []

    def start(*arguments: str) -> JobWorker:
        started.append(start_worker("--threads", "6", *arguments))
        return started[-1]

    yield start
    for worker in started:
        worker.end()
    until(lambda: not sessions(""), what="its connections are gone")


def sessions(state: str) -> int:
    """How many others are connected, in a state that begins so."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state LIKE %s",
            [f"{state}%"],
        )
        return int(cursor.fetchone()[0])


def are_gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and is_alive(psutil.Process(pid)) for pid in pids)


def test_pools_end_as_often_as_a_handler_makes_them(start_worker: Start) -> None:
    made = [fork_jobs.make_pools.enqueue(), fork_jobs.make_pools_alone.enqueue()]
    start_worker()
    for job in made:
        assert until_status(job, "succeeded").result == 15 * 285


def test_a_child_of_a_handler_has_default_signals_and_its_own_connections(
    start_worker: Start,
) -> None:
    made = [fork_jobs.look_from_a_fork.enqueue(), fork_jobs.look_from_a_fork_alone.enqueue()]
    start_worker()
    for job in made:
        assert until_status(job, "succeeded").result == ["True", "False", True, -signal.SIGTERM]
    assert Effect.objects.filter(note="kept").count() == 2


FORK_WITHOUT_DESCRIPTORS = """
import django, os, resource, signal, sys
django.setup()
from django.db import connection
from django_jobs.worker.handlers.forking import start_afresh_in_forks

start_afresh_in_forks()
connection.ensure_connection()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
pid = os.fork()
if pid == 0:
    print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), connection.connection, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_child_forked_without_descriptors_gets_signals(
    transactional_db: None,
) -> None:
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
    }
    forked = subprocess.run(
        [sys.executable, "-c", FORK_WITHOUT_DESCRIPTORS],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Too many open files" in forked.stderr
    assert forked.stdout.split() == ["set()", "None"]


@pytest.mark.parametrize("drains", [False, True])
def test_parallel_work_ends_as_it_should(start_wide: Start, tmp_path: Path, drains: bool) -> None:
    work = Work(tmp_path, fork_jobs.work_in_parallel, fork_jobs.work_in_parallel_alone)
    worker = start_wide("--drain-timeout", "600")
    work.until_started()
    if drains:
        worker.signal(signal.SIGTERM)
        until(lambda: "event=draining" in worker.text())
    work.let_go()
    work.until_ended("succeeded")
    assert are_gone(work.started())
    assert Effect.objects.filter(note="parent").count() == 6
    assert Effect.objects.filter(note="child").count() == 8
    if drains:
        assert worker.wait() == 0


def test_spawned_processes_end_as_they_should(start_worker: Start, path: Path) -> None:
    job = fork_jobs.work_in_parallel.enqueue(str(path), "spawn")
    start_worker()
    let_go(path)
    until_status(job, "succeeded")
    assert len(lines(Path(f"{path}.started"))) == 1


@pytest.mark.parametrize("name", ["work_too_long", "work_too_long_alone"])
def test_parallel_work_that_takes_too_long_leaves_nothing(
    start_wide: Start, tmp_path: Path, name: str
) -> None:
    work = Work(tmp_path, getattr(fork_jobs, name))
    start_wide()
    work.until_ended("dead")
    until(lambda: are_gone(work.started()), what="what the handlers started is gone")
    until(lambda: not sessions("idle in"), what="no transaction is open")
    assert not Effect.objects.filter(note="parent").exists()


def test_parallel_work_that_outlasts_the_drain_leaves_nothing(
    start_wide: Start, tmp_path: Path
) -> None:
    work = Work(tmp_path, fork_jobs.work_in_parallel, fork_jobs.work_in_parallel_alone)
    worker = start_wide("--drain-timeout", "0.2")
    work.until_started()
    assert worker.drain() == 143
    assert not worker.session()
    until(lambda: not sessions(""), what="no connection is left")
    work.until_ended("ready")


def test_parallel_work_of_a_killed_process_leaves_nothing_and_is_done_again(
    start_wide: Start, tmp_path: Path
) -> None:
    work = Work(tmp_path, fork_jobs.work_in_parallel, fork_jobs.work_in_parallel_alone)
    start_wide()
    for pid in work.until_started():
        with contextlib.suppress(ProcessLookupError):  # it went with the process killed before it
            os.kill(pid, signal.SIGKILL)
    first = work.started()
    until(lambda: are_gone(first), what="what the handlers started is gone")
    work.let_go()
    work.until_ended("succeeded")
    for job in work.jobs.values():
        first_run, last_run = Run.objects.filter(job=job).order_by("attempt")
        assert first_run.outcome in ("lost", "released")
        assert last_run.outcome == "succeeded"
    assert Effect.objects.filter(note="parent").count() == 6


def test_a_program_left_by_a_handler_ends_with_its_process(start_worker: Start) -> None:
    left, left_alone = fork_jobs.leave_program.enqueue(), fork_jobs.leave_program_alone.enqueue()
    worker = start_worker()
    program = until_status(left, "succeeded").result
    alone = until_status(left_alone, "succeeded").result
    until(lambda: are_gone([alone]), what="it ends with the attempt")
    assert not are_gone([program])
    assert worker.drain() == 0
    assert are_gone([program])


def test_parallel_work_ends_with_the_supervisor(start_wide: Start, tmp_path: Path) -> None:
    work = Work(tmp_path, fork_jobs.work_in_parallel, fork_jobs.work_in_parallel_alone)
    worker = start_wide()
    work.until_started()
    worker.signal(signal.SIGKILL)
    until(lambda: not worker.session(), what="its processes are gone")
    until(lambda: not sessions(""), what="its connections are gone")
