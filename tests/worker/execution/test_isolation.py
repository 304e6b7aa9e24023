"""A job that runs alone in a child process, seen from inside the child."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from django.db import connection, transaction

from django_jobs.api import JobType
from django_jobs.models import Job, Run
from django_jobs.signals import worker_event
from django_jobs.worker import connections
from django_jobs.worker.connections import note_shortage
from django_jobs.worker.execution import isolation
from django_jobs.worker.execution.event_loop import HandlerLoop
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.timeouts.limits import ThreadTimeouts
from tests.app import long_jobs
from tests.app.jobs import noop
from tests.app.models import Effect
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    heard,
    register_worker,
    run_sql,
)
from tests.worker.attempts import Desk
from tests.worker.processes import (
    Start,
    in_case,
    is_alive,
    outcomes,
    until,
    until_marked,
    until_status,
)

STOPPED_REASON = "the worker was asked to stop"


class Silent:
    """A pipe on which nothing ever arrives."""

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
    monkeypatch.setattr(isolation, "SignalTimeouts", lambda stopping, on_each: ThreadTimeouts())


def run_alone(*arguments: Any) -> None:
    """As the child does, on a connection of its own."""
    try:
        isolation._run(*arguments)
    finally:
        connection.close()


def write_through_a_shortage() -> None:
    """Another thread of the child finds no connection left while this one is in a transaction."""
    with transaction.atomic():
        Effect.objects.create(note="before")
        with ThreadPoolExecutor(1) as background:
            background.submit(note_shortage).result()
        Effect.objects.create(note="after")


def test_a_shortage_of_connections_lasts_until_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_short_until", 0.0)
    before = time.monotonic()
    note_shortage()
    assert connections._short_until > before + connections.LONGEST_PAUSE


@pytest.mark.usefixtures("no_signals")
@pytest.mark.django_db(transaction=True)
def test_a_shortage_of_connections_does_not_close_the_handler_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_short_until", 0.0)
    with declared(write_through_a_shortage) as job_type:
        job = job_type.enqueue()
        worker = register_worker()
        claim_ready(worker, job_types={job_type.name: 1})
        slot = Scoreboard(1).slots[0]
        slot.register(worker, time.monotonic() + 60.0)
        entry = slot.start(job.pk, 1, worker, 0.0, True)
        with ThreadPoolExecutor(1) as child:
            child.submit(run_alone, Silent(), slot, worker, job.pk, entry.index).result()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert set(Effect.objects.values_list("note", flat=True)) == {"before", "after"}


@pytest.mark.usefixtures("no_signals")
@pytest.mark.django_db(transaction=True)
def test_a_job_is_settled_after_a_database_error_and_a_late_heartbeat() -> None:
    """It was given up, and then given back as a job that had never begun: it ran twice in one
    attempt. The chaos test found it."""
    with declared(terminate_own_connection) as job_type:
        job = job_type.enqueue()
        worker = register_worker()
        claim_ready(worker, job_types={job_type.name: 1})
        slot = Scoreboard(1).slots[0]
        slot.register(worker, time.monotonic() - 1.0)
        entry = slot.start(job.pk, 1, worker, 0.0, True)
        with ThreadPoolExecutor(1) as child:
            child.submit(run_alone, Silent(), slot, worker, job.pk, entry.index).result()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert Run.objects.get().outcome == "succeeded"


def leave_a_role() -> None:
    """A role without rights on the tables of jobs."""
    run_sql("SET ROLE pg_monitor")


@pytest.mark.usefixtures("no_signals")
@pytest.mark.django_db(transaction=True)
def test_a_job_is_settled_without_the_role_that_its_handler_left() -> None:
    with declared(leave_a_role) as job_type, heard(worker_event) as events:
        job = job_type.enqueue()
        worker = register_worker()
        claim_ready(worker, job_types={job_type.name: 1})
        slot = Scoreboard(1).slots[0]
        slot.register(worker, time.monotonic() + 60.0)
        entry = slot.start(job.pk, 1, worker, 0.0, True)
        with ThreadPoolExecutor(1) as child:
            child.submit(run_alone, Silent(), slot, worker, job.pk, entry.index).result()
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert "database_error" not in {one["sender"] for one in events}


@pytest.mark.django_db(transaction=True)
def test_a_job_that_its_worker_lost_is_not_started() -> None:
    job = noop.enqueue()
    worker = register_worker()
    slot = Scoreboard(1).slots[0]
    slot.register(worker, time.monotonic() + 60.0)
    with ThreadPoolExecutor(1) as child:
        child.submit(run_alone, Silent(), slot, worker, job.pk, 0).result()
    assert Job.objects.get(pk=job.pk).status == "ready"
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_a_look_that_finds_no_thread_left_harms_no_handler_and_is_made_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = desk.begin(enqueue_and_claim())
    inspector, started = isolation.Inspector(attempt, HandlerLoop()), []
    attempt.slot.ask_inspection()
    with monkeypatch.context() as patched:
        patched.setattr(isolation, "start_new_thread", no_thread)
        inspector.look()
    monkeypatch.setattr(isolation, "start_new_thread", lambda *call: started.append(call))
    for _ in range(2):
        inspector.look()
    assert len(started) == 1


def no_thread(*call: Any) -> None:
    """As at a limit on threads."""
    raise RuntimeError("can't start new thread")


def stopped(start_worker: Start, job_type: JobType[..., Any], path: Path) -> Run:
    """The run of a job whose worker had no more time to drain."""
    job = job_type.enqueue(str(path))
    worker = start_worker("--drain-timeout", "0.2")
    until_marked(path)
    assert worker.drain() == 143
    run = Run.objects.get(job=job)
    assert run.outcome == "released"
    return run


def in_the_best_of_three(once: Callable[[], bool]) -> bool:
    """A handler has half a second to clean up, and a machine of CI may stand still for longer."""
    return any(once() for _ in range(3))


@pytest.mark.processes
@pytest.mark.parametrize("job_type", [long_jobs.nap_alone, long_jobs.nap_alone_async])
def test_an_isolated_handler_gets_a_stop_after_the_drain_timeout(
    start_worker: Start, tmp_path: Path, job_type: JobType[..., Any]
) -> None:
    def once() -> bool:
        run = stopped(start_worker, job_type, tmp_path / uuid4().hex)
        start_worker("--burst").wait()
        done = Job.objects.get(pk=run.job_id)
        return run.error_message == STOPPED_REASON and done.result == "cleaned up"

    assert in_the_best_of_three(once)


@pytest.mark.processes
def test_a_handler_is_stopped_even_while_it_calls_should_stop(
    start_worker: Start, tmp_path: Path
) -> None:
    def once() -> bool:
        path = tmp_path / uuid4().hex
        run = stopped(start_worker, long_jobs.ask_all_the_time, path)
        Job.objects.all().delete()
        return run.error_message == STOPPED_REASON and Path(f"{path}.cleaned").exists()

    assert in_the_best_of_three(once)


@pytest.mark.processes
def test_programs_of_a_stopped_handler_end_with_it(start_worker: Start, tmp_path: Path) -> None:
    stopped(start_worker, long_jobs.start_program, tmp_path / "job")
    program = int((tmp_path / "job.program").read_text())

    def is_gone() -> bool:
        try:
            return not is_alive(psutil.Process(program))
        except psutil.NoSuchProcess:
            return True

    until(is_gone)


LEAVE = ("leave_when_draining", "leave_when_draining_alone")


@pytest.mark.processes
def test_a_handler_that_calls_draining_may_leave_at_once(
    start_worker: Start, tmp_path: Path
) -> None:
    left = {name: getattr(long_jobs, name).enqueue(str(tmp_path / name)) for name in LEAVE}
    first = start_worker("--drain-timeout", "600")
    for name in LEAVE:
        until_marked(tmp_path / name)
    assert first.drain() == 0
    for name, job in left.items():
        assert Run.objects.get(job=job).outcome == "snoozed", name
    start_worker("--burst").wait()
    for name, job in left.items():
        assert Job.objects.get(pk=job.pk).result == 2, name


def test_draining_is_true_once_a_worker_is_to_be_replaced(
    start_worker: Start, tmp_path: Path
) -> None:
    left = {name: getattr(long_jobs, name).enqueue(str(tmp_path / name)) for name in LEAVE}
    start_worker("--max-rss", "1")
    for name, job in left.items():
        with in_case(name):
            assert until_status(job, "succeeded").result == 2
            assert outcomes(job) == ["snoozed", "succeeded"]
