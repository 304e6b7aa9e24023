"""The slots of a worker process that serve the same queues: threads, or slots of its event loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...lifecycle.claiming import Slots
from ...lifecycle.job_columns import ClaimedJob, QueuePosition
from ..context.attempt import Attempt
from ..options import PoolOptions, QueueShare
from .claimed_jobs import ClaimedJobs

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


PREFETCH_SECONDS = 0.5
"""Seconds of work that may wait in this process. Idle workers elsewhere cannot take it."""

LONG_SECONDS = 0.005

PREFETCH_LIMIT = 1_000
"""Jobs that may wait in this process, even if they are quick. If they do nothing, they are done in
35 ms. A claim begins when half of them wait. With 600, the threads ran out of jobs before it ended,
and one process drained 24,800 jobs/s instead of 30,300."""

SLOW_WEIGHT, FAST_WEIGHT = 0.5, 0.02
"""How fast the estimate of a job's duration follows. It rises quickly, so that slow jobs are not
hoarded, and falls slowly, so that a few fast ones between them do not start the hoarding again."""


class Pace:
    """The recent duration of jobs here, in seconds. It determines the prefetch."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def saw(self, seconds: float) -> None:
        if self.seconds is None:
            self.seconds = seconds
        else:
            weight = SLOW_WEIGHT if seconds > self.seconds else FAST_WEIGHT
            self.seconds += weight * (seconds - self.seconds)

    def jobs_in(self, seconds: float) -> int:
        """The number of jobs that a slot runs in this time; 0 before the first one ended."""
        return 0 if self.seconds is None else int(seconds / max(self.seconds, 1e-6))


REST = 49
"""A look for jobs of a pool that reads past those of another pool, and finds few, is followed by a
rest of this many times its duration. A backlog of a million jobs for threads is read in 0.4 s; read
at each hint, it would hold up the claims for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimable:
    """What a pool claims: the names of job types, with the newest version that this worker reads,
    and of which of them only suspects, or no suspects."""

    job_types: Mapping[str, int]
    slots: Slots = Slots.ANY
    async_types: tuple[str, ...] = ()

    def includes(self, job: ClaimedJob) -> bool:
        """Whether this job of one of those types is meant."""
        return job.job_type in self.job_types and not (self.slots is Slots.LOOP and job.is_suspect)


class Pool:
    """A number of slots, the queues that they serve, and the jobs that wait for them. Pools of one
    process share its connections and its lease. No queue is in two of them, but for one of threads
    and one of the event loop."""

    def __init__(
        self,
        options: PoolOptions,
        claimed: ClaimedJobs,
        claimable: Claimable,
        *,
        slots: int,
        on_loop: bool,
        strict: bool,
        prefetch_limit: int,
    ) -> None:
        self.slots = slots
        self.claimable = claimable
        self.on_loop = on_loop
        self.queues = [share.name for share in options.queues]
        self.promising = set(self.queues)
        """The queues that may have ready jobs. A thread that listens adds some."""
        self.positions: dict[str, QueuePosition] = {}
        """Where the last claims of these queues ended."""
        self.pace = Pace()
        self.line = claimed.new_line()
        self.running: dict[int, Attempt] = {}
        """The started attempts by the id of their thread, or of themselves."""
        self.partner: Pool | None = None
        """Of a pool of threads: that of the event loop for the same queues."""
        self.for_both = claimable
        """What is claimed for it and its partner at once."""
        self._prefetch_limit = prefetch_limit
        self._selector = QueueSelector(options.queues, strict)
        self._returned: deque[ClaimedJob] = deque()
        self._backlogs: set[str] = set()
        self._rests: dict[str, float] = {}

    def serve(self, queues: Collection[str]) -> None:
        self.queues = list(queues)
        self.promising.intersection_update(queues)
        self._selector.serve(queues)

    def expect(self, queues: Collection[str]) -> None:
        """Note that these queues may have ready jobs. It does not look where it rests."""
        found = set(queues).intersection(self.queues)
        if self._rests:
            now = time.monotonic()
            found = {queue for queue in found if now >= self._rests.get(queue, 0.0)}
        self.promising |= found

    def note_look(self, queue: str, seconds: float, others: Sequence[Pool], *, few: bool) -> None:
        """Note a claim: how long it took, and whether it found fewer jobs than it asked for. If
        another pool has a backlog in the queue, all of that was read."""
        if not few:
            self._backlogs.add(queue)
            return
        self._backlogs.discard(queue)
        for other in others:
            if other is self:
                continue
            if queue in other._backlogs and seconds > LONG_SECONDS:
                self.rest(queue, REST * seconds)
            other._rests.pop(queue, None)

    def rest(self, queue: str, seconds: float) -> None:
        """Expect nothing in this queue for so long, or until an earlier rest is over."""
        self._rests[queue] = max(self._rests.get(queue, 0.0), time.monotonic() + seconds)

    def plan(self, among: Collection[str], room: int) -> list[tuple[str, int]]:
        """How many jobs to claim from which of these queues. See :meth:`QueueSelector.plan`."""
        while self._returned:
            self._selector.returned(self._returned.popleft().queue)
        return self._selector.plan(among, room)

    def note_claimed(self, queue: str, jobs: int) -> None:
        """Count claimed jobs as the share of their queue."""
        self._selector.claimed(queue, jobs)

    def ahead(self) -> int:
        """The number of jobs that may wait here: as many as the slots start soon."""
        since = time.monotonic() - PREFETCH_SECONDS
        running = list(self.running.values())
        able = self.slots - sum(1 for attempt in running if attempt.started < since)
        ahead = min(self.pace.jobs_in(able * PREFETCH_SECONDS), self._prefetch_limit)
        return ahead if ahead >= able else 0  # prefetching jobs of half a second gains nothing

    def hoarded(self) -> list[ClaimedJob]:
        """Take back the jobs that would wait here too long, because quick jobs were followed by
        slow ones. They do not count as the share of their queue."""
        since = time.monotonic() - PREFETCH_SECONDS
        if not self.line or self.line.since > since:
            return []
        if len(self.line) <= (ahead := self.ahead()):
            return []
        unstarted = self.line.take_unstarted()
        self.line.put_back(unstarted[:ahead])
        self._returned.extend(unstarted[ahead:])
        return unstarted[ahead:]
