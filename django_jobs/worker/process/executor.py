"""The threads that run handlers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...domain.outcomes import Outcome
from ...exceptions import LeaseLost
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.settling import Ending, Settled
from ..context.attempt import Attempt, StopHandler
from ..context.progress import Reporter
from ..events import emit
from ..execution import handler_call
from ..execution.event_loop import HandlerLoop
from ..execution.interruption import bound
from ..handlers.connections import HandlerConnections
from ..ipc.scoreboard import WorkerSlot
from ..options import runs_isolated
from ..statement_timeout import StatementTimedOut
from ..timeouts.threads import ThreadTimeouts, raise_in
from .cancels import Cancels
from .claimed_jobs import ClaimedJobs
from .settler import Settler

NOTHING_LEFT = None
"""In place of an outcome: the attempt was settled by its child, or no longer belongs to this
worker."""

Isolate = Callable[[ClaimedJob, int], Outcome | None]

PREFETCH_SECONDS = 0.5
"""Seconds of work that may wait in this process. Idle workers elsewhere cannot take it."""

PREFETCH_LIMIT = 600
"""Jobs that may wait in this process, even if they are quick."""

SLOW_WEIGHT, FAST_WEIGHT = 0.5, 0.02
"""How fast the estimate of a job's duration follows. It rises quickly, so that slow jobs are not
hoarded, and falls slowly, so that a few fast ones between them do not start the hoarding again."""


class Pace:
    """The recent duration of jobs here, in seconds. It determines the prefetch."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def saw(self, seconds: float) -> None:
        """Include the duration of one job."""
        if self.seconds is None:
            self.seconds = seconds
        else:
            weight = SLOW_WEIGHT if seconds > self.seconds else FAST_WEIGHT
            self.seconds += weight * (seconds - self.seconds)

    def jobs_in(self, seconds: float) -> int:
        """The number of jobs that a thread runs in this time; 0 before the first one ended."""
        return 0 if self.seconds is None else int(seconds / max(self.seconds, 1e-6))


class Executor:
    """``threads`` threads that run claimed jobs and pass their endings on."""

    def __init__(
        self,
        threads: int,
        slot: WorkerSlot,
        claimed: ClaimedJobs,
        settler: Settler,
        *,
        cancels: Cancels,
        reporter: Reporter,
        isolate: Isolate | None,
    ) -> None:
        self.pace = Pace()
        self.loop = HandlerLoop()
        self.draining = False
        self.stopping = False
        self._slot = slot
        self._claimed = claimed
        self._settler = settler
        self._cancels = cancels
        self._reporter = reporter
        self._isolate = isolate
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

    def ahead(self) -> int:
        """The number of jobs that may wait here: as many as the threads start soon."""
        since = time.monotonic() - PREFETCH_SECONDS
        running = list(self._running.values())
        able = len(self._threads) - sum(1 for attempt in running if attempt.started < since)
        ahead = min(self.pace.jobs_in(able * PREFETCH_SECONDS), PREFETCH_LIMIT)
        return ahead if ahead >= able else 0  # prefetching jobs of half a second gains nothing

    def hoarded(self) -> list[ClaimedJob]:
        """Take back the jobs that would wait here too long, because quick jobs were followed by
        slow ones, or because this process drains. Called repeatedly: after a drain began, a running
        claim or the settler may still add jobs."""
        claimed = self._claimed
        if self.draining:
            return claimed.take_unstarted()
        since = time.monotonic() - PREFETCH_SECONDS
        if not claimed.waiting or claimed.waits_since > since:
            return []
        if claimed.waiting <= (ahead := self.ahead()):
            return []
        unstarted = claimed.take_unstarted()
        claimed.put_back(unstarted[:ahead])
        return unstarted[ahead:]

    def raise_stop(self) -> None:
        """Raise a stop in every handler that still runs here. It does not interrupt code in C, but
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
            job = self._claimed.next()
            started = time.monotonic()
            if not self._cancels.cover(job, started):
                self._look(job)
                started = time.monotonic()
            if not self._slot.may_start(job.worker, started):
                self._settler.let_go(
                    job, None
                )  # another worker may have it by now, or it is given back
                continue
            if job.id in self._cancels.asked:
                self._settler.give_back([job])
                continue
            attempt = Attempt(
                job,
                self._slot,
                self._reporter,
                stopping=self._is_stopping,
                draining=self._is_draining,
            )
            try:
                with connections.in_use:
                    self._run(attempt, thread_id, connections)
                    connections.reset()  # after its ending was passed on, without delaying it
            finally:
                self._running.pop(thread_id, None)
            del job, attempt  # free the payload while the thread waits for the next job

    def _run(self, attempt: Attempt, thread_id: int, connections: HandlerConnections) -> None:
        """Run an attempt from its start until its ending is passed on."""
        if self._isolate is not None and (
            attempt.job.is_suspect or runs_isolated(attempt.job_type)
        ):
            attempt.await_child()
            self._running[thread_id] = attempt
            outcome: Outcome | Settled | None = self._isolate(attempt.job, attempt.entry.index)
        else:
            attempt.begin()
            self._running[thread_id] = attempt
            outcome = self._call(attempt, connections)
        if outcome is not NOTHING_LEFT:
            finished = time.monotonic()
            attempt.entry.finish()
            self.pace.saw(finished - attempt.started)
        self._reporter.end(attempt, outcome)
        if outcome is NOTHING_LEFT:
            self._settler.let_go(attempt.job, attempt.entry)
        elif isinstance(outcome, Settled):
            self._settler.report(outcome, attempt.entry)
        else:
            self._settler.add(
                Ending(attempt.job, outcome, attempt.started, finished, attempt.entry.cancel_asked),
                attempt.entry,
            )

    def _call(self, attempt: Attempt, connections: HandlerConnections) -> Outcome | Settled | None:
        """Call the handler in this thread, and return the outcome."""
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

    def _look(self, job: ClaimedJob) -> None:
        """Look for cancels while this job may start. Does not use this thread's connections:
        they belong to its handlers, have no deadline, and may be closed by others while they
        are idle."""
        while self._slot.may_start(job.worker, time.monotonic()):
            try:
                return self._settler.submit(
                    lambda: self._cancels.refresh(job, self._settler.deadline)
                ).result()
            except StatementTimedOut:
                continue

    def _is_stopping(self) -> bool:
        return self.stopping

    def _is_draining(self) -> bool:
        return self.draining
