"""Finds the cancel requests of prefetched jobs."""

from __future__ import annotations

import time

from ...lifecycle import workers
from ...lifecycle.job_columns import ClaimedJob
from ..connections import retry_while_disconnected
from ..ipc.scoreboard import WorkerSlot
from ..statement_timeout import StatementTimeout

FRESH_SECONDS = 0.1
"""A job may start for this long after its claim, or after a look for cancels, without another look.
Few wait longer: if jobs take a millisecond, none does."""

LOOK_SECONDS = FRESH_SECONDS / 2
"""Seconds between two looks of the settler while jobs wait here and others end, so that few threads
have to request one. If none ends, it looks once a second."""


class Cancels:
    """The jobs of this process whose cancel was requested, and when the table was last read.

    A cancel request is stored in the row. Its notification only makes it faster. The settler reads
    the table, because it has a connection if others have none.
    """

    def __init__(self, slot: WorkerSlot) -> None:
        self.asked: frozenset[int] = frozenset()
        self._slot = slot
        self._looked_at = 0.0
        self._began_at = 0.0

    def are_due(self, claimed_at: float) -> bool:
        """Whether to read the table for jobs that were claimed at ``claimed_at``, a time of
        ``time.monotonic()``, or later. Jobs that start soon need no look: in a drain of short jobs
        the looks took 6 % of the time of their thread."""
        return time.monotonic() >= max(self._looked_at, claimed_at) + LOOK_SECONDS

    def look(self) -> None:
        """Read the table, on the connection of the calling thread."""
        began_at = time.monotonic()
        asked = workers.cancels_asked([self._slot.worker])
        # In this order: a reader of the time also finds the requests until then.
        self.asked = frozenset(job for _, job, _ in asked)
        self._began_at, self._looked_at = began_at, time.monotonic()

    def cover(self, job: ClaimedJob, now: float) -> bool:
        """Whether ``asked`` decides if this job may start. A look that began before the claim may
        have found an earlier job with the same id, from before the table was emptied."""
        if now > job.taken_at + FRESH_SECONDS and now >= self._looked_at + FRESH_SECONDS:
            return False
        return job.id not in self.asked or self._began_at >= job.taken_at

    def refresh(self, job: ClaimedJob, deadline: StatementTimeout) -> None:
        """Read the table before this job starts, unless another thread has done so meanwhile.
        Raises :class:`StatementTimedOut`."""
        if not self.cover(job, time.monotonic()):
            retry_while_disconnected(
                self.look,
                what="look for cancels",
                give_up=lambda: not self._slot.may_start(job.worker, time.monotonic()),
                deadline=deadline,
            )
