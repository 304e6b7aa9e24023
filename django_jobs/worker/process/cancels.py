"""Cancels of what a worker process holds and has not begun."""

from __future__ import annotations

import time

from ...lifecycle import workers
from ...lifecycle.job_columns import ClaimedJob
from ..connections import retry_while_disconnected
from ..ipc.scoreboard import WorkerSlot
from ..statement_timeout import StatementTimeout

FRESH_SECONDS = 0.1
"""A job begins so long after its claim, or after a look for cancels, without another look. Few wait
longer: where jobs take a millisecond, none does."""

LOOK_SECONDS = FRESH_SECONDS / 2
"""How often the settler looks while jobs wait here and others end, so that few threads have to ask
it. Where none ends it looks once a second."""


class Cancels:
    """The jobs of this process whose cancel was requested, and when the table was read.

    A cancel stands in the row. That it is also notified makes it quicker and nothing more. The
    settler looks: it has a connection where others may find none.
    """

    def __init__(self, slot: WorkerSlot) -> None:
        self.asked: frozenset[int] = frozenset()
        self._slot = slot
        self._looked_at = 0.0
        self._began_at = 0.0

    def are_due(self, claimed_at: float) -> bool:
        """Whether to look: what waits here was claimed at ``claimed_at``, of ``time.monotonic()``,
        or later. Jobs that soon begin need no look: in a drain of short jobs the looks were 6 % of
        the time of the thread that made them."""
        return time.monotonic() >= max(self._looked_at, claimed_at) + LOOK_SECONDS

    def look(self) -> None:
        """Ask the table, on the connection of the calling thread."""
        began_at = time.monotonic()
        asked = workers.cancels_asked([self._slot.worker])
        # In this order: who sees the time finds what was asked by then.
        self.asked = frozenset(job for _, job in asked)
        self._began_at, self._looked_at = began_at, time.monotonic()

    def cover(self, job: ClaimedJob, now: float) -> bool:
        """Whether ``asked`` says if this job may begin. What a look found that had begun before the
        claim may be of another job, which had this id before the table was emptied."""
        if now > job.taken_at + FRESH_SECONDS and now >= self._looked_at + FRESH_SECONDS:
            return False
        return job.id not in self.asked or self._began_at >= job.taken_at

    def refresh(self, job: ClaimedJob, deadline: StatementTimeout) -> None:
        """Look before this job begins, unless it was done for another one meanwhile. Raises
        :class:`StatementTimedOut`."""
        if not self.cover(job, time.monotonic()):
            retry_while_disconnected(
                self.look,
                what="look for cancels",
                give_up=lambda: not self._slot.may_start(job.worker, time.monotonic()),
                deadline=deadline,
            )
