"""The event loop of a worker process, for ``async def`` handlers. Logs which one holds it up."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from ...domain.outcomes import FORCED, Outcome, TimedOut
from ..connections import nothing
from ..context.attempt import StopHandler
from ..context.background import until_done
from ..context.run_context import RunContext, current_run
from ..events import emit
from ..handlers.lent_connections import (
    CallThreads,
    FreeThreads,
    HandlerCalls,
    Sessions,
    current_calls,
)
from ..timeouts.limits import Interrupted

TICK = 0.25
"""Seconds between two checks whether handlers have to stop."""

Task = asyncio.Task[Any]
Job = tuple[int, str, int]
"""The id and the type of a job, and its attempt."""

Asked = Callable[[], Outcome | None]
"""Returns how a handler has to end now, or None."""


class HandlerLoop:
    """Runs coroutines on one thread, which starts with the first one. The blocking calls of all of
    them have ``sessions`` connections to each database."""

    def __init__(self, sessions: int = 1) -> None:
        self.thread_id = 0
        self._sessions = Sessions(sessions)
        self._threads = CallThreads(self._sessions)
        self._context = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._running: set[_Limit] = set()
        self._jobs: dict[Task, Job] = {}
        self._helpers: WeakKeyDictionary[Task, RunContext] = WeakKeyDictionary()
        self._ticks = False
        self._stopping = False

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        timeout: float | None,
        asked: Asked = nothing,
    ) -> Any:
        """Run ``coroutine`` and wait for it, from another thread. It is limited as by
        :meth:`bounded`, and its blocking calls have ended when this returns."""
        future = asyncio.run_coroutine_threadsafe(
            self._alone(coroutine, timeout, asked), self.started()
        )
        result = future.result()
        if type(result) is _Exit:  # isinstance() would look at a lazy object
            raise result.error
        return result

    async def bounded(
        self,
        coroutine: Coroutine[Any, Any, Any],
        timeout: float | None,
        asked: Asked = nothing,
    ) -> Any:
        """Await ``coroutine`` for at most ``timeout`` seconds, in a task of the loop.

        Raises :class:`Interrupted` if it was stopped by its time-out, or because ``asked`` returned
        a reason, and :class:`StopHandler` after :meth:`stop_all`. The coroutine gets a
        ``CancelledError`` in each case. Tasks that it has started and left behind are cancelled.
        """
        if self._stopping:
            coroutine.close()
            raise StopHandler
        task = asyncio.current_task()
        assert task is not None
        limit = _Limit(
            asked, asyncio.timeout(timeout), TimedOut(seconds=timeout or 0.0), current_calls(), task
        )
        self._running.add(limit)
        loop, at_its_end = asyncio.get_running_loop(), None
        if (when := limit.timeout.when()) is not None:
            # Not later: it may then clean up in the database.
            at_its_end = loop.call_at(when, limit.end_statements, context=self._context)
        if not self._ticks:
            self._ticks = True
            loop.call_later(TICK, self._tick, context=self._context)  # not that of this handler
        try:
            async with limit.timeout:
                result = await coroutine
        except BaseException as error:
            if limit.timeout.expired():
                raise limit.reason(error) from None
            raise
        finally:
            self._running.discard(limit)
            if at_its_end is not None:
                at_its_end.cancel()
            _end_tasks()
        if limit.timeout.expired() and (
            isinstance(limit.outcome, TimedOut) or limit.outcome is FORCED
        ):
            raise limit.reason()  # it caught the cancellation; after a cancel, its success counts
        return result

    def stop_all(self) -> None:
        self._stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._look)

    def call_soon(self, work: Callable[[], object]) -> None:
        """Call ``work`` on the loop soon, from any thread."""
        self.started().call_soon_threadsafe(work)

    def new_context(self) -> Context:
        """A context that no handler has changed."""
        return self._context.copy()

    def spawn(self, coroutine: Coroutine[Any, Any, None], job: Job, context: Context) -> Task:
        """Run ``coroutine`` for a job, in a task with this context. Called on the loop."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine, context=context)
        self._jobs[task] = job  # the loop itself keeps only weak references
        # Its context, or that of the handler before it would be kept.
        task.add_done_callback(self._jobs.pop, context=context)
        return task

    @property
    def is_used(self) -> bool:
        return bool(self._jobs)

    def current_task(self) -> Task | None:
        """The task that is in a step now. Called by another thread."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    def job_of(self, task: Task) -> Job | None:
        """The job whose task this is, or whose handler started it."""
        if (job := self._jobs.get(task)) is not None:
            return job
        run = self._helpers.get(task)
        return None if run is None else (run.job_id, run.job_type, run.attempt)

    def tasks_of(self, job_id: int | None = None) -> list[Task]:
        """The tasks of a job's handler, or all that belong to one. Called by another thread."""
        own = [task for task, job in list(self._jobs.items()) if job_id in (None, job[0])]
        helpers = list(self._helpers.items())
        return own + [
            task
            for task, run in helpers
            if job_id in (None, run.job_id) and task not in own and not task.done()
        ]

    def started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                loop.set_default_executor(FreeThreads(self._sessions))
                loop.set_task_factory(self._new_task)
                threading.Thread(
                    target=self._run_on, args=(loop,), name="django_jobs-loop", daemon=True
                ).start()  # which may fail; the next one tries again
                self._loop = loop
            return self._loop

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Future[Any]:
        task: Task = asyncio.Task(coroutine, loop=loop, **options)
        if (run := current_run()) is not None and "context" not in options:
            self._helpers[task] = run
            attempt = run._attempt
            if attempt.tasks is None:
                attempt.tasks = WeakSet()
            attempt.tasks.add(task)
        return task

    def enter(self) -> HandlerCalls:
        """Give the handler of the current task its thread for blocking calls."""
        return self._threads.enter()

    def _run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop forever: a task that a handler started may exit too, or call ``stop()``."""
        self.thread_id = threading.get_ident()
        while not loop.is_closed():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # the code that awaits the task gets it too
                continue

    async def in_thread(
        self, calls: HandlerCalls, context: Context, work: Callable[[], Any]
    ) -> Any:
        """Call ``work`` in the thread of a handler, in the ``context`` of the task that awaits. A
        cancel of the task waits for its end: no task can run while a thread is in its context."""
        called: Future[Future[Any]] = Future()

        def submit() -> None:  # once the task is suspended, because it has entered its context
            try:
                calls.submit(context.run, work).add_done_callback(called.set_result)
            except RuntimeError as error:  # no thread can be started
                called.set_exception(error)

        asyncio.get_running_loop().call_soon(submit)
        await until_done(called)
        return called.result().result()

    async def _alone(
        self, coroutine: Coroutine[Any, Any, Any], timeout: float | None, asked: Asked
    ) -> Any:
        calls = self.enter()
        try:
            return await self.bounded(coroutine, timeout, asked)
        except (SystemExit, KeyboardInterrupt) as error:
            return _Exit(error)
        finally:
            if (ended := calls.close()) is not None:
                await until_done(ended)

    def _tick(self) -> None:
        """Look now and then while handlers run: one timer for all of them."""
        self._look()
        if self._running:
            asyncio.get_running_loop().call_later(TICK, self._tick)
        else:
            self._ticks = False

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for limit in list(self._running):
            if limit.timeout.expired():
                if limit.outcome is not FORCED and limit.asked() is FORCED:
                    limit.outcome = FORCED  # it went on after a cancel
                    limit.task.cancel()
                    limit.end_statements()
                continue
            outcome = None if self._stopping else limit.asked()
            if self._stopping or outcome is not None:
                limit.outcome = outcome
                limit.timeout.reschedule(now)
                limit.end_statements()


def _end_tasks() -> None:
    """Cancel the tasks that the handler of this context has started and that have not ended. They
    would run on without a slot, a time-out, a cancel and an end of the drain."""
    run = current_run()
    if run is None or not run._attempt.tasks:
        return
    own = asyncio.current_task()
    left = [task for task in run._attempt.tasks if task is not own and not task.done()]
    for task in left:
        task.cancel("its handler has ended")
    if left:
        fields = {"job_id": run.job_id, "job_type": run.job_type, "attempt": run.attempt}
        emit("tasks_cancelled", logging.WARNING, **fields, tasks=len(left))


@dataclass(eq=False, slots=True)
class _Limit:
    """The limit of one handler. ``outcome``, if it is stopped; None for a stop of the process."""

    asked: Asked
    timeout: asyncio.Timeout
    outcome: Outcome | None
    calls: HandlerCalls | None
    task: Task

    def end_statements(self) -> None:
        """Cancel what the handler, which has to end, waits for in the database."""
        if self.calls is not None:
            self.calls.cancel()

    def reason(self, passed: BaseException | None = None) -> BaseException:
        """What to raise in place of ``passed``, the exception of the handler."""
        return StopHandler() if self.outcome is None else Interrupted(self.outcome, passed)


@dataclass(frozen=True, slots=True)
class _Exit:
    """Stands for ``sys.exit()`` and the like in a handler, which would end the loop."""

    error: BaseException


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
