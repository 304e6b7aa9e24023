"""A worker in the thread of a test: claims jobs, makes their attempts and settles them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import async_to_sync, sync_to_async

from .. import registry
from ..conf import conf
from ..domain.admission import FairShares
from ..domain.outcomes import Lost, Outcome
from ..exceptions import LeaseLost
from ..lifecycle import workers
from ..lifecycle.claiming import claim, claimed_by
from ..lifecycle.gates.admission import admit
from ..lifecycle.job_columns import ClaimedJob
from ..lifecycle.promoting import BATCH, peek, promote
from ..lifecycle.reaping import recover_process
from ..lifecycle.settling import Settled
from ..lifecycle.settling_rows import note_triggers, settle_with_fallback
from ..models import Job, Queue
from ..models.database import jobs_connection
from ..worker.context.attempt import Attempt
from ..worker.context.background import BackgroundThread, Task
from ..worker.context.progress import Reporter
from ..worker.events import emit_settled
from ..worker.execution import handler_call
from ..worker.execution.event_loop import Asked, HandlerLoop
from ..worker.execution.interruption import bound
from ..worker.ipc.scoreboard import Scoreboard, WorkerSlot
from ..worker.timeouts.limits import ThreadTimeouts, never
from .crash_points import AFTER_CALL, AFTER_SETTLE, Observer, ProcessDied
from .nested_transactions import Transactions, committing

R = TypeVar("R")


class InlineBackground(BackgroundThread):
    """Makes the statements of a handler that are not part of its transactions (receipts, waits,
    progress) at once, in the thread of the test and on its connection. The thread and connection
    that a worker has for them would not see the test's rows."""

    def __init__(self, transactions: Transactions, observer: Observer) -> None:
        super().__init__()
        self._transactions = transactions
        self._observer = observer
        self._later: list[Task[Any]] = []

    def submit(self, work: Callable[[], R], *, after: float = 0.0) -> Future[R]:
        self._observer.raise_if_dead()

        def work_and_keep() -> R:
            with self._observer.unobserved():
                result = work()
            self._transactions.keep(work)
            return result

        task = Task(work_and_keep)
        if after > 0:
            self._later.append(task)
        elif is_in_event_loop():
            self._later.append(task)  # if nobody waits for it, the loop may end first
            loop = asyncio.get_running_loop()
            asyncio.run_coroutine_threadsafe(sync_to_async(_run)(task), loop)
        else:
            task.run()
        return task.result

    def submit_for_attempt(self, attempt: Attempt, work: Callable[[], R]) -> Future[R]:
        self._observer.reach(AFTER_CALL)
        return super().submit_for_attempt(attempt, work)

    def close(self) -> None:
        """Run the tasks submitted for later: the attempt ends. A dead process does not."""
        later, self._later = self._later, []
        for task in later if not self._observer.died_at else ():
            _run(task)


class InlineReporter(Reporter):
    def __init__(self, transactions: Transactions, observer: Observer) -> None:
        super().__init__()
        self.background = InlineBackground(transactions, observer)


def _run(task: Task[Any]) -> None:
    if not task.result.done():
        task.run()


def is_in_event_loop() -> bool:
    """Whether an event loop runs in this thread, which may not use the database then."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


LEASE_SECONDS = 366 * 86_400.0
"""Nothing renews it."""


class Ended(NamedTuple):
    """An attempt of :class:`InlineWorker`. ``settled`` is None if it was not its worker's any more.
    ``error`` is what its handler raised."""

    job: ClaimedJob
    settled: Settled | None
    error: BaseException | None


class InlineWorker:
    """Serves some or all queues with one thread: the caller's."""

    def __init__(self, queue: str | None = None) -> None:
        self.queues: Sequence[str] = [queue] if queue is not None else _all_queues()
        self._versions = registry.versions()
        self._shares = FairShares()
        self._unkept: Collection[str] = ()
        self._limited: Collection[str] = ()
        self._slot: WorkerSlot | None = None

    def close(self) -> None:
        if self._slot is not None:
            workers.end(self._slot.worker, reason="run_jobs() returned")

    def make_ready(self) -> None:
        """Make due jobs ready, and those that their gates admit."""
        while promote()[0] >= BATCH:
            pass
        seen = peek(self.queues)
        self._unkept, self._limited = seen.unkept, seen.limited
        if seen.gated:
            self._admit()

    def _admit(self) -> None:
        room = dict.fromkeys(self.queues, 1)
        last = ""
        while True:
            admission = admit(room, self._shares, after=last)
            last = admission.last
            if not last:
                return

    def claim(self, job_types: Collection[str] | None = None) -> ClaimedJob | None:
        """The next ready job of the best rank. A queue that is paused or full is passed over."""
        versions = self._versions
        if job_types is not None:
            versions = {name: versions[name] for name in job_types if name in versions}
        ready = Job.objects.using(conf().database).filter(status="ready", job_type__in=versions)
        left = set(self.queues)
        while left:
            best = ready.filter(queue__in=left).order_by("rank", "id")
            queue = best.values_list("queue", flat=True).first()
            if queue is None:
                return None
            if claimed := self._claim(queue, versions):
                return claimed
            left.discard(queue)
        return None

    def _claim(self, queue: str, versions: Mapping[str, int]) -> ClaimedJob | None:
        if self._slot is None:
            self._slot = self._register()
        jobs = self._claim_as(self._slot, queue, versions)
        if not jobs and not workers.renew([self._slot.worker], LEASE_SECONDS):
            self._slot = self._register()  # it was declared lost
            jobs = self._claim_as(self._slot, queue, versions)
        return jobs[0] if jobs else None

    def _claim_as(
        self, slot: WorkerSlot, queue: str, versions: Mapping[str, int]
    ) -> list[ClaimedJob]:
        limited = queue in self._limited
        return claim(queue, worker=slot.worker, job_types=versions, limit=1, limited=limited)

    def _register(self) -> WorkerSlot:
        note_triggers()
        slot: WorkerSlot = Scoreboard(1).slots[0]  # no supervisor reads it
        slot.register(register("run_jobs", self.queues), time.monotonic() + LEASE_SECONDS)
        return slot

    def run(self, job: ClaimedJob) -> Ended:
        """Make the attempt and settle it as a worker does, on connections without a transaction."""
        jobs_connection().ensure_connection()
        observer = Observer(job)
        with _working(), committing(observer) as transactions:
            reporter = InlineReporter(transactions[conf().database], observer)
            settled = self._run(job, reporter, observer)
            if observer.died_at:
                with observer.unobserved():
                    settled = self._recover(job, observer)
            emit_settled(settled)
        return Ended(job, settled[0] if settled else None, observer.error)

    def _run(
        self, job: ClaimedJob, reporter: InlineReporter, observer: Observer
    ) -> Sequence[Settled]:
        slot = self._slot
        assert slot is not None
        attempt = Attempt(job, slot, reporter, stopping=self._is_stopping, draining=never)
        attempt.job_type = observer.observed(attempt.job_type)
        attempt.begin()
        try:
            outcome = _call(attempt)
            finished = time.monotonic()
            attempt.entry.finish()
            if observer.died_at:
                return []
            reporter.end(attempt, outcome)
            if outcome is None or isinstance(outcome, Settled):
                return [outcome] if outcome else []
            # Of the attempt: spawn() makes its job a step.
            ending = attempt.ending(outcome, finished)
            ending.kept = job.queue not in self._unkept
            settled = settle_with_fallback([ending])
            with suppress(ProcessDied):
                observer.reach(AFTER_SETTLE)
            return settled
        finally:
            attempt.is_live = False
            slot.free(attempt.entry)

    def _is_stopping(self) -> bool:
        """Asked by ``should_stop()``: looks for a cancel and for the end of the lease, as the
        heartbeat of a worker does now and then."""
        slot = self._slot
        assert slot is not None
        if not is_in_event_loop():
            if not workers.renew([slot.worker], LEASE_SECONDS):
                slot.register(0, 0.0)
            for _, job, force in workers.cancels_asked([slot.worker]):
                slot.ask_cancel(job, force)
        return False

    def _recover(self, job: ClaimedJob, observer: Observer) -> list[Settled]:
        """Settle what a dead process has left, as the heartbeat of its machine does."""
        assert self._slot is not None
        worker, self._slot = self._slot.worker, None
        reason = f"the test let its process die at {observer.died_at}"
        held = {one.fence: Lost(reason=reason) for one in claimed_by(worker, [job.id])}
        return recover_process(worker, held, reason=reason)


def register(name: str, queues: Sequence[str]) -> int:
    return workers.register(
        workers.WorkerInfo(
            name=name,
            host="test",
            pid=os.getpid(),
            queues=queues,
            threads=1,
            job_types=registry.versions(),
            lease=LEASE_SECONDS,
        )
    )


def _call(attempt: Attempt) -> Outcome | Settled | None:
    bound(attempt, timeouts=_timeouts(), loop=_Loop())
    attempt.in_handler = True
    try:
        return handler_call.call(attempt)
    except LeaseLost:
        return None
    finally:
        attempt.in_handler = False
        attempt.reporter.background.close()


class _Loop(HandlerLoop):
    """Runs coroutines so that their ORM calls come back to the thread of the test."""

    def run(
        self,
        coroutine: Coroutine[Any, Any, Any],
        timeout: float | None,
        asked: Asked = lambda: None,
    ) -> Any:
        return async_to_sync(self.bounded)(coroutine, timeout, asked)


_thread = threading.local()


@contextmanager
def _working() -> Iterator[None]:
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1


def is_at_work() -> bool:
    return getattr(_thread, "depth", 0) > 0


@cache
def _timeouts() -> ThreadTimeouts:
    return ThreadTimeouts()


def _all_queues() -> list[str]:
    rows: Callable[..., Any] = Queue.objects.using(conf().database).order_by("name").values_list
    return list(rows("name", flat=True))
