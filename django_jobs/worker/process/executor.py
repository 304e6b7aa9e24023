"""The threads that run handlers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from ...domain.outcomes import Outcome
from ...exceptions import LeaseLost
from ...lifecycle.claiming import ClaimedJob
from ...lifecycle.settling import Ending, Settled
from ..context.attempt import Attempt
from ..context.progress import Reporter
from ..context.stop import StopHandler
from ..events import emit
from ..execution import handler_call
from ..execution.event_loop import HandlerLoop
from ..execution.interruption import bound
from ..handlers.connections import HandlerConnections
from ..ipc.scoreboard import WorkerSlot
from ..options import runs_isolated
from ..statement_timeout import StatementTimedOut, StatementTimeout
from ..timeouts.threads import ThreadTimeouts, raise_in
from .cancels import Cancels

NOTHING_LEFT = None
"""In place of an outcome: the attempt was settled by its own child, or is not ours any more."""

Isolate = Callable[[ClaimedJob, int], Outcome | None]

LOCKED_SECONDS = 1.0
"""How often a cancelled job is given back while its row is locked."""

SLOW_WEIGHT, FAST_WEIGHT = 0.5, 0.02
"""How fast the estimate of a job's duration follows: quickly up, so that slow jobs are not
hoarded; slowly down, so that a few fast ones between them do not start the hoarding again."""


class Pace:
    """How long jobs take here lately, in seconds; what the prefetch is sized by."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def saw(self, seconds: float) -> None:
        """Learn from one job."""
        if self.seconds is None:
            self.seconds = seconds
        else:
            weight = SLOW_WEIGHT if seconds > self.seconds else FAST_WEIGHT
            self.seconds += weight * (seconds - self.seconds)

    def jobs_in(self, seconds: float) -> int:
        """How many jobs a thread makes in that time; none before it made one."""
        return 0 if self.seconds is None else int(seconds / max(self.seconds, 1e-6))


class Executor:
    """``threads`` threads that take claimed jobs from one queue and hand their endings on."""

    def __init__(
        self,
        threads: int,
        slot: WorkerSlot,
        *,
        done: Callable[[Ending, int], None],
        settled_itself: Callable[[Settled, int], None],
        let_go: Callable[[ClaimedJob, int | None], None],
        hungry: Callable[[], None],
        isolate: Isolate | None,
        draining: Callable[[], bool],
        reporter: Reporter,
        cancels: Cancels,
        give_back: Callable[[list[ClaimedJob], StatementTimeout], list[ClaimedJob]],
    ) -> None:
        self.jobs: SimpleQueue[ClaimedJob] = SimpleQueue()
        self.pace = Pace()
        self.loop = HandlerLoop()
        self.stopping = False
        self.refill_below = 0
        self.claimed_at = 0.0
        """When the job that was taken last had been claimed, of ``time.monotonic()``."""
        self._slot = slot
        self._done = done
        self._settled_itself = settled_itself
        self._let_go = let_go
        self._hungry = hungry
        self._isolate = isolate
        self._draining = draining
        self._reporter = reporter
        self._background = reporter.background
        self._cancels = cancels
        self._give_back = give_back
        self._thread_timeouts = ThreadTimeouts()
        self._running: dict[int, Attempt] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"django_jobs-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def unstuck(self, slow: float) -> int:
        """Threads that are not in a job for more than ``slow`` seconds."""
        since = time.monotonic() - slow
        running = list(self._running.values())
        return len(self._threads) - sum(1 for attempt in running if attempt.started < since)

    def take_unstarted(self) -> list[ClaimedJob]:
        """Take back what no thread has begun."""
        taken: list[ClaimedJob] = []
        while not self.jobs.empty():
            try:
                job = self.jobs.get_nowait()
            except Empty:  # a thread was faster
                break
            taken.append(job)
        return taken

    def raise_stop(self) -> None:
        """Raise a stop in every handler that still runs here. Code in C is out of its reach;
        the caller is about to kill the process."""
        self.stopping = True
        self.loop.stop_all()
        for thread_id, attempt in list(self._running.items()):
            if attempt.in_handler:
                raise_in(thread_id, StopHandler)

    def _work(self) -> None:
        connections = HandlerConnections()
        thread_id = threading.get_ident()
        while True:
            job = self.jobs.get()
            if self.jobs.qsize() <= self.refill_below:
                self._hungry()
            self.claimed_at = job.taken_at
            started = time.monotonic()
            if not self._cancels.cover(job, started):
                self._look(job)
                started = time.monotonic()
            if not self._slot.may_start(job.worker, started):
                self._let_go(job, None)  # others may have it by now, or will be given it back
                continue
            if job.id in self._cancels.asked:
                self._background.submit(partial(self._return, job)).result()
                continue
            attempt = Attempt(
                job, self._slot, self._reporter, stopping=self._is_stopping, draining=self._draining
            )
            try:
                with connections.in_use:
                    self._run(attempt, thread_id, connections)
                    connections.reset()  # after its end was handed on, which does not wait for this
            finally:
                self._running.pop(thread_id, None)
            del job, attempt  # its payload is not kept while the thread waits for the next

    def _run(self, attempt: Attempt, thread_id: int, connections: HandlerConnections) -> None:
        """The life of an attempt, from its begin to where its end is handed on."""
        if self._isolate is not None and (
            attempt.job.is_suspect or runs_isolated(attempt.job_type)
        ):
            attempt.await_child()
            self._running[thread_id] = attempt
            outcome: Outcome | Settled | None = self._isolate(attempt.job, attempt.index)
        else:
            attempt.begin()
            self._running[thread_id] = attempt
            outcome = self._call(attempt, connections)
        if outcome is not NOTHING_LEFT:
            finished = time.monotonic()
            self._slot.finish(attempt.index)
            self.pace.saw(finished - attempt.started)
        self._reporter.end(attempt, outcome)
        if outcome is NOTHING_LEFT:
            self._let_go(attempt.job, attempt.index)
        elif isinstance(outcome, Settled):
            self._settled_itself(outcome, attempt.index)
        else:
            self._done(
                Ending(attempt.job, outcome, attempt.started, finished, attempt.cancel_asked),
                attempt.index,
            )

    def _call(self, attempt: Attempt, connections: HandlerConnections) -> Outcome | Settled | None:
        """The outcome of its handler, in this thread."""
        job_type = attempt.job_type
        if job_type is not None and (
            attempt.job.timeout is not None
            or job_type.silence_timeout is not None
            or job_type.is_async
        ):
            bound(attempt, timeouts=self._thread_timeouts, loop=self.loop)
        attempt.in_handler = True
        try:
            connections.prepare()
            return handler_call.call(attempt)
        except LeaseLost as lost:
            job = attempt.job
            emit(
                "lease_lost", logging.WARNING, job_id=job.id, attempt=job.attempt, reason=str(lost)
            )
            return NOTHING_LEFT
        finally:
            attempt.in_handler = False
            connections.clean()

    def _is_stopping(self) -> bool:
        return self.stopping

    def _look(self, job: ClaimedJob) -> None:
        """Look for cancels for as long as this job may begin. Not on this thread's connections:
        they are its handlers', have no deadline, and others close them while they are idle."""
        while self._slot.may_start(job.worker, time.monotonic()):
            asked = self._background.submit(
                lambda: self._cancels.refresh(job, self._background.deadline)
            )
            try:
                return asked.result()
            except StatementTimedOut:
                continue

    def _return(self, job: ClaimedJob) -> None:
        """Give a cancelled job back, in the background, now or as soon as its row is not
        locked."""
        try:
            left = self._give_back([job], self._background.deadline)
        except StatementTimedOut:
            left = [job]
        if left:
            self._background.submit(partial(self._return, job), after=LOCKED_SECONDS)
