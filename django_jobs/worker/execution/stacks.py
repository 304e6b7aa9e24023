"""Where a running handler is: lines of code, without the values of any variable."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from itertools import dropwhile
from traceback import StackSummary, walk_stack
from types import FrameType
from typing import Any

from ...domain.errors import clean, cut
from .event_loop import Task

MOST_FRAMES = 60
MOST_TASKS = 10
MOST_CHARACTERS = 16_000

PACKAGE = __name__.partition(".")[0]
AROUND = frozenset({PACKAGE, "threading", "asyncio", "contextvars"})
"""The outermost frames of these modules are left out: they are the same for each handler."""


def stack_of_thread(thread_id: int) -> str:
    """The stack of a thread of this process, from the handler inwards."""
    frame = sys._current_frames().get(thread_id)
    return "" if frame is None else _text(list(walk_stack(frame))[::-1])


def name_of_thread(thread_id: int) -> str:
    threads = (thread.name for thread in threading.enumerate() if thread.ident == thread_id)
    return next(threads, "")


def stack_of_tasks(tasks: Iterable[Task], current: Task | None, loop_thread: int) -> str:
    """The stacks of the tasks of one handler: for each, the calls that await each other. Of the
    task that is in a step now, the stack of the loop's thread."""
    texts = []
    for task in list(tasks)[:MOST_TASKS]:
        if task is current:
            text = stack_of_thread(loop_thread)
        else:
            text = _text(_awaiting(task.get_coro()))
        texts.append(f"task {task.get_name()}\n{text}")
    return cut("\n".join(texts), MOST_CHARACTERS)


def _awaiting(awaited: Any) -> list[tuple[FrameType, int]]:
    """The frames of a suspended coroutine, and of what it awaits."""
    frames: list[tuple[FrameType, int]] = []
    while awaited is not None and len(frames) < 10 * MOST_FRAMES:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break  # a future, or an async generator, which does not show what it awaits
        frames.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames


def _text(frames: list[tuple[FrameType, int]]) -> str:
    inner = list(dropwhile(lambda item: _is_around(item[0]), frames)) or frames
    left_out = max(len(inner) - MOST_FRAMES, 0)
    lines = StackSummary.extract(iter(inner[left_out:])).format()
    head = f"  ({left_out} outer frames are left out)\n" if left_out else ""
    return cut(clean(head + "".join(lines)), MOST_CHARACTERS)


def _is_around(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in AROUND
