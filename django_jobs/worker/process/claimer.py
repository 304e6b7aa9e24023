"""The thread that registers the worker, promotes and claims jobs, and waits for work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence

from ...lifecycle import workers
from ...lifecycle.notifying import AWAITED, CANCELLED, GATES, INSPECT, notify, read_blocked
from ...lifecycle.settling import HandOver
from ...models.database import DATABASE_ERRORS
from ..connections import drop_connection, own_connection, retry_while_disconnected
from ..events import emit, emit_throttled
from ..ipc.scoreboard import WorkerSlot
from ..options import Options, worker_info
from ..poller import Admitter, Poller
from ..pools.claimed_jobs import ClaimedJobs
from ..pools.pool import Pool
from ..statement_timeout import StatementTimedOut, StatementTimeout
from .claims import Claims, StrandedJobs
from .executor import Executor
from .settler import Settler

CONNECTING_SECONDS = 0.02
"""Seconds between two checks whether the rest of the tree has its connections."""

SETBACK_SECONDS = 1.0
"""Seconds to wait if the heartbeat is late, or the server does not answer a poll."""


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
        self._had_jobs = False
        self._options = options
        self._slot = slot
        self._claimed = claimed
        self._pools = pools
        self._settler = settler
        self._executor = executor
        self._wake_event = claimed.wake_event
        self._shows_queues = True
        self._poller = Poller(self._queues, options.poll, every=options.every_queue)
        self._admitter = Admitter(options.poll, self.deadline.cut_short)
        settler.on_hand_over = self._on_hand_over
        self._stranded_jobs = StrandedJobs(
            options.lease, slot, claimed, settler, draining=lambda: self.draining
        )
        self._claims = Claims(
            pools, claimed, slot, options, self._poller, self._stranded_jobs, self.deadline
        )

    @property
    def _queues(self) -> list[str]:
        return list(dict.fromkeys(queue for pool in self._pools for queue in pool.queues))

    @property
    def draining(self) -> bool:
        return self._executor.draining

    def on_notify(self, hint: str | None) -> None:
        """Handle a notification: a queue may have work, a claimed job may be cancelled, or the end
        of a job is waited for. ``hint`` None or ``GATES`` means any queue. Unknown hints are
        ignored."""
        if hint == CANCELLED:
            self._settler.look_soon()
            return
        if hint == INSPECT:
            self._slot.ask_inspection()
            return
        if hint is not None and hint.startswith(AWAITED):
            self._settler.awaited.note(hint)
            return
        if hint is not None and (blocked := read_blocked(hint)) is not None:
            queue, gate = blocked
            if queue in self._queues:
                self._admitter.look_now(gate)
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

    def drain(self) -> None:
        """Stop claiming. The executor takes back the jobs that have not started."""
        self._slot.draining = True
        self._executor.draining = True
        self._wake_event.set()

    def _run(self) -> None:
        own_connection(keeps_plans=True)
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
            return 0.0 if self._claims.passes_over_some else SETBACK_SECONDS

    def _guarded_round(self) -> float:
        if not self._stranded_jobs.give_back_if_due():
            return SETBACK_SECONDS
        try:
            with self.deadline:
                return self._slot.note_round(self._round())
        except DATABASE_ERRORS as error:
            self._slot.note_failed_round()
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
        rooms = [(pool, room) for pool in self._pools if (room := self._claims.room(pool)) > 0]
        if not rooms:
            self._admitter.resolve_conflicts()
            return self._options.poll
        none_is_full = len(rooms) == len(self._pools)
        may_be_over = self._options.burst and none_is_full and not self._claims.passes_over_some
        now = time.monotonic()
        room_in: dict[str, int] = {}
        for pool, room in rooms:
            room_in |= {queue: max(room, room_in.get(queue, 0)) for queue in pool.queues}
        # Taken last: what a settle makes ready during an admission is claimed with the rest.
        self._reopen(self._admitter.admit(room_in) | self._admitter.take_queues())
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
            self._reopen(self._admitter.admit(room_in) | self._admitter.take_queues())
        expects_some = any(pool.promising for pool, _ in rooms)
        taken, is_full = 0, False
        for pool, room in rooms:
            if not pool.promising:
                continue
            if (room := min(room, self._claims.room(pool))) <= 0:
                continue
            claimed = self._claims.claim(pool, room)
            taken += claimed
            is_full = is_full or claimed >= room
        for pool in self._pools:
            if pool.on_loop and not pool.promising:
                pool.line.wants_more = False  # room alone is no reason: it nearly always has some
        self._admitter.note_claimed(taken, is_full=is_full)
        self._had_jobs = self._had_jobs or taken > 0
        if is_full:
            return 0.0
        if taken:
            self._poller.poll_again_soon()
        elif not polls and expects_some:
            self._poller.poll_now()  # the promising queues are empty; poll before sleeping
            return 0.0
        elif may_be_over and self._poller.due_at > now and self._admitter.is_done:
            return self._rest_in_burst(bool(ready))
        return max(min(self._poller.next_at, self._admitter.next_at) - time.monotonic(), 0.001)

    def _reopen(self, queues: Collection[str]) -> None:
        """Claim from the heads of these queues: blocked jobs have become ready there. Wake the
        workers of those that this process does not serve."""
        for queue in set(queues).difference(self._queues):
            notify(queue)
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

    def _rest_in_burst(self, ready: bool) -> float:
        """Nothing was claimed: drain if no claimed job is left either. Jobs that are still ready
        are not for this process (unknown types, a paused queue), but it tries once more."""
        if self._claimed:
            return 0.05
        self._poller.poll_now()
        if self._had_jobs:
            # What has ended since the last poll may have made others ready, or opened a step at a
            # gate.
            self._had_jobs, self._empty_rounds = False, 0
            self._admitter.look_soon()
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
