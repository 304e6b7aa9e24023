"""The threads of a worker process that serve the same queues."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from ...lifecycle.job_columns import ClaimedJob
from ..context.attempt import Attempt
from ..options import PoolOptions
from ..queue_selector import QueueSelector
from .claimed_jobs import ClaimedJobs

PREFETCH_SECONDS = 0.5
"""Seconds of work that may wait in this process. Idle workers elsewhere cannot take it."""

PREFETCH_LIMIT = 600
"""Jobs that may wait in this process, even if they are quick."""

SLOW_WEIGHT, FAST_WEIGHT = 0.5, 0.02
"""How fast the estimate of a job's duration follows. It rises quickly, so that slow jobs are not
hoarded, and falls slowly, so that a few fast ones between them do not start the hoarding again."""


class Pace:
    """The recent duration of jobs here, in seconds. It determines the prefetch."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def saw(self, seconds: float) -> None:
        """Include the duration of one job."""
        if self.seconds is None:
            self.seconds = seconds
        else:
            weight = SLOW_WEIGHT if seconds > self.seconds else FAST_WEIGHT
            self.seconds += weight * (seconds - self.seconds)

    def jobs_in(self, seconds: float) -> int:
        """The number of jobs that a thread runs in this time; 0 before the first one ended."""
        return 0 if self.seconds is None else int(seconds / max(self.seconds, 1e-6))


class Pool:
    """A number of threads, the queues that they serve, and the jobs that wait for them. Pools of
    one process share its connections and its lease. No queue is in two of them."""

    def __init__(
        self, options: PoolOptions, claimed: ClaimedJobs, *, strict: bool, prefetch_limit: int
    ) -> None:
        self.threads = options.threads
        self.queues = [share.name for share in options.queues]
        self.promising = set(self.queues)
        """The queues that may have ready jobs. A thread that listens adds some."""
        self.pace = Pace()
        self.line = claimed.new_line()
        self.running: dict[int, Attempt] = {}
        """The started attempts by the id of their thread."""
        self._prefetch_limit = prefetch_limit
        self._selector = QueueSelector(options.queues, strict)
        self._returned: deque[ClaimedJob] = deque()

    def serve(self, queues: Collection[str]) -> None:
        """Replace the queues by these."""
        self.queues = list(queues)
        self.promising.intersection_update(queues)
        self._selector.serve(queues)

    def plan(self, among: Collection[str], room: int) -> list[tuple[str, int]]:
        """How many jobs to claim from which of these queues. See :meth:`QueueSelector.plan`."""
        while self._returned:
            self._selector.returned(self._returned.popleft().queue)
        return self._selector.plan(among, room)

    def note_claimed(self, queue: str, jobs: int) -> None:
        """Count claimed jobs as the share of their queue."""
        self._selector.claimed(queue, jobs)

    def ahead(self) -> int:
        """The number of jobs that may wait here: as many as the threads start soon."""
        since = time.monotonic() - PREFETCH_SECONDS
        running = list(self.running.values())
        able = self.threads - sum(1 for attempt in running if attempt.started < since)
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
