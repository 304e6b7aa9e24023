"""What a worker process has claimed and not yet settled."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from ...lifecycle.claiming import ClaimedJob, Fence

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
        self._queues: dict[Fence, str] = {}
        self._large: dict[Fence, int] = {}
        self._counting = threading.Lock()

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, job: ClaimedJob) -> bool:
        return job.fence in self._queues

    def has_any(self, jobs: Iterable[ClaimedJob]) -> bool:
        """Whether one of these attempts is held already."""
        return not self._queues.keys().isdisjoint(job.fence for job in jobs)

    def add(self, jobs: Iterable[ClaimedJob]) -> None:
        """These were claimed."""
        for job in jobs:
            self._queues[job.fence] = job.queue
            if len(job.payload) > SMALL:
                self._large[job.fence] = len(job.payload)

    def end(self, jobs: Collection[ClaimedJob]) -> None:
        """The attempts of these are over."""
        # Counted first: who asks between the two sees a job twice, and never a job too few.
        with self._counting:
            self.ended += len(jobs)
        self.remove_all(jobs)

    def remove(self, job: ClaimedJob) -> None:
        """This one is not held any more."""
        self._queues.pop(job.fence, None)
        if self._large:
            self._large.pop(job.fence, None)

    def remove_all(self, jobs: Iterable[ClaimedJob]) -> None:
        """None of these is held any more."""
        for job in jobs:
            self.remove(job)

    @property
    def bytes(self) -> int:
        """What the payloads of these take in memory, but for the small ones."""
        return sum(list(self._large.values()))

    def count_in(self, queues: Collection[str]) -> int:
        """How many are of these queues."""
        return sum(1 for queue in list(self._queues.values()) if queue in queues)
