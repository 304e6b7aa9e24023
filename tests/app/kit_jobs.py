"""Handlers that the tests of the testing kit run in their own process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction

from django_jobs import Backoff, Concurrency, current_run, job

from .fan_out_jobs import numbered, numbers, total
from .long_jobs import this_run
from .models import Effect

calls: dict[str, Callable[..., Any]] = {}
"""What handlers call outside, by name. A test puts it there and takes it away."""


@job(max_attempts=3, backoff=Backoff.fixed(60))
def effect_and_call(note: str, call: str) -> Any:
    """One row, and what the test wants."""
    Effect.objects.create(note=note)
    return calls[call]()


@job(max_attempts=3, backoff=Backoff.fixed(60))
def call_once(call: str) -> Any:
    """A call outside that is made once, and another one that may be repeated."""
    answer = this_run().once("call", calls[call])
    Effect.objects.create(note=str(answer))
    return answer


@job(max_attempts=3, backoff=Backoff.fixed(60))
def call_once_for_all_jobs(call: str) -> Any:
    """A call outside that is made once by all jobs."""
    answer = this_run().once("order-7", calls[call], scope="effect")
    Effect.objects.create(note=str(answer))
    return answer


@job
def call_once_in_transaction(call: str) -> Any:
    """Its transaction is rolled back, the answer stays."""
    with transaction.atomic():
        Effect.objects.create(note="in vain")
        answer = this_run().once("call", calls[call])
        if this_run().attempt == 1:
            raise ValueError("after the call")
    return answer


@job
def effect_after_commit(note: str) -> None:
    """One row by the transaction, and one by what comes after its commit."""
    with transaction.atomic():
        transaction.on_commit(lambda: Effect.objects.create(note=f"after {note}") and None)
        assert not Effect.objects.filter(note=f"after {note}").exists()
        Effect.objects.create(note=note)
    assert Effect.objects.filter(note=f"after {note}").exists()


@job
def break_a_constraint() -> int:
    """A statement that fails leaves the others as they are."""
    Effect.objects.create(note="before")
    try:
        Effect.objects.create(note="x" * 300)
    except Exception:
        Effect.objects.create(note="after")
    connection.close()
    return Effect.objects.count()


@job(delivery="exactly_once")
def once_and_for_all(note: str, fails: bool = False) -> str:
    """One row in the transaction of the settle."""
    Effect.objects.create(note=note)
    if fails:
        raise ValueError("as asked")
    return note


@job(timeout=0.2, max_attempts=1)
def too_slow_here() -> None:
    """Python code, which a time-out interrupts."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        time.sleep(0.01)


@job(timeout=30)
async def effect_in_async(note: str) -> list[Any]:
    """What an async handler can do."""
    await Effect.objects.acreate(note=note)
    run = this_run()
    run.progress(0.5, "half")
    answer = await run.aonce("call", _answer)
    await run.asleep("nap", 3600)
    data = await run.await_for("go")
    return [answer, data, await Effect.objects.acount()]


@job(timeout=0.2, max_attempts=1)
async def too_slow_in_async() -> None:
    """Is cancelled."""
    await asyncio.sleep(30)


@job
def report_progress() -> None:
    """Reports, and saves where it is."""
    run = this_run()
    run.progress(0.25, "a quarter")
    run.checkpoint({"page": (run.saved_checkpoint or {"page": 0})["page"] + 1})
    if run.attempt == 1:
        raise ValueError("halfway")


@job(concurrency=Concurrency("account:{account}", limit=1))
def one_at_a_time(account: str) -> None:
    """Waits at a gate."""


@job
def enqueue_others(count: int) -> None:
    """Makes jobs."""
    for number in range(count):
        effect_after_commit.enqueue(f"other {number}")


@job
def fan_out(count: int) -> None:
    """Spawns children, and what adds them up."""
    this_run().spawn(numbered, numbers(count), then=total)


@job
def enqueue_itself() -> None:
    """Never ends."""
    enqueue_itself.enqueue()


@job
def is_in_no_transaction() -> bool:
    """What a handler finds."""
    run = current_run()
    return run is not None and not connection.in_atomic_block and connection.get_autocommit()


async def _answer() -> str:
    return "yes"


@job(delivery="at_most_once")
def at_most_once(note: str) -> None:
    """One row."""
    Effect.objects.create(note=note)


@job
def clean_up() -> None:
    """What a dead process cannot do."""
    try:
        Effect.objects.create(note="work")
    finally:
        Effect.objects.create(note="cleaned up")


@job
async def async_effect(note: str) -> None:
    """One row, and a call."""
    run = this_run()
    await Effect.objects.acreate(note=note)
    await run.aonce("call", _answer)


@job
def enqueue_elsewhere(note: str) -> None:
    """A job of another queue, and one of the handler's own."""
    write_note.using(queue="bulk").enqueue(note)


@job
def write_note(note: str) -> None:
    """One row."""
    Effect.objects.create(note=note)
