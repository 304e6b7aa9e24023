"""An async handler that is stopped from outside, and what it may do about it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from django_jobs import exceptions
from django_jobs.api.job_type import JobType
from django_jobs.domain.outcomes import FORCED, Cancelled, TimedOut
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.worker.connections import nothing
from django_jobs.worker.context.attempt import AROUND_SECONDS, Attempt
from django_jobs.worker.context.progress import Reporter
from django_jobs.worker.execution import handler_call
from django_jobs.worker.execution.event_loop import HandlerLoop
from django_jobs.worker.execution.interruption import bound, limit_of
from django_jobs.worker.ipc.scoreboard import Scoreboard, WorkerSlot
from django_jobs.worker.timeouts.limits import Interrupted, ThreadTimeouts, never
from tests.factories import declared
from tests.patience import PATIENCE
from tests.worker.processes import until

CANCELLED = Cancelled(reason="cancelled while running")


async def wait() -> None:
    await asyncio.sleep(600)


async def swallow() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    return "went on"


def spin(seconds: float) -> None:
    """Python code for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def fail_instead() -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        raise ValueError("something else") from None


def plain() -> None:
    """Nothing."""


@pytest.fixture
def slot() -> WorkerSlot:
    slot = Scoreboard(1).slots[0]
    slot.register(1, time.monotonic() + 600)
    return slot


def begun(slot: WorkerSlot, job_type: JobType[..., Any], timeout: float | None = None) -> Attempt:
    """An attempt with as much of a job as :func:`bound` looks at, kept in its bounds."""
    fields: dict[str, Any] = dict.fromkeys(ClaimedJob._fields)
    fields |= {"id": 1, "attempt": 1, "worker": 1, "timeout": timeout, "job_type": job_type.name}
    attempt = Attempt(ClaimedJob(**fields), slot, Reporter(), stopping=never, draining=never)
    attempt.begin()
    bound(attempt, timeouts=ThreadTimeouts(), loop=HandlerLoop())
    return attempt


def ended(
    slot: WorkerSlot, handler: Any, *, cancel: bool, force: bool = False, **options: Any
) -> Any:
    """What becomes of an async handler; it is cancelled once it is in hand."""
    with declared(handler, **options) as job_type:
        run_async = begun(slot, job_type).run_async
        assert run_async is not None
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(run_async, handler(), job_type.timeout)
            if cancel:
                slot.ask_cancel(1)
            if force:
                slot.ask_cancel(1, force=True)
            return running.result(PATIENCE)


@pytest.mark.parametrize("handler", [wait, fail_instead])
def test_a_cancel_ends_an_async_handler(slot: WorkerSlot, handler: Any) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=True)
    assert raised.value.outcome == CANCELLED


def test_an_async_handler_that_succeeds_in_spite_of_a_cancel_has_succeeded(
    slot: WorkerSlot,
) -> None:
    assert ended(slot, swallow, cancel=True) == "went on"


@pytest.mark.parametrize("on_cancel, outcome", [("raise", CANCELLED), ("ask", None)])
def test_an_async_handler_that_is_only_asked_is_not_cancelled(
    slot: WorkerSlot, on_cancel: str, outcome: Cancelled | None
) -> None:
    with declared(wait, name="app.waiting", on_cancel=on_cancel) as job_type:
        attempt = begun(slot, job_type)
    attempt.entry.cancel_asked = True
    assert isinstance(attempt.run_async, partial)
    assert attempt.run_async.keywords["asked"]() == outcome
    assert attempt.should_stop()


@pytest.mark.parametrize("on_cancel", ["raise", "ask"])
@pytest.mark.parametrize("handler", [wait, swallow, fail_instead])
def test_an_async_handler_is_stopped_by_force_whatever_it_does(
    slot: WorkerSlot, handler: Any, on_cancel: str
) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=True, force=True, on_cancel=on_cancel)
    assert raised.value.outcome == FORCED


def test_an_async_handler_that_goes_on_after_a_cancel_is_stopped_by_force(
    slot: WorkerSlot,
) -> None:
    async def swallow_once() -> None:
        await swallow_cancel()
        slot.ask_cancel(1, force=True)
        await asyncio.sleep(600)

    async def swallow_cancel() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)

    with pytest.raises(Interrupted) as raised:
        ended(slot, swallow_once, cancel=True)
    assert raised.value.outcome == FORCED


def test_a_storm_of_stops_by_force_hits_no_other_code(slot: WorkerSlot) -> None:
    """An exception that came late would end a thread, or the next call, and be seen."""
    timeouts, running, over = ThreadTimeouts(), dict[int, Attempt](), threading.Event()

    def calls(seed: int) -> Counter[str]:
        chance, counts = random.Random(seed), Counter[str]()
        for _ in range(250):
            attempt = running[threading.get_ident()] = begun(slot, job_type)
            payload = {"seconds": chance.choice([0.0, chance.uniform(0.0, 0.004)])}
            try:
                handler_call._result_of(attempt, job_type, payload)
                counts["returned"] += 1
            except Interrupted as interrupted:
                counts["stopped" if interrupted.outcome == FORCED else "otherwise"] += 1
            except exceptions.Cancelled:  # after the handler had returned, and before the next line
                counts["stopped"] += 1
            del running[threading.get_ident()]
            for number in range(chance.randrange(50)):
                str(number)
        spin(0.01)
        return counts

    def stop() -> None:
        chance = random.Random(0)
        while not over.wait(0.0005):
            for thread, attempt in list(running.items()):
                if chance.random() < 0.3:
                    attempt.entry.forced_at = time.monotonic()
                    attempt.limit = attempt.limit or limit_of(attempt, timeouts)
                    timeouts.look(thread, attempt)

    with declared(spin) as job_type, ThreadPoolExecutor(9) as threads:
        stopping = threads.submit(stop)
        try:
            counts = sum(threads.map(calls, range(8)), Counter[str]())
        finally:
            over.set()
        stopping.result(PATIENCE)
    assert counts.total() == 2_000
    assert counts.keys() == {"returned", "stopped"}


@pytest.mark.parametrize("handler", [wait, swallow, fail_instead])
def test_an_async_handler_that_is_late_has_timed_out(slot: WorkerSlot, handler: Any) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=False, timeout=0.1)
    assert raised.value.outcome == TimedOut(seconds=0.1)


@pytest.mark.parametrize("handler", [wait, swallow, fail_instead])
def test_an_async_handler_that_is_silent_has_timed_out(slot: WorkerSlot, handler: Any) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=False, silence_timeout=0.1)
    assert raised.value.outcome == TimedOut(seconds=0.1, silent=True)


def test_a_plain_handler_has_a_limit_only_if_one_is_declared(slot: WorkerSlot) -> None:
    with declared(plain) as job_type:
        free, timed = begun(slot, job_type), begun(slot, job_type, timeout=5.0)
    with declared(plain, silence_timeout=3) as job_type:
        silent = begun(slot, job_type)
    assert free.limit is None
    assert free.on_progress is timed.on_progress is nothing
    assert timed.limit is not None
    assert silent.limit is not None
    assert silent.on_progress is not nothing


def test_the_time_of_an_async_handler_counts_from_its_call(slot: WorkerSlot) -> None:
    moments = [time.monotonic()]
    with declared(wait, silence_timeout=2) as job_type:
        attempt = begun(slot, job_type, timeout=5)
    moments.append(time.monotonic())
    before = slot.look()[0]
    assert moments[0] <= before.deadline - 5 - AROUND_SECONDS <= moments[1]
    assert before.silence == 0
    slot.watched = False
    attempt.begin_handler()
    in_it = slot.look()[0]
    assert in_it.started > before.started
    moments.append(time.monotonic())
    assert moments[1] <= in_it.deadline - 5 <= moments[2]
    assert in_it.silence == 2
    assert slot.watched
    attempt.end_handler()
    after = slot.look()[0]
    assert moments[2] <= after.deadline - AROUND_SECONDS <= time.monotonic()
    assert after.silence == 0


@pytest.mark.parametrize("limits", [{"timeout": 0.01}, {"silence": 0.01}])
def test_what_a_late_async_handler_leaves_has_no_more_time(
    slot: WorkerSlot, limits: dict[str, float]
) -> None:
    with declared(wait, silence_timeout=limits.get("silence")) as job_type:
        attempt = begun(slot, job_type, timeout=limits.get("timeout"))
    attempt.begin_handler()
    in_it = slot.look()[0]
    until(lambda: time.monotonic() > in_it.started + 0.01)
    attempt.end_handler()
    after = slot.look()[0]
    assert (after.deadline, after.silence) == (in_it.deadline, in_it.silence)
