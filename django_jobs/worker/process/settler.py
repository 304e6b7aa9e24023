"""The thread that settles endings: all that were added during the previous write.

Of the threads of a worker process, only this one always has its connection. So it also does what
must not wait for a connection: it looks for cancels, and gives back unstarted jobs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from ...domain.outcomes import Succeeded
from ...lifecycle import workers
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.settling import Ending, HandOver, Settled
from ...lifecycle.settling_rows import (
    give_back_unlocked,
    locked_by_others,
    note_triggers,
    settle_with_fallback,
)
from ...models.database import is_blocked
from ..connections import (
    close_others,
    drop_connection,
    has_news,
    own_connection,
    ping,
    retry_while_disconnected,
)
from ..context.background import Task
from ..events import emit_settled, emit_throttled
from ..ipc.scoreboard import StartedJob, WorkerSlot
from ..pools.claimed_jobs import ClaimedJobs
from ..statement_timeout import StatementTimedOut, StatementTimeout
from ..wakeup import AwaitedEnds

FRESH_SECONDS = 0.1
"""A job may start for this long after its claim, or after a look for cancels, without another look.
Few wait longer: if jobs take a millisecond, none does."""

LOOK_SECONDS = FRESH_SECONDS / 2
"""Seconds between two looks of the settler while jobs wait here and others end, so that few threads
have to request one. If none ends, it looks once a second."""


class Cancels:
    """The jobs of this process whose cancel was requested, and when the table was last read.

    A cancel request is stored in the row. Its notification only makes it faster. The settler reads
    the table, because it has a connection if others have none.
    """

    def __init__(self, slot: WorkerSlot) -> None:
        self.asked: frozenset[int] = frozenset()
        self._slot = slot
        self._looked_at = 0.0
        self._began_at = 0.0

    def are_due(self, claimed_at: float) -> bool:
        """Whether to read the table for jobs that were claimed at ``claimed_at``, a time of
        ``time.monotonic()``, or later. Jobs that start soon need no look: in a drain of short jobs
        the looks took 6 % of the time of their thread."""
        return time.monotonic() >= max(self._looked_at, claimed_at) + LOOK_SECONDS

    def look(self) -> None:
        """Read the table, on the connection of the calling thread."""
        began_at = time.monotonic()
        asked = workers.cancels_asked([self._slot.worker])
        # In this order: a reader of the time also finds the requests until then.
        self.asked = frozenset(job for _, job, _ in asked)
        self._began_at, self._looked_at = began_at, time.monotonic()

    def cover(self, job: ClaimedJob, now: float) -> bool:
        """Whether ``asked`` decides if this job may start. A look that began before the claim may
        have found an earlier job with the same id, from before the table was emptied."""
        if now > job.taken_at + FRESH_SECONDS and now >= self._looked_at + FRESH_SECONDS:
            return False
        return job.id not in self.asked or self._began_at >= job.taken_at

    def refresh(self, job: ClaimedJob, deadline: StatementTimeout) -> None:
        """Read the table before this job starts, unless another thread has done so meanwhile.
        Raises :class:`StatementTimedOut`."""
        if not self.cover(job, time.monotonic()):
            retry_while_disconnected(
                self.look,
                what="look for cancels",
                give_up=lambda: not self._slot.may_start(job.worker, time.monotonic()),
                deadline=deadline,
            )


R = TypeVar("R")

BATCH = 500
BATCH_BYTES = 16 * 2**20
"""Of results. A batch that has as many is full: the statement takes several times its size."""

GATHER = 200
GATHER_SECONDS = 0.01
"""While more jobs wait here, a write waits up to this long for this many endings: a statement costs
half a millisecond of both processors in addition to its rows. If no job waits, an ending is written
at once."""

LOCKED_SECONDS = 1.0
"""Seconds between two tries for locked rows, and between two checks of an idle connection."""

LOCK_SHARE = 0.8
"""Of the time of a statement. An ending that is written alone waits so long for a lock, so that the
error says whether it was one."""
A_LOCK = "another session holds a lock"

COMPARE_SECONDS = 1.0
"""Seconds for which the slots of a line pass to its next job. Then they go to the best of all
lines, for which an admission looks at these."""
MOST_LINES = 10_000
"""Lines of which that time is known. With more of them it begins anew for all."""


class Settler:
    """Takes endings from any thread and settles them on its own connection."""

    def __init__(
        self,
        slot: WorkerSlot,
        claimed: ClaimedJobs,
        *,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="django_jobs-settler", daemon=True)
        self.deadline = StatementTimeout(3.0)
        self.unkept_queues: frozenset[str] = frozenset()
        self.on_hand_over: Callable[[HandOver], None] = lambda handed: None
        self.awaited = AwaitedEnds()
        self.cancels = Cancels(slot)
        self._slot = slot
        self._claimed = claimed
        self._at_end = at_end
        self._pending: deque[tuple[Ending, StartedJob]] = deque()
        self._locked: list[tuple[Ending, StartedJob]] = []
        self._unstarted: deque[ClaimedJob] = deque()
        self._unstarted_locked: list[ClaimedJob] = []
        self._submitted: SimpleQueue[Task[Any]] = SimpleQueue()
        self._look_asked = False
        self._dropped: frozenset[int] = frozenset()
        self._something = threading.Event()
        self._enough = threading.Event()
        self._retry_locked_at = 0.0
        self._compared_at: dict[str, float] = {}
        self._finishing = False

    def add(self, ending: Ending, entry: StartedJob) -> None:
        """Settle ``ending`` soon. ``entry`` is its entry on the scoreboard."""
        if (result := _result_of(ending)) is not None:
            self._claimed.weigh(ending.job, len(result))
        self._pending.append((ending, entry))
        if not self._something.is_set():
            self._something.set()
        if len(self._pending) >= GATHER and not self._enough.is_set():
            self._enough.set()

    def give_back(self, unstarted: Iterable[ClaimedJob]) -> None:
        """Give back these jobs soon. They have not started and no longer wait for a thread. Those
        with a cancel request become ``cancelled``."""
        self._unstarted.extend(unstarted)
        self._wake()

    def look_soon(self) -> None:
        """Look for cancels soon: a waiting job may have been cancelled."""
        self._look_asked = True
        self._wake()

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Call ``work`` on the connection of this thread, between two writes."""
        task = Task(work)
        self._submitted.put(task)
        self._wake()
        return task.result

    def finish(self) -> None:
        """Write the remaining endings, run the last tasks, and end the thread."""
        self._finishing = True
        self._something.set()

    def report(self, settled: Settled, entry: StartedJob) -> None:
        """Note that an attempt is settled, and send its signals."""
        self._end(settled.ending.job, entry, settled.failed)
        emit_settled([settled])
        if self.awaited:
            self.awaited.notify([settled])

    def let_go(self, job: ClaimedJob, entry: StartedJob | None) -> None:
        """Remove an attempt that needs nothing more of this process. ``entry`` is its entry on the
        scoreboard; None if it never started."""
        if entry is None:
            self._claimed.remove_all([job])
        else:
            self._end(job, entry, entry.failed)

    def _end(self, job: ClaimedJob, entry: StartedJob, failed: bool) -> None:
        self._slot.free(entry)
        self._claimed.end([job], failed)

    def _wake(self) -> None:
        self._something.set()
        self._enough.set()

    def _run(self) -> None:
        # Before anything is claimed: what runs has to be settled, however few connections there are
        # by then. It is kept.
        wrapper = own_connection(note=self._slot.note_settling, keeps_plans=True)
        while True:
            if has_news(wrapper.connection):
                with suppress(StatementTimedOut):
                    self._retry(ping, "connect to settle", self._is_in_vain)
                    self._retry(note_triggers, "look for triggers", self._is_in_vain)
            self._something.wait(LOCKED_SECONDS)
            self._something.clear()
            self._serve_others()
            while self._pending:
                if len(self._pending) < GATHER and self._claimed.waiting and not self._hands_over:
                    self._enough.clear()
                    self._enough.wait(GATHER_SECONDS)
                self._settle_batch()
                self._retry_locked()
                self._serve_others()
            self._retry_locked()
            if self._finishing and not (self._pending or self._locked or self._unstarted_locked):
                self._at_end()
                drop_connection()
                return

    def _serve_others(self) -> None:
        while not self._submitted.empty():
            self._submitted.get().run()
        if self._unstarted:
            self._give_back([self._unstarted.popleft() for _ in range(len(self._unstarted))])
        claimed = self._claimed
        if claimed.waiting and (self._look_asked or self.cancels.are_due(claimed.waits_since)):
            self._look_asked = False
            self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        """Give back jobs that were cancelled before they started, which makes them
        ``cancelled``."""
        try:
            self._retry(self.cancels.look, "look for cancels", lambda: not self._claimed.waiting)
        except StatementTimedOut:
            return
        asked = self.cancels.asked
        if asked - self._dropped:
            for line in self._claimed.lines:
                unstarted = line.take_unstarted()
                line.put_back(job for job in unstarted if job.id not in asked)
                self._give_back([job for job in unstarted if job.id in asked])
        self._dropped = asked

    def _give_back(self, unstarted: list[ClaimedJob]) -> bool:
        """Give these back, and keep those that are locked for later. False if it took too long."""
        in_time = True
        fences = {job.fence for job in unstarted}
        self._claimed.begin_return(unstarted)
        try:
            left = self._retry(lambda: give_back_unlocked(fences), "give back", self._lease_is_over)
        except StatementTimedOut:
            left, in_time = fences, False
        # Jobs of an earlier worker of this process are left to the reaper.
        locked = {fence for fence in left or () if fence[2] == self._slot.worker}
        self._claimed.remove_all(job for job in unstarted if job.fence not in locked)
        if locked:
            self._unstarted_locked += [job for job in unstarted if job.fence in locked]
            self._retry_locked_at = time.monotonic() + LOCKED_SECONDS
        return in_time

    def _give_back_by_run(self) -> None:
        """Give back what was kept, the steps of each run apart: one that was cancelled waits for
        its run. The first that take too long go behind the others."""
        left, self._unstarted_locked = self._unstarted_locked, []
        in_time = True
        while left and in_time:
            run = left[0].workflow_run_id
            alike = [job for job in left if job.workflow_run_id == run]
            left = [job for job in left if job.workflow_run_id != run]
            in_time = self._give_back(alike)
        self._unstarted_locked = left + self._unstarted_locked

    @property
    def _hands_over(self) -> bool:
        """Whether other jobs may wait for the slots of what has ended."""
        return self._pending[0][0].job.gates is not None

    def _settle_batch(self) -> None:
        batch, size = [self._pending.popleft()], 0
        while self._pending and len(batch) < BATCH:
            size += len(_result_of(batch[-1][0]) or "")
            if size >= BATCH_BYTES:
                break
            batch.append(self._pending.popleft())
        try:
            self._write(batch)
        except StatementTimedOut:
            # One of the rows is locked, or a transaction that is still open has taken the key of a
            # job in the queue to which its retry goes. The others do not wait for it.
            for ending, _ in batch:
                if ending.job.idempotency_key is not None:
                    ending.stay("its idempotency key may be held there")
            self._write_unlocked(batch)

    def _retry_locked(self) -> None:
        if not (self._locked or self._unstarted_locked) or time.monotonic() < self._retry_locked_at:
            return
        if self._unstarted_locked:
            self._give_back_by_run()
        if self._locked:
            batch, self._locked = self._locked[:BATCH], self._locked[BATCH:]
            self._write_unlocked(batch)

    def _write_unlocked(self, batch: list[tuple[Ending, StartedJob]]) -> None:
        """Write the endings whose rows are not locked, and keep the others for later. Writes each
        alone, because the batch may have failed for being too large for one statement."""
        ids = [ending.job.id for ending, _ in batch]
        left, reason = deque(batch), A_LOCK
        try:
            locked = (
                self._retry(lambda: locked_by_others(ids), "settle", self._lease_is_lost) or set()
            )
            left = deque(sorted(batch, key=lambda pending: pending[0].job.id in locked))
            while left and left[0][0].job.id not in locked:
                self._write([left[0]], LOCK_SHARE * self.deadline.seconds)
                left.popleft()
        except StatementTimedOut as error:  # locked since, its run is, too large, or no answer
            if not (isinstance(error.__cause__, Exception) and is_blocked(error.__cause__)):
                reason = f"it takes longer than {self.deadline.seconds:g} s"
        if left:
            job = left[0][0].job
            fields = {"job_id": job.id, "attempt": job.attempt, "jobs": len(left), "reason": reason}
            emit_throttled("settle_blocked", logging.WARNING, **fields)
            # The others go first the next time. They do not wait for its run.
            self._locked += sorted(left, key=lambda pending: _wait_together(pending[0].job, job))
            self._retry_locked_at = time.monotonic() + LOCKED_SECONDS

    def _write(
        self, batch: Sequence[tuple[Ending, StartedJob]], lock_seconds: float | None = None
    ) -> None:
        endings = [ending for ending, _ in batch]
        if self.unkept_queues:
            for ending in endings:
                ending.kept = ending.job.queue not in self.unkept_queues
        handed = HandOver(compared=self._compared(endings))
        settled = self._retry(
            lambda: settle_with_fallback(endings, handed, lock_seconds),
            "settle",
            self._lease_is_lost,
        )
        if handed.queues or handed.freed:
            self.on_hand_over(handed)
        for _, entry in batch:
            self._slot.free(entry)
        failed = sum(one.failed for one in settled or ())
        self._claimed.end([ending.job for ending in endings], failed)
        emit_settled(settled or ())
        if self.awaited:
            self.awaited.notify(settled or ())
        close_others()

    def _compared(self, endings: Sequence[Ending]) -> set[str]:
        """The gates of those whose slots are compared: handed over within its line each time, a
        slot would never come to a better job of another line."""
        lines = {gates for ending in endings if (gates := ending.job.gates) is not None}
        if not lines:
            return set()
        if len(self._compared_at) > MOST_LINES:
            self._compared_at.clear()
        now = time.monotonic()
        compared = set()
        for gates in lines:
            if now - self._compared_at.setdefault(gates, now) >= COMPARE_SECONDS:
                self._compared_at[gates] = now
                compared.add(gates)
        return compared

    def _retry(self, work: Callable[[], R], what: str, give_up: Callable[[], bool]) -> R | None:
        return retry_while_disconnected(work, what=what, give_up=give_up, deadline=self.deadline)

    def _is_in_vain(self) -> bool:
        """Whether to stop waiting for the database, because others wait for this thread and its
        endings can be dropped."""
        return self._finishing or (bool(self._claimed) and self._lease_is_over())

    def _lease_is_lost(self) -> bool:
        """Whether an ending may be dropped, because the fence would refuse it."""
        return self._slot.lease_lost

    def _lease_is_over(self) -> bool:
        """Whether unstarted jobs may be left to the reaper."""
        return self._slot.lease_lost or time.monotonic() >= self._slot.lease_until


def _wait_together(one: ClaimedJob, other: ClaimedJob) -> bool:
    """Whether what the end of one job waits for may hold up the other: its row, or their run."""
    return one is other or one.workflow_run_id == other.workflow_run_id is not None


def _result_of(ending: Ending) -> str | None:
    """The result of a success, as JSON text."""
    outcome = ending.outcome
    return outcome.result if isinstance(outcome, Succeeded) else None
