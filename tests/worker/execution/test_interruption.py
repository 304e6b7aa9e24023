"""An async handler that is stopped from outside, and what it may do about it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_jobs.domain.outcomes import Cancelled, TimedOut
from django_jobs.lifecycle.claiming import ClaimedJob
from django_jobs.worker.execution.attempt import unheard
from django_jobs.worker.execution.event_loop import HandlerLoop
from django_jobs.worker.execution.interruption import control
from django_jobs.worker.ipc.scoreboard import Board, Slot
from django_jobs.worker.timeouts.limits import Interrupted
from django_jobs.worker.timeouts.threads import Timekeeper
from tests.factories import declared

CANCELLED = Cancelled(reason="cancelled while running")


async def wait() -> None:
    await asyncio.sleep(600)


async def swallow() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    return "went on"


async def fail_instead() -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        raise ValueError("something else") from None


def plain() -> None:
    """Nothing."""


@pytest.fixture
def slot() -> Slot:
    slot = Board(1).slots[0]
    slot.register(1, time.monotonic() + 600)
    return slot


def held(timeout: float | None = None) -> ClaimedJob:
    """As much of a job as :func:`control` looks at."""
    fields: dict[str, Any] = dict.fromkeys(ClaimedJob._fields)
    return ClaimedJob(**fields | {"id": 1, "timeout": timeout})


def ended(slot: Slot, handler: Any, *, cancel: bool, **options: Any) -> Any:
    """What becomes of an async handler; it is cancelled once it is in hand."""
    with declared(handler, **options) as job_type:
        index = slot.start(1, 1, 1, 0.0, False, job_type.silence_timeout or 0.0)
        loop = HandlerLoop()
        bounds = control(held(), job_type, slot, index, 0.0, clock=Timekeeper(), loop=loop)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(bounds.run_async, handler(), job_type.timeout)
            if cancel:
                slot.ask_cancel(1)
            return running.result(60)


@pytest.mark.parametrize("handler", [wait, fail_instead])
def test_a_cancel_ends_an_async_handler(slot: Slot, handler: Any) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=True)
    assert raised.value.outcome == CANCELLED


def test_an_async_handler_that_succeeds_in_spite_of_a_cancel_has_succeeded(slot: Slot) -> None:
    assert ended(slot, swallow, cancel=True) == "went on"


@pytest.mark.parametrize("handler", [wait, swallow, fail_instead])
def test_an_async_handler_that_is_late_has_timed_out(slot: Slot, handler: Any) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=False, timeout=0.1)
    assert raised.value.outcome == TimedOut(seconds=0.1)


@pytest.mark.parametrize("handler", [wait, swallow, fail_instead])
def test_an_async_handler_that_is_silent_has_timed_out(slot: Slot, handler: Any) -> None:
    with pytest.raises(Interrupted) as raised:
        ended(slot, handler, cancel=False, silence_timeout=0.1)
    assert raised.value.outcome == TimedOut(seconds=0.1, silent=True)


def test_a_plain_handler_has_a_limit_only_where_something_bounds_it(slot: Slot) -> None:
    loop, clock = HandlerLoop(), Timekeeper()
    with declared(plain) as job_type:
        free = control(held(), job_type, slot, 0, 0.0, clock=clock, loop=loop)
        timed = control(held(5.0), job_type, slot, 0, 0.0, clock=clock, loop=loop)
    with declared(plain, silence_timeout=3) as job_type:
        silent = control(held(), job_type, slot, 0, 0.0, clock=clock, loop=loop)
    assert free.limit is None
    assert free.heard is timed.heard is unheard
    assert timed.limit is not None
    assert silent.limit is not None
    assert silent.heard is not unheard
