"""The threads that run handlers, and the slots of the event loop that run ``async def`` ones."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial

from ...domain.outcomes import Outcome
from ...exceptions import LeaseLost
from ...lifecycle.job_columns import ClaimedJob, Fence
from ...lifecycle.settling import Settled
from ...registry import runs_isolated
from ..context.attempt import Attempt, StopHandler
from ..context.background import until_done
from ..context.progress import Reporter
from ..events import emit, emit_left_open
from ..execution import handler_call
from ..execution.event_loop import HandlerLoop, Task
from ..execution.interruption import bound, bound_on_loop, limit_of
from ..handlers.connections import HandlerConnections
from ..ipc.pipes import CRASHED
from ..ipc.scoreboard import WorkerSlot
from ..meters import ThreadClock, meter_of_queries, meter_of_threads
from ..pools.pool import Pool
from ..statement_timeout import StatementTimedOut
from ..timeouts.limits import ThreadTimeouts, let_waits_end, raise_in
from .settler import Settler

NOTHING_LEFT = None
"""In place of an outcome: settled by its child, or no longer of this worker."""


def emit_lost(job: ClaimedJob, lost: LeaseLost) -> None:
    """Log that a handler noticed that its attempt no longer belongs to this worker."""
    emit("lease_lost", logging.WARNING, job_id=job.id, attempt=job.attempt, reason=str(lost))


Isolate = Callable[[Attempt], Outcome | None]


class Executor:
    """The threads of the pools of threads. They run claimed jobs and pass their endings on."""

    def __init__(
        self,
        pools: Sequence[Pool],
        slot: WorkerSlot,
        settler: Settler,
        *,
        reporter: Reporter,
        isolate: Isolate | None,
    ) -> None:
        self.draining = False
        self.stopping = False
        self._pools = pools
        self._slot = slot
        self._settler = settler
        self._cancels = settler.cancels
        self._reporter = reporter
        self._isolate = isolate
        self._thread_timeouts = ThreadTimeouts()
        self._measures = meter_of_threads()

    def start(self) -> None:
        pools = [pool for pool in self._pools for _ in range(pool.slots)]
        for number, pool in enumerate(pools):
            threading.Thread(
                target=self._work, args=(pool,), name=f"django_jobs-{number}", daemon=True
            ).start()

    def work_here(self) -> None:
        """Run handlers in the calling thread, in place of the only one of :meth:`start`, until the
        end of their line."""
        (pool,) = self._pools
        let_waits_end()
        with suppress(StopHandler):  # raised just after its handler had ended
            self._work(pool)

    def raise_stop(self) -> None:
        """Raise a stop in every handler that still runs here, and end its statement. It does not
        interrupt other code in C, but the caller is about to kill the process."""
        self.stopping = True
        for pool in self._pools:
            for thread_id, attempt in list(pool.running.items()):
                if attempt.in_handler:
                    raise_in(thread_id, StopHandler)
                    attempt.end_statements()

    def stop_forced(self) -> None:
        """Interrupt the handlers on threads whose jobs are stopped by force. If no thread can be
        started, their process is killed."""
        for pool in self._pools:
            for thread_id, attempt in list(pool.running.items()):
                if attempt.entry.forced_at and not attempt.entry.alone:
                    attempt.limit = attempt.limit or limit_of(attempt, self._thread_timeouts)
                    with suppress(RuntimeError):
                        self._thread_timeouts.look(thread_id, attempt)

    def _work(self, pool: Pool) -> None:
        connections, clock = HandlerConnections(), ThreadClock()
        thread_id = threading.get_ident()
        while (job := pool.line.next()) is not None:
            started = time.monotonic()
            if not self._cancels.cover(job, started):
                self._look(job)
                started = time.monotonic()
            attempt = self.admitted(job, started)
            if attempt is None:
                continue
            try:
                with connections.in_use:
                    self._run(attempt, pool, thread_id, connections, clock)
                    connections.reset()  # after its ending was passed on, without delaying it
            finally:
                pool.running.pop(thread_id, None)
            del job, attempt  # free the payload while the thread waits for the next job

    def admitted(self, job: ClaimedJob, now: float) -> Attempt | None:
        """The attempt of a job that is about to start; None if it must not start any more. A look
        for cancels covers it."""
        if not self._slot.may_start(job.worker, now):
            # Another worker may have it by now, or it is given back.
            self._settler.let_go(job, None)
            return None
        if job.id in self._cancels.asked:
            self._settler.give_back([job])
            return None
        return Attempt(
            job, self._slot, self._reporter, stopping=self._is_stopping, draining=self._is_draining
        )

    def _run(
        self,
        attempt: Attempt,
        pool: Pool,
        thread_id: int,
        connections: HandlerConnections,
        clock: ThreadClock,
    ) -> None:
        """Run an attempt from its start until its ending is passed on."""
        if self._isolate is not None and (
            attempt.job.is_suspect or runs_isolated(attempt.job_type)
        ):
            attempt.await_child()
            pool.running[thread_id] = attempt
            outcome: Outcome | Settled | None = self._isolate(attempt)
        else:
            attempt.begin()
            pool.running[thread_id] = attempt
            if self._measures:
                attempt.meter = self._measures(clock, attempt.started)
            outcome = self._call(attempt, connections)
        finished = time.monotonic()
        if outcome is not NOTHING_LEFT:
            attempt.entry.finish()
            pool.pace.saw(finished - attempt.started)
        self._reporter.end(attempt, outcome)
        self.pass_on(attempt, outcome, finished)
        # Frames in the traceback of an exception refer to this one: a circle would keep its locals
        # until the garbage collector comes.
        del outcome

    def pass_on(self, attempt: Attempt, outcome: Outcome | Settled | None, finished: float) -> None:
        if outcome is NOTHING_LEFT:
            self._settler.let_go(attempt.job, attempt.entry)
        elif isinstance(outcome, Settled):
            self._settler.report(outcome, attempt.entry)
        else:
            ending = attempt.ending(outcome, finished)
            ending.cancel_requested = attempt.entry.cancel_asked
            self._settler.add(ending, attempt.entry)

    def _call(self, attempt: Attempt, connections: HandlerConnections) -> Outcome | Settled | None:
        """Call the handler in this thread, and return the outcome."""
        job_type = attempt.job_type
        attempt.end_statements = connections.cancel
        if job_type is not None and (
            attempt.job.timeout is not None or job_type.silence_timeout is not None
        ):
            bound(attempt, timeouts=self._thread_timeouts)
        attempt.in_handler = True
        try:
            connections.prepare()
            return handler_call.call(attempt)
        except LeaseLost as lost:
            emit_lost(attempt.job, lost)
            return NOTHING_LEFT
        finally:
            attempt.in_handler = False
            if connections.clean():
                emit_left_open(attempt.job)

    def _look(self, job: ClaimedJob) -> None:
        """Look for cancels while this job may start. Does not use this thread's connections: they
        belong to its handlers, have no deadline, and may be closed by others while idle."""
        while self.may_start(job):
            try:
                return self._settler.submit(
                    lambda: self._cancels.refresh(job, self._settler.deadline)
                ).result()
            except StatementTimedOut:
                continue

    def may_start(self, job: ClaimedJob) -> bool:
        return self._slot.may_start(job.worker, time.monotonic())

    def _is_stopping(self) -> bool:
        return self.stopping

    def _is_draining(self) -> bool:
        return self.draining


class AsyncExecutor:
    """The slots of the event loop. A job holds one, and no thread, while its handler awaits."""

    def __init__(
        self,
        pools: Sequence[Pool],
        executor: Executor,
        settler: Settler,
        *,
        reporter: Reporter,
        sessions: int,
    ) -> None:
        self.loop = HandlerLoop(sessions)
        self._executor = executor
        self._settler = settler
        self._cancels = settler.cancels
        self._reporter = reporter
        self._measures = meter_of_queries()
        self._busy = dict.fromkeys(pools, 0)
        self._unbegun: set[Fence] = set()
        """The attempts whose tasks have not had their first step."""
        for pool in pools:
            pool.line.on_added = partial(self.loop.call_soon, partial(self._fill, pool))

    def _fill(self, pool: Pool) -> None:
        while self._busy[pool] < pool.slots and (job := pool.line.next_if_any()) is not None:
            self._busy[pool] += 1
            self._unbegun.add(job.fence)
            context = self.loop.new_context()
            work = self._work(pool, job, context)
            task = self.loop.spawn(work, (job.id, job.job_type, job.attempt), context)
            task.add_done_callback(partial(self._end, pool, job), context=context)

    def _end(self, pool: Pool, job: ClaimedJob, task: Task) -> None:
        if job.fence in self._unbegun:  # a handler has cancelled all tasks
            self._unbegun.remove(job.fence)
            self._settler.give_back([job])
        self._busy[pool] -= 1
        self._fill(pool)

    async def _work(self, pool: Pool, job: ClaimedJob, context: Context) -> None:
        self._unbegun.remove(job.fence)
        try:
            if not self._cancels.cover(job, time.monotonic()):
                await self._look(job)
            attempt = self._executor.admitted(job, time.monotonic())
            if attempt is not None:
                await self._run(attempt, pool, context)
        except BaseException:
            # Our own fault: the attempt would never be settled. The supervisor recovers it.
            traceback.print_exc()
            os._exit(CRASHED)

    async def _run(self, attempt: Attempt, pool: Pool, context: Context) -> None:
        """Run an attempt from its start until its ending is passed on."""
        attempt.begin()
        pool.running[id(attempt)] = attempt
        if self._measures:
            attempt.meter = self._measures()
        outcome = await self._call(attempt, context)
        del pool.running[id(attempt)]
        finished = time.monotonic()
        if outcome is not NOTHING_LEFT:
            attempt.entry.finish()
            pool.pace.saw(finished - attempt.started)
        await self._reporter.aend(attempt, outcome)
        self._executor.pass_on(attempt, outcome, finished)
        del outcome  # see Executor._run

    async def _call(self, attempt: Attempt, context: Context) -> Outcome | None:
        """Call the handler, and return the outcome once its blocking calls have ended."""
        bound_on_loop(attempt, self.loop)
        calls = self.loop.enter()
        attempt.in_thread = partial(self.loop.in_thread, calls, context)
        attempt.end_statements = calls.cancel
        try:
            return await handler_call.acall(attempt)
        except LeaseLost as lost:
            emit_lost(attempt.job, lost)
            return NOTHING_LEFT
        finally:
            if (ended := calls.close()) is not None:
                await until_done(ended)

    async def _look(self, job: ClaimedJob) -> None:
        """Look for cancels while this job may start, as :meth:`Executor._look` does."""
        while self._executor.may_start(job):
            looking = self._settler.submit(
                lambda: self._cancels.refresh(job, self._settler.deadline)
            )
            await until_done(looking)
            with contextlib.suppress(StatementTimedOut):
                return looking.result()
