"""The thread that registers the worker, promotes and claims jobs, and sleeps until there is
work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence

from ...lifecycle import claiming, settling, workers
from ...lifecycle.claiming import START
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.notifying import AWAITED, BLOCKED, BLOCKED_BY_KEY, CANCELLED, GATES, notify
from ...lifecycle.settling import HandOver
from ...models.database import DATABASE_ERRORS
from ..connections import drop_connection, own_connection, retry_while_disconnected
from ..events import emit, emit_throttled
from ..ipc.scoreboard import CAPACITY, WorkerSlot
from ..options import Options, worker_info
from ..poller import Admitter, Poller
from ..pools.claimed_jobs import SMALL, ClaimedJobs
from ..pools.pool import PREFETCH_LIMIT, Pool
from ..pools.queue_selector import mixed
from ..statement_timeout import StatementTimedOut, StatementTimeout
from .executor import Executor
from .settler import Settler
from .stranded_jobs import StrandedJobs

CLAIM_LIMIT = 300
CLAIMED_LIMIT = CAPACITY - 2 * PREFETCH_LIMIT  # that of the threads, and that of the loop
CLAIMED_BYTES = 32 * 2**20
"""The most bytes of payloads that wait in this process. Above that it claims only for free
slots."""

RESTART_SECONDS = 1.0
"""Seconds after which a claim starts at the head of its queue again, because a job of a long
transaction, a higher priority or a retry may have entered before the last position."""

CONNECTING_SECONDS = 0.02
"""Seconds between two checks whether the rest of the tree has its connections."""

SETBACK_SECONDS = 1.0
"""Seconds to wait if the heartbeat is late or a lock is in the way."""


class Claimer:
    """Claims for all pools of one worker process, on its own thread and connection."""

    def __init__(
        self,
        options: Options,
        slot: WorkerSlot,
        claimed: ClaimedJobs,
        pools: Sequence[Pool],
        settler: Settler,
        executor: Executor,
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="django_jobs-claimer", daemon=True)
        self.drained = threading.Event()
        self.registered = threading.Event()
        self.deadline = StatementTimeout()
        self._empty_rounds = 0
        self._options = options
        self._slot = slot
        self._claimed = claimed
        self._pools = pools
        self._settler = settler
        self._executor = executor
        self._wake_event = claimed.wake_event
        self._restarted = 0.0
        self._shows_queues = True
        self._poller = Poller(self._queues, options.poll, every=options.every_queue)
        self._admitter = Admitter(options.poll)
        settler.on_hand_over = self._on_hand_over
        self._stranded_jobs = StrandedJobs(
            options.lease, slot, claimed, settler, draining=lambda: self.draining
        )

    @property
    def _queues(self) -> list[str]:
        return list(dict.fromkeys(queue for pool in self._pools for queue in pool.queues))

    @property
    def draining(self) -> bool:
        """Whether it has stopped claiming."""
        return self._executor.draining

    def on_notify(self, hint: str | None) -> None:
        """Handle a notification: a queue may have work, a claimed job may be cancelled, or the end
        of a job is waited for. ``hint`` None or ``GATES`` means any queue. Unknown hints are
        ignored."""
        if hint == CANCELLED:
            self._settler.look_soon()
            return
        if hint is not None and hint.startswith(AWAITED):
            self._settler.awaited.note(hint)
            return
        if hint is not None and hint.startswith((BLOCKED, BLOCKED_BY_KEY)):
            if hint.removeprefix(BLOCKED).removeprefix(BLOCKED_BY_KEY) in self._queues:
                self._admitter.look_now(keyed=hint.startswith(BLOCKED_BY_KEY))
                self._poller.poll_again_soon()
                self._wake_event.set()
            return
        for pool in self._pools:
            if hint in (None, GATES):
                pool.expect(pool.queues)
            elif hint in pool.queues:
                pool.expect([hint])
            else:
                continue
            self._admitter.look_soon()
            self._poller.poll_again_soon()
            self._wake_event.set()

    def _on_hand_over(self, handed: HandOver) -> None:
        """Look for what a settle made ready. Called by the settler, on its connection."""
        self._admitter.hand_over(handed)
        self._wake_event.set()
        for queue in handed.queues.difference(self._queues):
            notify(queue)

    def drain(self) -> None:
        """Stop claiming. The executor takes back the jobs that have not started."""
        self._executor.draining = True
        self._wake_event.set()

    def _run(self) -> None:
        own_connection()
        self._wait_for_others()
        self._register()
        self.registered.set()
        while not self.draining:
            for pool in self._pools:
                pool.line.wants_more = False
            self._wait_for_others()
            if self._slot.lease_lost:
                self._begin_again()
            if (pause := self._retrying_round()) > 0:
                self._wake_event.wait(pause)
        retry_while_disconnected(
            lambda: workers.mark_draining([self._slot.worker]),
            what="show the drain",
            give_up=lambda: True,
        )
        drop_connection()
        self.drained.set()

    def _wait_for_others(self) -> None:
        """Wait until the settler and the heartbeat have their connections, and close ours if one
        has none."""
        while not (self.draining or self._slot.may_claim):
            if self._slot.is_short:
                drop_connection()
                self._stranded_jobs.look_soon()  # which shows that the settler's connection works
            self._wake_event.wait(CONNECTING_SECONDS)

    def _retrying_round(self) -> float:
        try:
            pause = retry_while_disconnected(
                self._guarded_round,
                what="claim",
                give_up=lambda: self.draining or not self._slot.may_claim,
            )
            return pause or 0.0
        except StatementTimedOut:
            # An open transaction holds the row of a queue with a limit, or the server does not
            # answer. Handlers that run here do not need it.
            emit_throttled("claim_blocked", logging.WARNING, worker=self._slot.worker)
            return SETBACK_SECONDS

    def _guarded_round(self) -> float:
        if not self._stranded_jobs.give_back_if_due():
            return SETBACK_SECONDS
        try:
            with self.deadline:
                return self._round()
        except DATABASE_ERRORS as error:
            self._stranded_jobs.look_soon()
            if self.deadline.cut_short(error):
                drop_connection()
                raise StatementTimedOut("claim") from error
            raise

    def _round(self) -> float:
        """Claim as many jobs as there is room for. Returns the seconds to sleep; 0 to continue at
        once."""
        for pool in self._pools:
            pool.line.wants_more = True
        if not self._slot.is_safe(self._options.lease):
            return SETBACK_SECONDS
        rooms = [(pool, room) for pool in self._pools if (room := self._room(pool)) > 0]
        if not rooms:
            return self._options.poll
        may_be_over = self._options.burst and len(rooms) == len(self._pools)  # none is full
        now = time.monotonic()
        was_idle = not self._claimed  # before the poll: what ends after it may have made jobs ready
        room_in: dict[str, int] = {}
        for pool, room in rooms:
            room_in |= {queue: max(room, room_in.get(queue, 0)) for queue in pool.queues}
        self._reopen(self._admitter.take_queues() | self._admitter.admit(room_in))
        # By time and not only when idle: jobs that become due, and queues with a new limit, must
        # not wait for the end of another queue's backlog.
        polls = now >= self._poller.next_at or not (
            any(pool.promising for pool in self._pools)
            or (self._claimed and self._poller.polled_recently(now))
        )
        ready = self._poll(now) if polls else frozenset()
        for pool in self._pools:
            pool.expect(ready)
        if polls:
            self._reopen(self._admitter.admit(room_in))
        expects_some = any(pool.promising for pool, _ in rooms)
        taken, is_full = 0, False
        for pool, room in rooms:
            if (room := min(room, self._room_in_process())) <= 0:
                break
            claimed = self._claim_all(pool, room)
            taken += claimed
            is_full = is_full or claimed >= room
        self._admitter.note_claimed(taken, is_full=is_full)
        if is_full:
            return 0.0
        if taken:
            self._poller.poll_again_soon()
        elif not polls and expects_some:
            self._poller.poll_now()  # the promising queues are empty; poll before sleeping
            return 0.0
        elif may_be_over and self._poller.due_at > now and self._admitter.is_done:
            return self._rest_in_burst(was_idle, bool(ready))
        return max(min(self._poller.next_at, self._admitter.next_at) - time.monotonic(), 0.001)

    def _reopen(self, queues: Collection[str]) -> None:
        """Claim from the heads of these queues: blocked jobs have become ready there."""
        for queue in queues:
            for pool in self._pools:
                pool.positions.pop(queue, None)
                pool.expect([queue])

    def _poll(self, now: float) -> frozenset[str]:
        """The queues that have ready jobs. First updates the queues that this process serves."""
        ready = self._poller.poll(now)
        self._settler.unkept_queues = self._poller.unkept
        if self._poller.promoted:
            self._admitter.look_soon()
        self._admitter.begin(self._poller.gated)
        if self._poller.queues != self._queues:
            self._shows_queues = False
            for pool in self._pools:  # one, or two: named pools have named queues
                pool.serve(self._poller.queues)
        if not self._shows_queues:
            self._shows_queues = workers.serve(self._slot.worker, self._poller.queues)
        return ready

    def _claim_all(self, pool: Pool, room: int) -> int:
        """Claim ``room`` jobs if there are as many, from each queue its share. Returns how many."""
        if time.monotonic() - self._restarted > RESTART_SECONDS:
            self._restarted = time.monotonic()
            for each in self._pools:
                each.positions.clear()
        among, taken, behind_limited = set(pool.promising), 0, False
        while among and taken < room:
            claims: list[list[ClaimedJob]] = []
            try:
                for queue, share in pool.plan(among, room - taken):
                    jobs = self._claim_share(pool, queue, share, behind_limited=behind_limited)
                    behind_limited = behind_limited or queue in self._poller.limited
                    taken += len(jobs)
                    if len(jobs) < share:
                        among.discard(queue)  # the others get the rest
                    claims.append(self._accept(jobs, on_loop=pool.on_loop))
            finally:
                pool.line.add(mixed(claims))
        return taken

    def _claim_share(
        self, pool: Pool, queue: str, share: int, *, behind_limited: bool
    ) -> list[ClaimedJob]:
        """Claim up to ``share`` jobs of a queue. ``behind_limited``: a queue before it in the order
        has a limit."""
        if limited := queue in self._poller.limited:
            # Its running jobs are counted across all workers, so none is claimed ahead of a free
            # slot.
            limits = self._poller.limited.intersection(pool.queues)
            share = min(share, pool.slots - self._claimed.count_in(limits, on_loop=pool.on_loop))
        elif self._options.strict and behind_limited:
            # Prefetched jobs of this queue would run before the next job of that queue.
            share = min(share, pool.slots - self._claimed_in(pool))
        if share <= 0 or self._slot.lease_lost:
            return []
        jobs = self._claim(pool, queue, share, limited)
        pool.note_claimed(queue, len(jobs))
        return jobs

    def _claim(self, pool: Pool, queue: str, limit: int, limited: bool) -> list[ClaimedJob]:
        # Before the claim: a call that comes during it counts.
        pool.promising.discard(queue)
        began = time.monotonic()
        jobs = claiming.claim(
            queue,
            worker=self._slot.worker,
            job_types=pool.claimable.job_types,
            limit=limit,
            after=pool.positions.get(queue, START),
            limited=limited,
            most_bytes=max(CLAIMED_BYTES - self._claimed.bytes, 0),
            slots=pool.claimable.slots,
            async_types=pool.claimable.async_types,
        )
        # There may be more large ones than the bytes allowed.
        few = len(jobs) < limit and all(len(job.payload) <= SMALL for job in jobs)
        pool.note_look(queue, time.monotonic() - began, self._pools, few=few)
        if few:
            pool.positions.pop(queue, None)
        else:
            pool.promising.add(queue)
            pool.positions[queue] = jobs[-1].position
        return jobs

    def _accept(self, jobs: list[ClaimedJob], *, on_loop: bool = False) -> list[ClaimedJob]:
        """Register claimed jobs as being here. Returns those that may wait for a slot."""
        if self._claimed.has_any(jobs):
            if any(self._claimed.is_claimed(job) for job in jobs):
                self._disown(jobs)
                return []
            # Just given back by the settler, which may not know yet that it did. They are stranded
            # once it is done with them.
            jobs = [job for job in jobs if job not in self._claimed]
            self._stranded_jobs.look_soon()
        self._claimed.add(jobs, on_loop=on_loop)
        return jobs

    def _disown(self, jobs: list[ClaimedJob]) -> None:
        """Give up the worker's identity, because it has claimed an attempt that is already here:
        the table was emptied and ids start at 1 again, or it was restored from a backup. Both
        attempts have the same fence, so the old ones must match nothing."""
        worker = self._slot.worker
        self._slot.lose_lease(worker)
        given = settling.give_back([job.fence for job in jobs])
        emit("claimed_twice", logging.ERROR, worker=worker, given_back=len(given))

    def _room(self, pool: Pool) -> int:
        """The number of jobs to claim now for a pool."""
        ahead = pool.ahead()
        pool.line.refill_below = ahead // 2
        if ahead and len(pool.line) > ahead // 2:
            return 0
        if self._claimed.bytes > CLAIMED_BYTES // 2:  # half, so that it is not filled one by one
            ahead = 0
        room = pool.slots + ahead - self._claimed_in(pool)
        return min(room, self._room_in_process(), CLAIM_LIMIT)

    def _room_in_process(self) -> int:
        """The number of jobs to claim now for all pools together."""
        room = CLAIMED_LIMIT
        if self._options.max_jobs is not None:
            room = min(room, self._options.max_jobs - self._claimed.ended)
        return room - len(self._claimed)

    def _claimed_in(self, pool: Pool) -> int:
        """The number of claimed jobs of a pool. Counts them and not idle slots: one that has just
        taken a job may not count as busy yet, and would be counted twice."""
        if not self._options.named_pools:
            return self._claimed.count(on_loop=pool.on_loop)
        return self._claimed.count_in(pool.queues, on_loop=pool.on_loop)

    def _rest_in_burst(self, was_idle: bool, ready: bool) -> float:
        """Nothing was claimed: drain if no claimed job is left either. Jobs that are still ready
        are not for this process (unknown types, a paused queue), but it tries once more."""
        self._poller.poll_now()
        if self._claimed:
            self._empty_rounds = 0
            return 0.05
        if not was_idle:
            return 0.0
        self._empty_rounds += 1
        if not ready or self._empty_rounds > 1:
            self.drain()
        return 0.0

    def _begin_again(self) -> None:
        """Start again as a new worker after the lease was lost: other workers may take over the old
        jobs."""
        emit("lease_lost", logging.WARNING, worker=self._slot.worker, jobs=len(self._claimed))
        # If its rows come from a backup, no reaper finds them.
        self._settler.give_back(self._claimed.take_unstarted())
        self._register()

    def _register(self) -> None:
        info = worker_info(self._options, self._queues)

        def register() -> None:
            asked_at = time.monotonic()
            worker = workers.register(info)
            self._slot.register(worker, asked_at + self._options.lease)
            self._shows_queues = True
            fields = {"worker": worker, "pid": info.pid, "queues": list(info.queues)}
            emit("worker_started", logging.INFO, **fields)

        retry_while_disconnected(register, what="register", give_up=lambda: self.draining)
