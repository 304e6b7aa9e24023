"""Names the handler that holds up the event loop, in the log."""

from __future__ import annotations

import logging
import sys
from types import FrameType

from ..events import emit
from .event_loop import HandlerLoop, Task

BLOCKED_SECONDS = 1.0

MOST_CALLS = 6
"""Of the innermost calls of the handler. A value in the log has at most 300 characters."""

OURS = frozenset({"asyncio", __name__.partition(".")[0]})


class LoopWatch:
    """Asks the loop for a sign of life, from another thread, which calls :meth:`look` often.

    A loop that is merely busy answers late too, but runs one task after the other meanwhile. It is
    blocked if it is in the same step of the same task all the time.
    """

    def __init__(self, loop: HandlerLoop) -> None:
        self._loop = loop
        self._waits_for_answer = False
        self._task: Task | None = None
        self._since = 0.0
        self._report_after = 0.0

    def look(self, now: float) -> None:
        """Log a step that takes too long: after a second, and whenever it took twice as long."""
        if not self._waits_for_answer:
            self._task = None
            if self._loop.is_used:
                self._waits_for_answer = True
                self._loop.call_soon(self._answer)
            return
        task = self._loop.current_task()
        if task is None or task is not self._task:
            self._task, self._since, self._report_after = task, now, BLOCKED_SECONDS
        elif now - self._since >= self._report_after:
            self._report_after = 2 * (now - self._since)
            self._report(task, now - self._since)

    def _answer(self) -> None:
        self._waits_for_answer = False

    def _report(self, task: Task, seconds: float) -> None:
        job = self._loop.job_of(task)
        at = " < ".join(calls_in(sys._current_frames().get(self._loop.thread_id)))
        fields = dict(zip(("job_id", "job_type", "attempt"), job or (), strict=False))
        emit("loop_blocked", logging.WARNING, **fields, seconds=round(seconds, 1), at=at)


def calls_in(frame: FrameType | None) -> list[str]:
    """The innermost calls from the handler on, the innermost one first."""
    calls: list[str] = []
    while frame is not None and len(calls) < MOST_CALLS:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in OURS and calls:
            break
        calls.append(f"{module}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return calls
