"""A job that runs alone in a child process, seen from inside the child."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_jobs.models import Job, Run
from django_jobs.worker import isolation
from django_jobs.worker.board import Board
from django_jobs.worker.timekeeper import Timekeeper
from tests.app import long_jobs
from tests.app.jobs import noop
from tests.factories import boot_worker, claim_ready, declared, run_sql

from .processes import JobWorker, until_marked

Start = Callable[..., JobWorker]


class Silent:
    """A link on which nothing is ever heard."""

    def receive(self, timeout: float) -> None:
        """Nothing."""


def terminate_own_connection() -> None:
    """Have the server end the connection that the job will be settled on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(_terminate, pid).result()


def _terminate(pid: int) -> None:
    try:
        run_sql("SELECT pg_terminate_backend(%s)", [pid])
    finally:
        connection.close()


@pytest.fixture
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the child is a thread, which none reach."""
    monkeypatch.setattr(isolation, "Alarm", lambda stopping: Timekeeper())


def run_alone(*arguments: Any) -> None:
    """As the child does, on a connection of its own."""
    try:
        isolation._run(*arguments)
    finally:
        connection.close()


@pytest.mark.usefixtures("no_signals")
@pytest.mark.django_db(transaction=True)
def test_a_job_is_settled_also_when_the_database_fails_and_no_beat_has_come_for_long() -> None:
    """It was given up, and then given back as a job that had never begun: it ran twice in one
    attempt. The chaos test found it."""
    with declared(terminate_own_connection) as job_type:
        job = job_type.enqueue()
        worker = boot_worker()
        claim_ready(worker, job_types={job_type.name: 1})
        slot = Board(1).slots[0]
        slot.register(worker, time.monotonic() - 1.0)
        index = slot.start(job.pk, 1, worker, 0.0, True)
        with ThreadPoolExecutor(1) as child:
            child.submit(run_alone, Silent(), slot, worker, job.pk, index).result()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert Run.objects.get().outcome == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_not_the_worker_s_any_more_is_not_begun() -> None:
    job = noop.enqueue()
    worker = boot_worker()
    slot = Board(1).slots[0]
    slot.register(worker, time.monotonic() + 60.0)
    with ThreadPoolExecutor(1) as child:
        child.submit(run_alone, Silent(), slot, worker, job.pk, 0).result()
    assert Job.objects.get(pk=job.pk).status == "ready"
    assert not Run.objects.exists()


@pytest.mark.processes
@pytest.mark.parametrize("name", ["nap_alone", "nap_alone_async"])
def test_a_handler_that_runs_alone_is_told_when_the_time_to_drain_is_over_and_cleans_up(
    start_worker: Start, tmp_path: Path, name: str
) -> None:
    job = getattr(long_jobs, name).enqueue(str(tmp_path / "job"))
    first = start_worker("--drain-timeout", "0.2")
    until_marked(tmp_path / "job")
    first.signal(signal.SIGTERM)
    assert first.wait() == 143
    released = Run.objects.get(job=job)
    assert (released.outcome, released.error_message) == ("released", "the worker was told to stop")
    start_worker("--burst").wait()
    assert Job.objects.get(pk=job.pk).result == "cleaned up"


@pytest.mark.processes
@pytest.mark.parametrize("name", ["leave_when_draining", "leave_when_draining_alone"])
def test_a_handler_that_asks_may_leave_as_soon_as_its_worker_drains(
    start_worker: Start, tmp_path: Path, name: str
) -> None:
    job = getattr(long_jobs, name).enqueue(str(tmp_path / "job"))
    first = start_worker("--drain-timeout", "600")
    until_marked(tmp_path / "job")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert Run.objects.get(job=job).outcome == "snoozed"
    start_worker("--burst").wait()
    assert Job.objects.get(pk=job.pk).result == 2
