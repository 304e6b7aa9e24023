"""The claimed jobs of a worker process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from queue import Empty, SimpleQueue

from ...lifecycle.job_columns import ClaimedJob, Fence
from ..connections import nothing
from ..wakeup import WakeEvent

SMALL = 2_000
"""Bytes. Payloads below this do not count: those of all claimed jobs take at most a megabyte."""


class WaitingJobs:
    """The claimed jobs that wait for a slot of one pool, the first one first."""

    def __init__(self, wake_event: WakeEvent) -> None:
        self.on_added: Callable[[], object] = nothing
        """Called when jobs were added. Threads wait for the next one."""
        self.wants_more = False
        """Whether to wake the claimer, once, when few jobs wait."""
        self.refill_below = 0
        """The number that counts as few."""
        self._wake_event = wake_event
        self._jobs: SimpleQueue[ClaimedJob | None] = SimpleQueue()
        self._added_at = self._taken_at = 0.0

    def __len__(self) -> int:
        return self._jobs.qsize()

    def add(self, jobs: Iterable[ClaimedJob]) -> None:
        if self._jobs.empty():
            self._added_at = time.monotonic()
        self.put_back(jobs)

    def put_back(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            self._jobs.put(job)
        self.on_added()

    def next(self) -> ClaimedJob | None:
        """The next job. Waits for one; None after the :meth:`end`."""
        return self._taken(self._jobs.get())

    def next_if_any(self) -> ClaimedJob | None:
        try:
            return self._taken(self._jobs.get_nowait())
        except Empty:
            return None

    def _taken(self, job: ClaimedJob | None) -> ClaimedJob | None:
        if job is not None:
            self._taken_at = job.taken_at
            self.room_made()
        return job

    def end(self) -> None:
        """Let who waits for the next job know that none will come."""
        self._jobs.put(None)

    def take_unstarted(self) -> list[ClaimedJob]:
        taken: list[ClaimedJob] = []
        while not self._jobs.empty():
            try:
                job = self._jobs.get_nowait()
            except Empty:  # a thread has taken it
                break
            if job is not None:
                taken.append(job)
        return taken

    @property
    def since(self) -> float:
        """A lower bound, in ``time.monotonic()``, of when the next waiting job was added."""
        return max(self._added_at, self._taken_at)

    def room_made(self) -> None:
        """Wake the claimer if few jobs wait. Costs little if the claimer does not wait for that."""
        if self.wants_more and self._jobs.qsize() <= self.refill_below:
            self.wants_more = False  # once is enough
            self._wake_event.set()


class ClaimedJobs:
    """The attempts of this process that are not settled. Some wait for a slot: each pool has its
    line.

    The claimer adds them, and they are removed when they are settled. Each of these is one step of
    a dict and needs no lock. The key is the attempt and not the job, because a job may come back
    while the end of its last attempt is still being written.
    """

    def __init__(self) -> None:
        self.ended = 0
        """The number of attempts that ended here, with any outcome."""
        self.failed = 0
        """The number of those that failed or ran out of time."""
        self.wake_event = WakeEvent()
        """Wakes the claimer."""
        self.lines: list[WaitingJobs] = []
        self._queues: dict[Fence, str] = {}
        self._returning: set[Fence] = set()
        self._large: dict[Fence, int] = {}
        self._on_loop: set[Fence] = set()
        self._counting = threading.Lock()

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, job: ClaimedJob) -> bool:
        return job.fence in self._queues

    def has_any(self, jobs: Iterable[ClaimedJob]) -> bool:
        return not self._queues.keys().isdisjoint(job.fence for job in jobs)

    def new_line(self) -> WaitingJobs:
        line = WaitingJobs(self.wake_event)
        self.lines.append(line)
        return line

    def add(self, jobs: Collection[ClaimedJob], *, on_loop: bool = False) -> None:
        """Add claimed jobs, for threads or the event loop. None starts before it is in a line."""
        for job in jobs:
            self._queues[job.fence] = job.queue
            self.weigh(job, job.bytes)
        if on_loop:
            self._on_loop.update(job.fence for job in jobs)

    def begin_return(self, jobs: Iterable[ClaimedJob]) -> None:
        """Mark these as being given back. They stay here until :meth:`remove_all`."""
        self._returning.update(job.fence for job in jobs)

    def is_claimed(self, job: ClaimedJob) -> bool:
        """Whether this attempt is here and not being given back. A job that is being given back may
        be claimed again, as the same attempt, before the thread that gave it back knows."""
        return job.fence not in self._returning and job.fence in self._queues

    def take_unstarted(self) -> list[ClaimedJob]:
        return [job for line in self.lines for job in line.take_unstarted()]

    @property
    def waiting(self) -> int:
        return sum(map(len, self.lines))

    @property
    def waits_since(self) -> float:
        """A lower bound, in ``time.monotonic()``, of when the waiting jobs were added."""
        return min((line.since for line in self.lines if line), default=time.monotonic())

    def end(self, jobs: Collection[ClaimedJob], failed: int = 0) -> None:
        # Counted first: a reader between the two steps counts a job twice, and never one too few.
        with self._counting:
            self.ended += len(jobs)
            self.failed += failed
        self.remove_all(jobs)

    def remove_all(self, jobs: Iterable[ClaimedJob]) -> None:
        for job in jobs:
            if self._on_loop:  # before the rest: see count
                self._on_loop.discard(job.fence)
            self._queues.pop(job.fence, None)
            if self._large:
                self._large.pop(job.fence, None)
            if self._returning:  # after the rest: see is_claimed
                self._returning.discard(job.fence)
        for line in self.lines:
            line.room_made()  # the claimer counts the jobs that are still here

    def weigh(self, job: ClaimedJob, size: int) -> None:
        """Count these bytes of a job until it is removed, unless they are few."""
        if size > SMALL:
            self._large[job.fence] = self._large.get(job.fence, 0) + size

    @property
    def bytes(self) -> int:
        """The memory of the payloads, headers and results of these jobs, without the small ones."""
        return sum(list(self._large.values()))

    def count(self, *, on_loop: bool) -> int:
        """The number of jobs for threads, or for the event loop. While one for the loop is added or
        removed, it counts for the threads, and neither kind is one too few."""
        return len(self._on_loop) if on_loop else len(self._queues) - len(self._on_loop)

    def count_in(self, queues: Collection[str], *, on_loop: bool = False) -> int:
        return sum(
            1
            for fence, queue in list(self._queues.items())
            if queue in queues and (fence in self._on_loop) == on_loop
        )
