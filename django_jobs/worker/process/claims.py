"""Claims jobs for the pools of one worker process, and gives back those of a claim whose answer was
lost."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ...lifecycle import claiming, settling
from ...lifecycle.claiming import START
from ...lifecycle.job_columns import ClaimedJob, Fence
from ...lifecycle.settling_rows import give_back_row_by_row
from ...models.database import DATABASE_ERRORS
from ..connections import drop_connection, is_disconnected, retry_while_disconnected
from ..events import emit
from ..ipc.scoreboard import CAPACITY, WorkerSlot
from ..options import Options
from ..poller import LINGER_SECONDS, Poller
from ..pools.claimed_jobs import SMALL, ClaimedJobs
from ..pools.pool import PREFETCH_LIMIT, Claimable, Pool, mixed
from ..statement_timeout import StatementTimedOut, StatementTimeout
from .settler import Settler

R = TypeVar("R")

LOOK_SECONDS = 1.0
"""Seconds between two checks whether others need the connection of a waiting claimer."""


class StrandedJobs:
    """Finds the jobs that belong to this worker in the table but not in its process. Their lease
    would be renewed forever.

    It looks once per lease, unless a heartbeat found no job at all, and before the next claim if an
    answer may have been lost. The settler does so, because it has a connection if the claimer has
    none.
    """

    def __init__(
        self,
        lease: float,
        slot: WorkerSlot,
        claimed: ClaimedJobs,
        settler: Settler,
        *,
        draining: Callable[[], bool],
    ) -> None:
        self._lease = lease
        self._slot = slot
        self._claimed = claimed
        self._settler = settler
        self._draining = draining
        self._due_at = time.monotonic() + lease

    def look_soon(self) -> None:
        self._due_at = 0.0

    def give_back_if_due(self) -> bool:
        """Have them given back if that is due. Returns whether to claim. Called by the claiming
        thread, which waits, and gives its connection up to others that need one."""
        due_at = self._due_at and max(self._due_at, self._slot.empty_at + self._lease)
        if time.monotonic() < due_at:
            return True
        looking = self._settler.submit(self._give_back)
        looking.add_done_callback(lambda _: self._claimed.wake_event.set())
        while not (looking.done() or self._draining()):
            if self._slot.is_short:
                drop_connection()
            self._claimed.wake_event.wait(LOOK_SECONDS)
        if not (looking.done() and looking.result()):
            return False
        self._due_at = time.monotonic() + self._lease
        return True

    def _give_back(self) -> bool | None:
        """Give them back, the steps of each workflow run apart: one that was cancelled waits for
        its run. If another session has locked that, the rest is left to the next look."""
        stranded = self._retry(self._find)
        if not stranded:
            return stranded is not None
        groups: dict[int | None, list[Fence]] = {None: []}
        for job in random.sample(stranded, len(stranded)):
            groups.setdefault(job.workflow_run_id, []).append(job.fence)
        given_back = 0
        with suppress(StatementTimedOut):
            for fences in groups.values():
                done = self._retry(partial(give_back_row_by_row, fences))
                if done is None:
                    return None
                given_back += len(done[0])
        emit("stranded_jobs", logging.WARNING, worker=self._slot.worker, given_back=given_back)
        return True

    def _find(self) -> list[ClaimedJob]:
        held = claiming.claimed_by(self._slot.worker)
        return [job for job in held if job not in self._claimed]

    def _retry(self, work: Callable[[], R]) -> R | None:
        return retry_while_disconnected(
            work,
            what="give back stranded jobs",
            give_up=lambda: self._draining() or not self._slot.is_safe(self._lease),
            deadline=self._settler.deadline,
        )


CLAIM_LIMIT = 300
CLAIMED_LIMIT = CAPACITY - 2 * PREFETCH_LIMIT  # that of the threads, and that of the loop
CLAIMED_BYTES = 32 * 2**20
"""The most bytes of jobs that wait in this process, and of results that are to be written. Above
that it claims only for free slots."""

MOST_FOR_SLOT = 4
"""Jobs that may be claimed for each slot of an idle event loop. It gives back what it cannot start
soon."""

BLOCKED_SECONDS = 1.0
"""The least time for which a queue rests after a claim from it took too long, or was refused. It
rests for as long as that claim took."""

RESTART_SECONDS = 1.0
"""Seconds after which a claim starts at the head of its queue again, because a job of a long
transaction, a higher priority or a retry may have entered before the last position."""


class Claims:
    """Claims what the pools have room for, from each queue its share. The claimer decides when."""

    def __init__(
        self,
        pools: Sequence[Pool],
        claimed: ClaimedJobs,
        slot: WorkerSlot,
        options: Options,
        poller: Poller,
        stranded_jobs: StrandedJobs,
        deadline: StatementTimeout,
    ) -> None:
        self._pools = pools
        self._claimed = claimed
        self._slot = slot
        self._options = options
        self._poller = poller
        self._stranded_jobs = stranded_jobs
        self._deadline = deadline
        self._restarted = 0.0
        self._blocked_until = 0.0

    def claim(self, pool: Pool, room: int) -> int:
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
                    began = time.monotonic()
                    jobs = self._claim_share(pool, queue, share, behind_limited=behind_limited)
                    behind_limited = behind_limited or queue in self._poller.limited
                    taken += len(jobs)
                    if len(jobs) < share:
                        among.discard(queue)  # the others get the rest
                    claims.append(self._sort(pool, queue, jobs))
            except DATABASE_ERRORS as error:
                # A trigger of the project's may refuse the jobs of this queue.
                if self._deadline.cut_short(error) or not is_disconnected():
                    self._pass_over(queue, max(time.monotonic() - began, BLOCKED_SECONDS))
                raise
            finally:
                pool.line.add(mixed(claims))
        return taken

    def _pass_over(self, queue: str, seconds: float) -> None:
        """Let a queue rest. The others would wait behind it in each round, because it is the
        furthest behind its share."""
        self._blocked_until = max(self._blocked_until, time.monotonic() + seconds)
        for pool in self._pools:
            pool.promising.discard(queue)
            pool.rest(queue, seconds)

    @property
    def passes_over_some(self) -> bool:
        """Whether a queue rests because a claim from it was cut short or refused."""
        return time.monotonic() < self._blocked_until

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
        loop = pool.partner
        if loop is None or limited or not self._may_share(pool, loop, queue, share):
            return self._claim([pool], pool.claimable, queue, share, limited=limited)
        loop.promising.discard(queue)
        jobs = self._claim([pool, loop], pool.for_both, queue, share)
        if queue in pool.promising:  # there is more
            if any(loop.claimable.includes(job) for job in jobs):
                loop.promising.add(queue)
            else:
                # The next claim for the threads continues for both; without one, a poll follows.
                loop.rest(queue, LINGER_SECONDS)
                self._poller.poll_again_soon()
        return jobs

    def _may_share(self, threads: Pool, loop: Pool, queue: str, jobs: int) -> bool:
        """Whether a claim for the threads may be for the event loop too. That is idle and expects
        nothing elsewhere, so no order is broken, and the jobs for the threads are quick."""
        return (
            not self._options.strict
            and threads.slots < jobs <= MOST_FOR_SLOT * loop.slots
            and loop.promising <= {queue}
            and not self._claimed_in(loop)
        )

    def _claim(
        self,
        pools: Sequence[Pool],
        claimable: Claimable,
        queue: str,
        limit: int,
        *,
        limited: bool = False,
    ) -> list[ClaimedJob]:
        """Claim for all of these pools behind the first of their positions."""
        first = pools[0]
        first.promising.discard(queue)  # before the claim: a call that comes during it counts
        began = time.monotonic()
        jobs = claiming.claim(
            queue,
            worker=self._slot.worker,
            job_types=claimable.job_types,
            limit=limit,
            after=min(pool.positions.get(queue, START) for pool in pools),
            limited=limited,
            most_bytes=max(CLAIMED_BYTES - self._claimed.bytes, 0),
            slots=claimable.slots,
            async_types=claimable.async_types,
        )
        # There may be more large ones than the bytes allowed.
        few = len(jobs) < limit and all(job.bytes <= SMALL for job in jobs)
        seconds = time.monotonic() - began if len(pools) == 1 else 0.0  # reads past nothing
        if few:
            for pool in pools:
                pool.positions.pop(queue, None)
                pool.note_look(queue, seconds, self._pools, few=True)
        else:
            first.promising.add(queue)
            first.note_look(queue, seconds, self._pools, few=False)
            for pool in pools:
                behind = pool.positions.get(queue, START)
                pool.positions[queue] = max(behind, jobs[-1].position)
        return jobs

    def _sort(self, pool: Pool, queue: str, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """Let those for the event loop wait for it. Returns the others that may wait."""
        loop = pool.partner
        if loop is not None and not loop.claimable.job_types.keys().isdisjoint(
            {job.job_type for job in jobs}
        ):
            for_loop = [job for job in jobs if loop.claimable.includes(job)]
            jobs = [job for job in jobs if not loop.claimable.includes(job)]
            loop.note_claimed(queue, len(for_loop))
            loop.line.add(self.accept(for_loop, on_loop=True))
        pool.note_claimed(queue, len(jobs))
        return self.accept(jobs, on_loop=pool.on_loop)

    def accept(self, jobs: list[ClaimedJob], *, on_loop: bool = False) -> list[ClaimedJob]:
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

    def room(self, pool: Pool) -> int:
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
