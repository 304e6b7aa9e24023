"""What a worker process has claimed and not yet settled."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..lifecycle.claiming import HeldJob


class Holding:
    """The jobs in this process, by id. Added to by the claimer, taken from by whoever settles;
    each call is one step of a dict and needs no lock."""

    def __init__(self) -> None:
        self._queues: dict[int, str] = {}
        self.settled = 0

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, job: int) -> bool:
        return job in self._queues

    def add(self, jobs: Iterable[HeldJob]) -> None:
        """These were claimed."""
        for job in jobs:
            self._queues[job.id] = job.queue

    def remove(self, job: int) -> None:
        """This one is not held any more."""
        self._queues.pop(job, None)

    def remove_all(self, jobs: Collection[HeldJob]) -> int:
        """None of these is held any more; how many they are."""
        for job in jobs:
            self.remove(job.id)
        return len(jobs)

    def count_in(self, queues: Collection[str]) -> int:
        """How many are of these queues."""
        return sum(1 for queue in list(self._queues.values()) if queue in queues)
