"""The event loop of async handlers outlives whatever they do."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import Context, ContextVar
from queue import SimpleQueue
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from django_jobs.domain.outcomes import Outcome, Succeeded, TimedOut
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.signals import worker_event
from django_jobs.worker.context.attempt import StopHandler
from django_jobs.worker.execution import handler_call
from django_jobs.worker.execution.event_loop import HandlerLoop
from django_jobs.worker.timeouts.limits import Interrupted
from tests.app.long_jobs import this_run
from tests.factories import declared, enqueue_and_claim, heard, run_sql
from tests.patience import PATIENCE
from tests.worker.attempts import Desk
from tests.worker.processes import until


class Value:
    """Of a context variable."""


async def answer() -> int:
    return 42


async def leave(code: int) -> None:
    sys.exit(code)


async def leave_in_a_task() -> None:
    await asyncio.gather(leave(4), asyncio.sleep(0.01))


async def leave_behind() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 5)
    await asyncio.sleep(0.01)


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


async def cancel_itself() -> None:
    raise asyncio.CancelledError


def interrupt() -> None:
    raise KeyboardInterrupt


async def interrupted() -> None:
    interrupt()


@pytest.fixture
def loop() -> HandlerLoop:
    return HandlerLoop()


def test_a_handler_that_exits_ends_itself_only(loop: HandlerLoop) -> None:
    with pytest.raises(SystemExit, match="3"):
        loop.run(leave(3), None)
    with pytest.raises(SystemExit, match="4"):
        loop.run(leave_in_a_task(), None)
    with pytest.raises(KeyboardInterrupt):
        loop.run(interrupted(), 60)
    loop.run(leave_behind(), None)
    loop.run(stop_the_loop(), None)
    assert loop.run(answer(), 60) == 42


def test_a_handler_that_cancels_itself_has_failed(loop: HandlerLoop) -> None:
    with pytest.raises(CancelledError):
        loop.run(cancel_itself(), None)


def test_a_handler_that_is_cancelled_at_the_stop_was_stopped(loop: HandlerLoop) -> None:
    begun = threading.Event()

    async def sleep() -> None:
        begun.set()
        await asyncio.sleep(600)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run, sleep(), 300)
        assert begun.wait(PATIENCE)
        loop.stop_all()
        with pytest.raises(StopHandler):
            running.result(PATIENCE)
    with pytest.raises(StopHandler):
        loop.run(answer(), None)


def test_a_call_of_the_worker_itself_is_not_cancelled(loop: HandlerLoop) -> None:
    begun, let_go, cancelled = (threading.Event() for _ in range(3))
    context = loop.new_context()
    answers: SimpleQueue[str] = SimpleQueue()

    def work() -> str:
        begun.set()
        assert let_go.wait(PATIENCE)
        return "an answer"

    async def ask() -> None:
        calls = loop.enter()
        answers.put(await loop.in_thread(calls, context, work))
        calls.close()

    def cancel_all() -> None:
        for task in asyncio.all_tasks(loop.started()):
            task.cancel()
        asyncio.get_running_loop().call_soon(cancelled.set)

    loop.call_soon(lambda: loop.spawn(ask(), (1, "app.asks"), context))
    assert begun.wait(PATIENCE)
    loop.call_soon(cancel_all)
    assert cancelled.wait(PATIENCE)
    let_go.set()
    assert answers.get(timeout=PATIENCE) == "an answer"


def test_a_call_in_a_thread_that_is_not_the_handlers_outlives_it(loop: HandlerLoop) -> None:
    """As docs/async.md says: only the thread of the handler itself is waited for."""
    begun, let_go, ended = (threading.Event() for _ in range(3))

    def block() -> None:
        begun.set()
        let_go.wait(PATIENCE)
        ended.set()

    async def call_elsewhere() -> None:
        await asyncio.to_thread(block)

    try:
        with pytest.raises(Interrupted):
            loop.run(call_elsewhere(), 0.2)
        assert begun.wait(PATIENCE)
        assert not ended.is_set()
    finally:
        let_go.set()
    assert ended.wait(PATIENCE)


def test_the_ticks_of_the_loop_keep_no_context_of_a_handler(loop: HandlerLoop) -> None:
    variable: ContextVar[Value] = ContextVar("variable")
    first, last = threading.Event(), threading.Event()

    async def wait(end: threading.Event, begun: threading.Event) -> None:
        begun.set()
        while not end.is_set():
            await asyncio.sleep(0.01)

    def begin(end: threading.Event) -> weakref.ref[Value]:
        value, begun = Value(), threading.Event()
        context = loop.new_context()
        context.run(variable.set, value)
        task = loop.bounded(wait(end, begun), None)
        loop.call_soon(lambda: loop.spawn(task, (1, "app.waits"), context))
        assert begun.wait(PATIENCE)
        return weakref.ref(value)

    began_the_ticks = begin(first)
    assert began_the_ticks()
    begin(last)
    first.set()
    try:
        until(lambda: gc.collect() >= 0 and began_the_ticks() is None)
    finally:
        last.set()


def test_a_timed_out_async_handler_leaves_its_traceback(loop: HandlerLoop) -> None:
    async def sleep_too_long() -> None:
        await asyncio.sleep(600)

    with pytest.raises(Interrupted) as raised:
        loop.run(sleep_too_long(), 0.05)
    outcome = raised.value.outcome
    assert isinstance(outcome, TimedOut)
    assert "in sleep_too_long" in outcome.traceback


class Ended:
    """Tasks that run until they are cancelled, by name."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.cancelled: set[str] = set()

    async def run(self, name: str, *nested: str) -> None:
        self.begun.add(name)
        tasks = [asyncio.create_task(self.run(one)) for one in nested]
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.add(name)
            raise
        finally:
            del tasks

    async def have_begun(self, *names: str) -> None:
        while not self.begun >= set(names):
            await asyncio.sleep(0.01)


async def returns() -> None:
    pass


async def raises() -> None:
    raise ValueError


async def sleeps() -> None:
    await this_run().asleep("rest", 3600)


async def is_too_late() -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("end", [returns, raises, sleeps, is_too_late])
def test_what_a_handler_started_on_the_loop_ends_with_it(
    desk: Desk, end: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    ended = Ended()
    kept: list[asyncio.Task[None]] = []

    async def handler() -> None:
        kept.append(asyncio.create_task(ended.run("a", "of a")))
        kept.append(asyncio.ensure_future(ended.run("b")))
        kept.append(asyncio.create_task(ended.run("own", "of own"), context=Context()))
        gathered = asyncio.gather(ended.run("c"), ended.run("d"))
        await ended.have_begun("a", "of a", "b", "c", "d", "own", "of own")
        await end()
        del gathered

    options: dict[str, Any] = {"timeout": 0.2} if end is is_too_late else {}
    with heard(worker_event) as events:
        desk.run(handler, **options)
        until(lambda: ended.cancelled == {"a", "of a", "b", "c", "d"})
    (event,) = (one for one in events if one["sender"] == "tasks_cancelled")
    assert (event["fields"]["job_type"], event["fields"]["attempt"]) == ("app.handler", 1)
    assert event["fields"]["tasks"] >= 5
    assert not kept[2].done(), "it belongs to no handler"


def test_tasks_that_have_ended_and_those_of_another_handler_are_left_alone(desk: Desk) -> None:
    ended, loop = Ended(), HandlerLoop()
    may_end = threading.Event()

    async def waits(name: str) -> None:
        task = asyncio.create_task(ended.run(name))
        await asyncio.create_task(answer())
        while not may_end.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    async def ends() -> None:
        await asyncio.create_task(answer())

    def make(held: ClaimedJob) -> None:
        attempt = desk.begin(held)
        attempt.run_async = loop.run
        handler_call.call(attempt)
        desk.reporter.end(attempt, Succeeded())
        connections.close_all()

    with (
        declared(waits, name="app.waits") as other,
        declared(ends, name="app.ends") as job_type,
        heard(worker_event) as events,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(make, enqueue_and_claim(other, "other"))
        try:
            until(lambda: ended.begun == {"other"})
            make(enqueue_and_claim(job_type))
            assert not ended.cancelled
        finally:
            may_end.set()
        waiting.result(PATIENCE)
    assert not [one for one in events if one["sender"] == "tasks_cancelled"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("timeout", [0.2, None], ids=["by its time-out", "by a stop"])
def test_a_handler_that_has_to_end_can_clean_up_in_the_database(
    loop: HandlerLoop, timeout: float | None
) -> None:
    """One statement is cancelled, and none of those with which it cleans up."""
    cleaned: list[object] = []

    async def handler() -> None:
        try:
            await sync_to_async(run_sql)("SELECT pg_sleep(3600)")
        finally:
            cleaned.extend(await sync_to_async(run_sql)("SELECT 'done' FROM pg_sleep(0.6)"))

    def asked() -> Outcome | None:
        return TimedOut(seconds=0.2) if timeout is None else None

    with pytest.raises(Interrupted):
        loop.run(handler(), timeout, asked)
    assert cleaned == [("done",)]
