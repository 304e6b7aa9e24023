"""What becomes of a job that waits in its process for a thread."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connection, connections, transaction

from django_jobs import cancel, enqueue_many
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.models import Job, Run
from django_jobs.signals import attempt_failed
from django_jobs.worker.context.attempt import Attempt
from django_jobs.worker.handlers.connections import HandlerConnections
from django_jobs.worker.meters import ThreadClock
from django_jobs.worker.pools.pool import PREFETCH_SECONDS
from django_jobs.worker.process import settler
from django_jobs.worker.process.worker_process import WorkerProcess
from django_jobs.worker.timeouts.limits import never
from tests.app.jobs import noop
from tests.factories import claim_ready, declared, run_sql
from tests.patience import PATIENCE
from tests.worker.processes import until, until_status

SLEEPS = """
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%%sleep(3600)'
"""


@pytest.fixture
def process(make_process: Callable[..., WorkerProcess]) -> Iterator[WorkerProcess]:
    """A worker process of whose threads only the settler was started."""
    made = make_process()
    made._settler.thread.start()
    yield made
    made._settler.finish()
    made._settler.thread.join(PATIENCE)
    assert not made._settler.thread.is_alive()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """In place of an executor's thread."""
    with ThreadPoolExecutor(1) as made:
        yield made
        made.submit(connections.close_all).result()


def hold(process: WorkerProcess) -> ClaimedJob:
    """A job that was claimed a while ago, and that a thread has just taken."""
    noop.enqueue()
    held = claim_ready(process._slot.worker)
    process._claimed.add(held)
    process._claimed.lines[0].add(held)
    (held,) = process._claimed.take_unstarted()
    return held._replace(taken_at=held.taken_at - 1.0)


def has_connected() -> bool:
    """Whether the calling thread has a session."""
    return connection.connection is not None


def enforced(process: WorkerProcess, looking: Future[None]) -> None:
    """Bound statements until the look is over, as the main thread of a worker process does."""

    def is_over() -> bool:
        process._settler.deadline.enforce()
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


def test_a_look_for_cancels_without_an_answer_ends_with_the_lease(
    process: WorkerProcess, thread: ThreadPoolExecutor
) -> None:
    held = hold(process)
    process._settler.deadline._seconds = 0.1
    with transaction.atomic():
        run_sql("LOCK TABLE django_jobs_job IN ACCESS EXCLUSIVE MODE")
        process._slot.register(held.worker, time.monotonic() + 0.3)
        enforced(process, thread.submit(process._executor._look, held))
    assert not process._slot.may_start(held.worker, time.monotonic())


def test_a_locked_row_of_a_cancelled_job_blocks_no_thread(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler, "LOCKED_SECONDS", 0.05)
    held = hold(process)
    assert cancel(held.id)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held.id])
        process._settler.give_back([held])
        until(lambda: process._settler._unstarted_locked)
        assert held in process._claimed
    until_status(Job.objects.get(pk=held.id), "cancelled")
    until(lambda: not process._claimed)


def test_an_exception_lives_until_its_signals_are_sent(
    process: WorkerProcess, thread: ThreadPoolExecutor
) -> None:
    """It would keep the payload, which frames in its traceback refer to."""
    seen: list[tuple[str, weakref.ref[BaseException]]] = []

    def note(sender: str, exception: BaseException, **fields: object) -> None:
        seen.append((str(exception), weakref.ref(exception)))

    class Broken(Exception):
        """Unlike those of Python, it can be referred to weakly."""

    def broken() -> None:
        raise Broken("of the handler")

    def run() -> None:
        executor, connections = process._executor, HandlerConnections()
        with connections.in_use:
            attempt = Attempt(
                held, process._slot, executor._reporter, stopping=never, draining=never
            )
            executor._run(attempt, executor._pools[0], 1, connections, ThreadClock())

    attempt_failed.connect(note)
    gc.disable()
    try:
        with declared(broken, name="app.broken") as job_type:
            job_type.enqueue()
            (held,) = claim_ready(process._slot.worker)
            process._claimed.add([held])
            thread.submit(run).result()
            until(lambda: seen)
        ((text, exception),) = seen
        assert text == "of the handler"
        until(lambda: exception() is None, what="the exception is freed")
    finally:
        gc.enable()
        attempt_failed.disconnect(note)


def test_jobs_that_wait_half_a_second_are_taken_back(
    process: WorkerProcess,
) -> None:
    """The first to come stay, in their order."""
    enqueue_many("app.noop", [{}] * 12)
    claimed = process._claimed
    held = claim_ready(process._slot.worker)
    claimed.add(held)
    claimed.lines[0].add(held)
    began = time.monotonic()
    process._pools[0].pace.saw(0.25)  # of which four threads begin eight in half a second
    assert process._hoarded() == []
    hoarded = until(process._hoarded)
    assert time.monotonic() - began >= PREFETCH_SECONDS
    assert hoarded == held[8:]
    assert process._hoarded() == []
    assert claimed.take_unstarted() == held[:8]
    process._settler.give_back(hoarded)
    until(lambda: Job.objects.filter(status="ready", attempt=0).count() == 4)
    until(lambda: len(claimed) == 8)


def test_a_draining_process_takes_back_all_waiting_jobs(process: WorkerProcess) -> None:
    held = hold(process)
    process._pools[0].pace.saw(0.001)
    process._claimed.lines[0].put_back([held])
    assert process._hoarded() == []
    process._claimer.drain()
    assert process._hoarded() == [held]
    process._settler.give_back([held])
    until(lambda: not process._claimed)


def test_the_stop_at_the_end_of_a_drain_ends_the_statement_of_a_handler(
    process: WorkerProcess, thread: ThreadPoolExecutor
) -> None:
    """Which would not see the stop before, and go on in the server after its process was killed."""

    def sleep() -> None:
        run_sql("SELECT pg_sleep(3600)")

    def run() -> None:
        executor, connections = process._executor, HandlerConnections()
        pool, own = executor._pools[0], threading.get_ident()
        with connections.in_use:
            attempt = Attempt(
                held, process._slot, executor._reporter, stopping=never, draining=never
            )
            executor._run(attempt, pool, own, connections, ThreadClock())
            pool.running.pop(own)

    with declared(sleep, name="app.sleep") as job_type:
        job = job_type.enqueue()
        (held,) = claim_ready(process._slot.worker)
        process._claimed.add([held])
        running = thread.submit(run)
        until(lambda: run_sql(SLEEPS))
        process._executor.raise_stop()
        running.result(PATIENCE)
        assert until_status(job, "ready").attempt == 1
    assert Run.objects.get().outcome == "released"
