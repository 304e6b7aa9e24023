"""What an executor's thread does before it begins a job that has waited in its process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe

import pytest
from django.db import connection, connections, transaction

from django_jobs import cancel
from django_jobs.lifecycle.claiming import ClaimedJob
from django_jobs.models import Job
from django_jobs.worker.ipc.pipes import MessagePipe
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options, QueueShare
from django_jobs.worker.process import executor
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.app.jobs import noop
from tests.factories import claim_ready, register_worker, run_sql
from tests.worker.processes import until, until_status


@pytest.fixture
def process(transactional_db: None) -> Iterator[WorkerProcess]:
    """A worker process whose threads were not started, but for that of its errands."""
    pipe, other = (MessagePipe(end) for end in Pipe())
    made = WorkerProcess(
        pipe, Scoreboard(1, 64).slots[0], Options(queues=(QueueShare(name="default"),))
    )
    made._slot.register(register_worker(), time.monotonic() + 60)
    yield made
    made._reporter.background.close()
    for end in (pipe, other):
        end.close()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """In place of an executor's thread."""
    with ThreadPoolExecutor(1) as made:
        yield made
        made.submit(connections.close_all).result()


def hold(process: WorkerProcess) -> ClaimedJob:
    """A job that was claimed a while ago and has not begun."""
    noop.enqueue()
    (held,) = claim_ready(process._slot.worker)
    process._claimed.add([held])
    return held._replace(taken_at=held.taken_at - 1.0)


def has_connected() -> bool:
    """Whether the calling thread has a session."""
    return connection.connection is not None


def enforced(process: WorkerProcess, looking: Future[None]) -> None:
    """Bound statements until the look is over, as the main thread of a worker process does."""

    def is_over() -> bool:
        process._reporter.background.deadline.enforce()
        return looking.done()

    until(is_over)
    looking.result()


def test_a_thread_looks_for_cancels_on_no_connection_of_its_handlers(
    process: WorkerProcess, thread: ThreadPoolExecutor
) -> None:
    held = hold(process)
    assert cancel(held.id)
    thread.submit(process._executor._look, held).result()
    assert process._executor._cancels.asked == {held.id}
    assert not thread.submit(has_connected).result()


def test_a_look_for_cancels_that_nobody_answers_ends_with_the_lease(
    process: WorkerProcess, thread: ThreadPoolExecutor
) -> None:
    held = hold(process)
    process._reporter.background.deadline._seconds = 0.1
    with transaction.atomic():
        run_sql("LOCK TABLE django_jobs_job IN ACCESS EXCLUSIVE MODE")
        process._slot.register(held.worker, time.monotonic() + 0.3)
        enforced(process, thread.submit(process._executor._look, held))
    assert not process._slot.may_start(held.worker, time.monotonic())


def test_a_cancelled_job_whose_row_is_locked_holds_up_no_thread(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "LOCKED_SECONDS", 0.05)
    held = hold(process)
    assert cancel(held.id)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held.id])
        process._reporter.background.submit(lambda: process._executor._return(held)).result(60)
        assert held in process._claimed
    until_status(Job.objects.get(pk=held.id), "cancelled")
    until(lambda: not process._claimed)
