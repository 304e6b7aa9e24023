"""The thread that runs statements for handlers outside their transactions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from ..connections import IDLE_SECONDS, drop_connection, own_connection
from ..statement_timeout import StatementTimeout
from .attempt import Attempt

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Task(Generic[R]):
    """A function to call in another thread."""

    work: Callable[[], R]
    result: Future[R] = field(default_factory=Future)

    def run(self) -> None:
        """Call the function. Its exception is raised where the result is read."""
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(self.work())
        except BaseException as error:
            self.result.set_exception(error)


class BackgroundThread:
    """A thread with its own connection for all handlers of a process. Its first task starts it."""

    def __init__(self) -> None:
        self.deadline = StatementTimeout(3.0)
        self._submitted: SimpleQueue[tuple[float, int, Task[Any]] | None] = SimpleQueue()
        self._numbers = itertools.count()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], R], *, after: float = 0.0) -> Future[R]:
        """Call ``work`` at least ``after`` seconds from now, one task at a time."""
        task = Task(work)
        self._submitted.put((time.monotonic() + after, next(self._numbers), task))
        if self._thread is None:
            self._start()
        return task.result

    def submit_for_attempt(self, attempt: Attempt, work: Callable[[], R]) -> Future[R]:
        """Like :meth:`submit`, for a task that has to end before the attempt is settled."""
        future = self.submit(work)
        attempt.submitted.append(future)
        return future

    def wait_for_attempt(self, attempt: Attempt) -> None:
        """Wait until the tasks of this attempt have ended or failed, also by ``sys.exit()``."""
        for future in attempt.submitted:
            with contextlib.suppress(BaseException):
                self.wait(future)

    def wait(self, future: Future[R]) -> R:
        """Wait for a task and return its result. In an isolated child this also limits the task's
        statements: one may wait for a lock of the waiting thread."""
        while True:
            try:
                return future.result(1.0)
            except TimeoutError:
                if future.done():  # it raised this itself, or has just ended
                    return future.result()
                self.deadline.enforce()

    def close(self) -> None:
        """Run the tasks that are due, then end the thread and close its connection."""
        if self._thread is not None:
            self._submitted.put(None)
            self._thread.join()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="django_jobs-background", daemon=True
                )
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        own_connection()
        waiting: list[tuple[float, int, Task[Any]]] = []
        closing = False
        while True:
            pause = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else IDLE_SECONDS
            if closing and pause > 0:
                break
            try:
                submitted = self._submitted.get(timeout=pause)
            except Empty:
                if waiting:
                    _, _, task = heappop(waiting)
                    task.run()
                else:
                    drop_connection()
                continue
            if submitted is None:
                closing = True
            else:
                heappush(waiting, submitted)
        drop_connection()


class _Uncancelled(asyncio.Future[None]):
    """A cancel of the task that awaits it does not wake that task before it is done."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


async def until_done(future: Future[Any], timeout: float | None = None) -> None:
    """Wait for it, on an event loop, for at most ``timeout`` seconds. The code of a handler that
    cancels all tasks does not interrupt this."""
    loop = asyncio.get_running_loop()
    done = _Uncancelled(loop=loop)

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    future.add_done_callback(lambda _: loop.call_soon_threadsafe(finish))
    timer = None if timeout is None else loop.call_later(timeout, finish)
    try:
        await done
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        while task.cancelling():
            task.uncancel()
    if timer is not None:
        timer.cancel()
