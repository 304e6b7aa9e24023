"""Runs ``async def`` handlers on the event loop of a worker process."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Sequence
from contextvars import Context
from functools import partial

from ...domain.outcomes import Outcome
from ...exceptions import LeaseLost
from ...lifecycle.job_columns import ClaimedJob, Fence
from ..context.attempt import Attempt
from ..context.background import until_done
from ..context.progress import Reporter
from ..execution import handler_call
from ..execution.event_loop import HandlerLoop, Task
from ..execution.interruption import bound_on_loop
from ..ipc.pipes import CRASHED
from ..meters import meter_of_queries
from ..pools.pool import Pool
from ..statement_timeout import StatementTimedOut
from .executor import NOTHING_LEFT, Executor, emit_lost
from .settler import Settler


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
