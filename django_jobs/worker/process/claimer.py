"""The thread that keeps the executor fed: registers, promotes, claims, sleeps until there is
something to do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ...lifecycle import claiming, settling, workers
from ...lifecycle.claiming import START, ClaimedJob, QueuePosition
from ...lifecycle.notifying import CANCELLED
from ...lifecycle.settling_rows import give_back_unlocked
from ...models.database import DATABASE_ERRORS
from ..connections import drop_connection, own_connection, retry_while_disconnected
from ..events import emit, emit_throttled
from ..ipc.scoreboard import CAPACITY, WorkerSlot
from ..options import Options, QueueSelector, claimable, worker_info
from ..statement_timeout import StatementTimedOut, StatementTimeout
from ..wakeup import WakeEvent
from .cancels import LOOK_SECONDS, Cancels
from .claimed_jobs import SMALL, ClaimedJobs
from .executor import Executor
from .poller import Poller

PREFETCH_SECONDS = 0.5
"""Work that may wait in this process. What waits here, no idle worker elsewhere can take."""

PREFETCH_LIMIT = 600
CLAIM_LIMIT = 300
CLAIMED_LIMIT = CAPACITY - PREFETCH_LIMIT
CLAIMED_BYTES = 32 * 2**20
"""Of payloads, that may wait in this process. With more, it claims for free threads only."""

RESTART_SECONDS = 1.0
"""How often a claim goes back to the head of its queue, where a job of a long transaction, a
better priority or a retry may have entered behind our place."""

CONNECTING_SECONDS = 0.02
"""How often it is looked whether the rest of the tree has its connections."""

SETBACK_SECONDS = 1.0
"""How long to wait where the heartbeat is late, or a lock in the way."""


class Claimer:
    """Claims for one worker process. All of it runs on its own thread and connection."""

    def __init__(
        self,
        options: Options,
        slot: WorkerSlot,
        executor: Executor,
        claimed: ClaimedJobs,
        cancels: Cancels,
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="django_jobs-claimer", daemon=True)
        self.drained = threading.Event()
        self.registered = threading.Event()
        self.draining = False
        self.deadline = StatementTimeout()
        self._empty_rounds = 0
        self._options = options
        self._slot = slot
        self._executor = executor
        self._claimed = claimed
        self._cancels = cancels
        self._cancelled: frozenset[int] = frozenset()
        self._cancel_hint = False
        self._wake_event = WakeEvent()
        self._hungry = False
        self._selector = QueueSelector(options.queues, options.strict)
        self._queues = dict.fromkeys(share.name for share in options.queues)
        self._promising = set(self._queues)
        self._positions: dict[str, QueuePosition] = {}
        self._restarted = self._oldest_unstarted = 0.0
        self._shows_queues = True
        self._poller = Poller(list(self._queues), options.poll, every=options.every_queue)
        self._count_at = time.monotonic() + options.lease

    def on_notify(self, hint: str | None) -> None:
        """There may be something to claim, in the queue ``hint`` or in any; or something that is
        held may have been cancelled. What else is notified says nothing."""
        if hint == CANCELLED:
            self._cancel_hint = True
            self._wake_event.set()
        elif hint is None or hint in self._queues:
            self._promising.update(self._queues if hint is None else (hint,))
            self._poller.poll_again_soon()
            self._wake_event.set()

    def hungry(self) -> None:
        """The executor has room. Cheap where the claimer is not waiting for it."""
        if self._hungry:
            self._hungry = False  # once is enough
            self._wake_event.set()

    def drain(self) -> None:
        """Claim no more and give back what has not started."""
        self.draining = True
        self._wake_event.set()

    def _run(self) -> None:
        own_connection()
        self._wait_for_others()
        self._register()
        self.registered.set()
        while not self.draining:
            self._hungry = False
            self._wait_for_others()
            if self._slot.lease_lost:
                self._begin_again()
            self._rest(self._retrying(self._guarded_round))
        unstarted = self._executor.take_unstarted()
        while unstarted := self.give_back(unstarted):
            time.sleep(SETBACK_SECONDS)
        retry_while_disconnected(
            lambda: workers.mark_draining([self._slot.worker]),
            what="show the drain",
            give_up=lambda: True,
        )
        drop_connection()
        self.drained.set()

    def _wait_for_others(self) -> None:
        """What settles and what renews has its connection first, and gets ours if it has none."""
        while not (self.draining or self._slot.may_claim):
            if self._slot.is_short:
                drop_connection()
            self._wake_event.wait(CONNECTING_SECONDS)

    def _rest(self, seconds: float) -> None:
        """Sleep until woken, and keep an eye on what waits here meanwhile."""
        if not self._executor.jobs.empty():
            seconds = min(seconds, PREFETCH_SECONDS)  # it may have to go back by then
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            waits = not self._executor.jobs.empty()
            if self._wake_event.wait(min(left, LOOK_SECONDS) if waits else left):
                return
            self._retrying(self._drop_cancelled)

    def _retrying(self, work: Callable[[], float]) -> float:
        try:
            pause = retry_while_disconnected(
                work,
                what="claim",
                give_up=lambda: self.draining or not self._slot.may_claim,
                deadline=self.deadline,
            )
            return pause or 0.0
        except StatementTimedOut:
            # An open transaction holds the row of a queue with a limit, or the server is
            # deaf. What runs here goes on.
            emit_throttled("claim_blocked", logging.WARNING, worker=self._slot.worker)
            return SETBACK_SECONDS

    def _guarded_round(self) -> float:
        if time.monotonic() >= self._count_at:
            self._give_back_unknown()
            self._count_at = time.monotonic() + self._options.lease
        try:
            return self._round()
        except DATABASE_ERRORS:
            self._count_at = 0.0  # a claim may have been made whose answer never came
            raise

    def _give_back_unknown(self) -> None:
        """Return jobs that are this worker's in the table and nowhere in this process: the answer
        to their claim was lost, and its lease would be renewed for ever."""
        worker = self._slot.worker
        unknown = [job.fence for job in claiming.claimed_by(worker) if job not in self._claimed]
        if unknown:
            given = settling.give_back(unknown)
            emit("stranded_jobs", logging.WARNING, worker=worker, given_back=len(given))

    def _round(self) -> float:
        """Claim what there is room for. Returns how long to sleep, in seconds; 0 to go on."""
        self._drop_cancelled()
        self._return_hoarded()
        self._hungry = True
        if not self._lease_is_safe():
            return SETBACK_SECONDS
        room = self._room()
        if room <= 0:
            return self._options.poll
        now = time.monotonic()
        # By time and not only when idle: jobs that come due, and queues whose limit is new, must
        # not wait for the end of another queue's backlog.
        polls = now >= self._poller.next_at or not self._promising
        ready = self._poll(now) if polls else frozenset()
        self._promising |= ready
        taken = self._claim_all(self._selector.order(self._promising), room)
        if taken >= room:
            return 0.0
        if taken:
            self._poller.poll_again_soon()
        elif not polls:
            self._poller.poll_now()  # what promised something has nothing; look before sleeping
            return 0.0
        elif self._options.burst and self._poller.due_at > now:
            return self._rest_in_burst(bool(ready))
        return max(self._poller.next_at - time.monotonic(), 0.001)

    def _poll(self, now: float) -> frozenset[str]:
        """The queues that have something ready, after what this process serves was brought up to
        date."""
        ready = self._poller.poll(now)
        if self._poller.queues != list(self._queues):
            self._shows_queues = False
            self._selector.serve(self._poller.queues)
            self._queues = dict.fromkeys(self._poller.queues)
            self._promising.intersection_update(self._queues)
        if not self._shows_queues:
            self._shows_queues = workers.serve(self._slot.worker, self._poller.queues)
        return ready

    def _claim_all(self, order: list[str], room: int) -> int:
        if time.monotonic() - self._restarted > RESTART_SECONDS:
            self._restarted = time.monotonic()
            self._positions.clear()
        taken, behind_limited = 0, False
        for queue in order:
            most = room - taken
            limited = queue in self._poller.limited
            if limited:
                # Its running jobs are counted in the whole fleet, so none is held for later than
                # the next free thread.
                claimed = self._claimed.count_in(self._poller.limited)
                most = min(most, self._options.threads - claimed)
            elif self._options.strict and behind_limited:
                # What is read ahead from here would stand before the next job of that queue.
                most = min(most, self._options.threads - len(self._claimed))
            behind_limited = behind_limited or limited
            if most <= 0 or self._slot.lease_lost:
                continue
            jobs = self._claim(queue, most, limited)
            taken += len(jobs)
            self._hand_over(jobs)
        return taken

    def _claim(self, queue: str, limit: int, limited: bool) -> list[ClaimedJob]:
        # Before the claim: a call that comes during it counts.
        self._promising.discard(queue)
        jobs = claiming.claim(
            queue,
            worker=self._slot.worker,
            job_types=claimable(self._options),
            limit=limit,
            after=self._positions.get(queue, START),
            limited=limited,
            most_bytes=max(CLAIMED_BYTES - self._claimed.bytes, 0),
        )
        # Of large ones there may be more than the bytes had room for.
        if len(jobs) < limit and all(len(job.payload) <= SMALL for job in jobs):
            self._positions.pop(queue, None)
        else:
            self._promising.add(queue)
            self._positions[queue] = jobs[-1].position
        return jobs

    def _hand_over(self, jobs: list[ClaimedJob]) -> None:
        if not jobs:
            return
        if self._claimed.has_any(jobs):
            self._disown(jobs)
            return
        if self._executor.jobs.empty():
            self._oldest_unstarted = time.monotonic()
        self._claimed.add(jobs)
        for job in jobs:
            self._executor.jobs.put(job)

    def _disown(self, jobs: list[ClaimedJob]) -> None:
        """An attempt was claimed that this process holds already: the table was emptied and counts
        from 1 again, or it was restored from a backup. By their fences the two are
        alike, so the worker gives up its identity, and its old attempts match nothing."""
        worker = self._slot.worker
        self._slot.lose_lease(worker)
        given = settling.give_back([job.fence for job in jobs])
        emit("claimed_twice", logging.ERROR, worker=worker, given_back=len(given))

    def _room(self) -> int:
        """How many jobs to claim now."""
        ahead = self._ahead()
        self._executor.refill_below = ahead // 2
        # Counted from what is held, and not from idle threads: a job just taken by a thread that
        # does not yet count as busy would be claimed for twice.
        held = len(self._claimed)
        if ahead and self._executor.jobs.qsize() > ahead // 2:
            return 0
        if self._claimed.bytes > CLAIMED_BYTES // 2:  # half: not filled one by one
            ahead = 0
        room = min(self._options.threads + ahead, CLAIMED_LIMIT) - held
        if self._options.max_jobs is not None:
            room = min(room, self._options.max_jobs - held - self._claimed.ended)
        # What one claim takes: with more, the turn of one queue would be half another one's.
        return min(room, CLAIM_LIMIT)

    def _ahead(self) -> int:
        """How many jobs may wait here: as many as the threads begin soon."""
        able = self._executor.unstuck(PREFETCH_SECONDS)
        ahead = min(self._executor.pace.jobs_in(able * PREFETCH_SECONDS), PREFETCH_LIMIT)
        return ahead if ahead >= able else 0  # a job of the half second is not worth holding

    def _drop_cancelled(self) -> float:
        """Give back what was cancelled before it began: that makes it ``cancelled``."""
        waits = not self._executor.jobs.empty()
        if not (waits and (self._cancel_hint or self._cancels.are_due(self._executor.claimed_at))):
            return 0.0
        self._cancel_hint = False
        self._cancels.look()
        asked = self._cancels.asked
        if asked - self._cancelled:
            unstarted = self._executor.take_unstarted()
            for job in unstarted:
                if job.id not in asked:
                    self._executor.jobs.put(job)
            for job in self.give_back([job for job in unstarted if job.id in asked]):
                self._executor.jobs.put(job)
        self._cancelled = asked
        return 0.0

    def _return_hoarded(self) -> None:
        """Give back what would wait here too long: its claim had seen quick jobs, and slow came."""
        executor, now = self._executor, time.monotonic()
        if executor.jobs.empty():
            self._oldest_unstarted = now
        waited = now - max(self._oldest_unstarted, executor.claimed_at)
        if waited > PREFETCH_SECONDS and executor.jobs.qsize() > (ahead := self._ahead()):
            unstarted = executor.take_unstarted()
            for job in unstarted[:ahead]:
                executor.jobs.put(job)
            for job in self.give_back(unstarted[ahead:]):
                executor.jobs.put(job)

    def give_back(
        self, unstarted: list[ClaimedJob], deadline: StatementTimeout | None = None
    ) -> list[ClaimedJob]:
        """Return these to the table. Those that come back are ours still: their rows are locked.
        From any thread."""
        worker = self._slot.worker
        held = [job.fence for job in unstarted if job.worker == worker]
        left = retry_while_disconnected(
            lambda: give_back_unlocked(held),
            what="give back",
            give_up=lambda: not self._lease_is_safe(),
            deadline=deadline,
        )
        locked = [job for job in unstarted if job.fence in (left or ())]
        self._claimed.remove_all(job for job in unstarted if job not in locked)
        return locked

    def _lease_is_safe(self) -> bool:
        """Whether a claim made now would still be ours when it is written."""
        margin = min(1.0, self._options.lease / 10)
        return time.monotonic() < self._slot.lease_until - margin and not self._slot.lease_lost

    def _rest_in_burst(self, ready: bool) -> float:
        """Nothing was claimed: drain once nothing is held either. What is still ready is not for
        this process (unknown types, a paused queue); it is tried once more all the same."""
        self._poller.poll_now()
        if self._claimed:
            self._empty_rounds = 0
            return 0.05
        self._empty_rounds += 1
        if not ready or self._empty_rounds > 1:
            self.draining = True
        return 0.0

    def _begin_again(self) -> None:
        """The lease was lost: what was held is on its way to others. Go on as a new worker."""
        emit("lease_lost", logging.WARNING, worker=self._slot.worker, jobs=len(self._claimed))
        unstarted = self._executor.take_unstarted()
        self.give_back(unstarted)  # where its rows are from an earlier time, no reaper does
        self._claimed.remove_all(unstarted)
        self._cancelled = frozenset()  # an id may come back, of another job
        self._register()

    def _register(self) -> None:
        asked_at = time.monotonic()
        info = worker_info(self._options, list(self._queues))

        def register() -> int:
            nonlocal asked_at
            asked_at = time.monotonic()
            return workers.register(info)

        worker = retry_while_disconnected(register, what="register", give_up=lambda: self.draining)
        if worker is not None:
            self._slot.register(worker, asked_at + self._options.lease)
            self._shows_queues = True
            emit(
                "worker_started",
                logging.INFO,
                worker=worker,
                pid=info.pid,
                queues=list(self._queues),
            )
