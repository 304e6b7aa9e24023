"""What a worker process has claimed and not yet settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from queue import Empty, SimpleQueue

from ...lifecycle.job_columns import ClaimedJob, Fence
from ..wakeup import WakeEvent

SMALL = 2_000
"""Bytes of a payload that does not count: of as many as are held at most, it is a megabyte."""


class ClaimedJobs:
    """The attempts in this process. Added to by the claimer, removed from when they are settled;
    each of these is one step of a dict and needs no lock.

    An attempt and not its job: a job may come back here while the end of its last attempt is still
    being written down.
    """

    def __init__(self) -> None:
        self.ended = 0
        """Attempts that were made here and are over, however they were settled."""
        self.wake_event = WakeEvent()
        """Of the claimer."""
        self.wants_more = False
        """Whether the claimer is to be woken when few jobs wait; it is woken once."""
        self.refill_below = 0
        """How many are few."""
        self._waiting: SimpleQueue[ClaimedJob] = SimpleQueue()
        self._waiting_since = self._taken_at = 0.0
        self._queues: dict[Fence, str] = {}
        self._returning: set[Fence] = set()
        self._large: dict[Fence, int] = {}
        self._counting = threading.Lock()

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, job: ClaimedJob) -> bool:
        return job.fence in self._queues

    def has_any(self, jobs: Iterable[ClaimedJob]) -> bool:
        """Whether one of these attempts is held already."""
        return not self._queues.keys().isdisjoint(job.fence for job in jobs)

    def add(self, jobs: Collection[ClaimedJob]) -> None:
        """These were claimed. They wait for a thread."""
        for job in jobs:
            self._queues[job.fence] = job.queue
            if len(job.payload) > SMALL:
                self._large[job.fence] = len(job.payload)
        if self._waiting.empty():
            self._waiting_since = time.monotonic()
        self.put_back(jobs)

    def begin_return(self, jobs: Iterable[ClaimedJob]) -> None:
        """These are about to be given back. They are held until :meth:`remove_all`."""
        self._returning.update(job.fence for job in jobs)

    def is_claimed(self, job: ClaimedJob) -> bool:
        """Whether this attempt is held, and not just being given back: what is given back may be
        claimed again, as the same attempt, before the thread that gave it back knows."""
        return job.fence not in self._returning and job.fence in self._queues

    def next(self) -> ClaimedJob:
        """The job whose turn it is. Waits for one."""
        job = self._waiting.get()
        self._taken_at = job.taken_at
        self.room_made()
        return job

    def take_unstarted(self) -> list[ClaimedJob]:
        """Take back what no thread has begun."""
        taken: list[ClaimedJob] = []
        while not self._waiting.empty():
            try:
                taken.append(self._waiting.get_nowait())
            except Empty:  # a thread was faster
                break
        return taken

    def put_back(self, jobs: Iterable[ClaimedJob]) -> None:
        """These wait for a thread after all."""
        for job in jobs:
            self._waiting.put(job)

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return self._waiting.qsize()

    @property
    def waits_since(self) -> float:
        """Since when the next of those that wait is here: at this time of ``time.monotonic()``
        or later."""
        return max(self._waiting_since, self._taken_at)

    def room_made(self) -> None:
        """Wake the claimer if few jobs wait. Cheap where it does not wait for that."""
        if self.wants_more and self._waiting.qsize() <= self.refill_below:
            self.wants_more = False  # once is enough
            self.wake_event.set()

    def end(self, jobs: Collection[ClaimedJob]) -> None:
        """The attempts of these are over."""
        # Counted first: who asks between the two sees a job twice, and never a job too few.
        with self._counting:
            self.ended += len(jobs)
        self.remove_all(jobs)

    def remove_all(self, jobs: Iterable[ClaimedJob]) -> None:
        """None of these is held any more."""
        for job in jobs:
            self._queues.pop(job.fence, None)
            if self._large:
                self._large.pop(job.fence, None)
            if self._returning:  # after the rest: see is_claimed
                self._returning.discard(job.fence)
        self.room_made()  # which is counted from what is held

    @property
    def bytes(self) -> int:
        """What the payloads of these take in memory, but for the small ones."""
        return sum(list(self._large.values()))

    def count_in(self, queues: Collection[str]) -> int:
        """How many are of these queues."""
        return sum(1 for queue in list(self._queues.values()) if queue in queues)
