"""Divides the claims of a worker process among its queues."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...lifecycle.job_columns import ClaimedJob
from ..options import QueueShare

MOST_QUEUES = 3
"""Queues in one plan: each costs a statement. Others are in the next plan, with more jobs."""


class QueueSelector:
    """Gives each queue its share of the claimed jobs, by weight (start-time fair queueing).

    Each queue has a virtual time: the number of jobs claimed from it, divided by its weight. A plan
    serves the queues that are the furthest behind. A queue that had nothing to claim begins again
    at the virtual time of the others: they had its share meanwhile, and it has saved nothing. In
    strict order the first queue in the list gets everything.
    """

    def __init__(self, shares: Sequence[QueueShare], strict: bool = False) -> None:
        self._weights = {share.name: share.weight for share in shares}
        self._strict = strict
        self._times = dict.fromkeys(self._weights, 0.0)
        self._now = 0.0
        """The least virtual time in the last plan."""

    def serve(self, names: Collection[str]) -> None:
        """Replace the queues by these, with equal weights."""
        self._weights = dict.fromkeys(names, 1)
        self._times = {name: self._time(name) for name in names}

    def plan(self, among: Collection[str], room: int) -> list[tuple[str, int]]:
        """How many jobs to claim from which queues, ``room`` in all, so that virtual times meet."""
        queues = [name for name in self._weights if name in among]
        if self._strict:
            return [(name, room) for name in queues[:1]]
        behind = sorted(queues, key=self._time)[:MOST_QUEUES]
        if not behind:
            return []
        self._now = self._time(behind[0])
        meeting = self._meeting_time(behind, room)
        *others, most = sorted(
            behind, key=lambda name: self._weights[name] * (meeting - self._time(name))
        )
        plan = []
        for name in others:
            jobs = round(self._weights[name] * (meeting - self._time(name)))
            if jobs > 0:
                plan.append((name, jobs))
                room -= jobs
        return [*plan, (most, room)] if room else plan

    def claimed(self, name: str, jobs: int) -> None:
        self._times[name] = self._time(name) + jobs / self._weights[name]

    def returned(self, name: str) -> None:
        """Note that a claimed job of a queue was given back unstarted."""
        if name in self._weights:
            self._times[name] -= 1 / self._weights[name]

    def _time(self, name: str) -> float:
        """Its virtual time. One that is behind the last plan was not in it."""
        return max(self._times.get(name, 0.0), self._now)

    def _meeting_time(self, behind: Sequence[str], jobs: int) -> float:
        """The virtual time that those of ``behind``, which are in order, reach with ``jobs`` jobs.
        Queues that are ahead of it get none."""
        weights, total, meeting = 0, float(jobs), float("inf")
        for name in behind:
            if self._time(name) >= meeting:
                break
            weights += self._weights[name]
            total += self._weights[name] * self._time(name)
            meeting = total / weights
        return meeting


def mixed(claims: Sequence[list[ClaimedJob]]) -> list[ClaimedJob]:
    """The jobs of several claims in one order, evenly mixed. If the jobs of one queue came behind
    those of another, the shares would not hold where only a part of them starts here."""
    if len(claims) == 1:
        return claims[0]
    placed = [
        ((place + 0.5) / len(jobs), number, job)
        for number, jobs in enumerate(claims)
        for place, job in enumerate(jobs)
    ]
    return [job for _, _, job in sorted(placed)]
