"""Stacks of threads and tasks: bounded, and without values."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from django_jobs.worker.execution.stacks import (
    MOST_CHARACTERS,
    MOST_FRAMES,
    MOST_TASKS,
    name_of_thread,
    stack_of_tasks,
    stack_of_thread,
)


def descend(depth: int, then: Callable[[], Any]) -> Any:
    return then() if depth == 0 else other(depth - 1, then)


def other(depth: int, then: Callable[[], Any]) -> Any:
    return descend(depth, then)


def test_a_deep_stack_keeps_its_innermost_frames() -> None:
    stack = descend(200, lambda: stack_of_thread(threading.get_ident()))
    assert "outer frames are left out)" in stack
    assert stack.count("  File ") <= MOST_FRAMES
    assert len(stack) <= MOST_CHARACTERS
    assert "in <lambda>" in stack


def test_a_thread_that_has_ended_has_no_stack_and_no_name() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    ident = thread.ident
    assert ident is not None
    assert (stack_of_thread(ident), name_of_thread(ident)) == ("", "")


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event) -> None:
    await middle(event)


async def middle(event: asyncio.Event) -> None:
    await inner(event)


def test_a_suspended_task_is_followed_to_what_it_awaits() -> None:
    async def main() -> str:
        event = asyncio.Event()
        tasks = [asyncio.create_task(outer(event)) for _ in range(MOST_TASKS + 5)]
        await asyncio.sleep(0)
        stack = stack_of_tasks(tasks, asyncio.current_task(), 0)
        event.set()
        await asyncio.gather(*tasks)
        return stack

    stack = asyncio.run(main())
    assert stack.count("task ") == MOST_TASKS
    for name in ("outer", "middle", "inner", "wait"):
        assert f"in {name}" in stack
