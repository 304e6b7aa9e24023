"""A worker answers each question about its own attempts, and no other one."""

from __future__ import annotations

import threading
import time

import pytest

from django_jobs.lifecycle.operations import inspections
from django_jobs.lifecycle.settling import NO_RESULT, Ending
from django_jobs.models import Inspection, Job
from django_jobs.signals import worker_event
from django_jobs.worker.context.attempt import Attempt
from django_jobs.worker.process import worker_process
from django_jobs.worker.process.worker_process import WorkerProcess
from django_jobs.worker.statement_timeout import StatementTimeout
from tests.app.jobs import noop
from tests.factories import claim_ready, heard, open_elsewhere, run_sql
from tests.worker.processes import until

from .test_executor import process as process


@pytest.fixture
def attempts(process: WorkerProcess) -> list[Attempt]:
    """Two attempts of the process, the first of which is in the calling thread."""
    noop.enqueue_many([{}] * 2)
    begun = []
    for place, job in enumerate(claim_ready(process._slot.worker)):
        attempt = process._executor.admitted(job, time.monotonic())
        assert attempt is not None
        attempt.begin()
        process._pools[0].running[threading.get_ident() if place == 0 else place] = attempt
        begun.append(attempt)
    return begun


def answers(process: WorkerProcess, attempts: list[Attempt]) -> list[Inspection]:
    """The questions about these attempts, after a look."""
    inspections.ask([attempt.job.id for attempt in attempts])
    process._inspector._answer_all()
    return list(Inspection.objects.order_by("id"))


def test_a_stack_is_dropped_if_its_thread_has_begun_the_next_job(
    process: WorkerProcess, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = attempts
    (answer,) = answers(process, [first])
    assert "test_a_stack_is_dropped" in answer.stack
    read, running = worker_process.stack_of_thread, process._pools[0].running

    def read_late(thread_id: int) -> str:
        running[thread_id] = second
        return read(thread_id)

    monkeypatch.setattr(worker_process, "stack_of_thread", read_late)
    _, answer = answers(process, [first])
    assert (answer.stack, answer.thread) == (worker_process.NOT_IN_HANDLER, "")


def test_names_that_the_database_cannot_store_are_escaped(
    process: WorkerProcess, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.current_thread(), "name", "a\0name\ud800")
    (answer,) = answers(process, attempts[:1])
    assert (answer.thread, bool(answer.stack)) == ("a\\x00name\\xd800", True)


def test_an_answer_that_is_refused_is_logged_and_stops_no_other_one(
    process: WorkerProcess, attempts: list[Attempt]
) -> None:
    refused = attempts[0].job
    run_sql(
        "ALTER TABLE django_jobs_inspection ADD CONSTRAINT refusal"
        f" CHECK (job_id <> {refused.id} OR answered_at IS NULL)"
    )
    try:
        with heard(worker_event) as events:
            first, second = answers(process, attempts)
    finally:
        run_sql("ALTER TABLE django_jobs_inspection DROP CONSTRAINT refusal")
    assert (first.answered_at, bool(second.answered_at)) == (None, True)
    (event,) = (one for one in events if one["sender"] == "inspection_failed")
    assert (event["fields"]["job_id"], event["fields"]["attempt"]) == (refused.id, 1)
    assert "refusal" in event["fields"]["error"]


def test_an_answer_that_waits_for_a_lock_holds_up_no_ending(
    process: WorkerProcess, attempts: list[Attempt]
) -> None:
    settler, (first, *_) = process._settler, attempts
    inspections.ask([first.job.id])
    process._slot.ask_inspection()
    settler.deadline = StatementTimeout(0.3)

    def succeeded() -> bool:
        settler.deadline.enforce()  # as the main thread of a worker does
        return Job.objects.filter(status="succeeded").exists()

    with open_elsewhere("SELECT 1 FROM django_jobs_inspection FOR UPDATE"):
        process._inspector.look()
        settler.add(Ending(first.job, NO_RESULT, started=first.started), first.entry)
        until(succeeded)
