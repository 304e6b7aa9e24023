"""Gives back the jobs of a claim whose answer was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...lifecycle import claiming
from ...lifecycle.settling_rows import give_back_row_by_row
from ..connections import drop_connection, retry_while_disconnected
from ..events import emit
from ..ipc.scoreboard import WorkerSlot
from ..pools.claimed_jobs import ClaimedJobs
from .settler import Settler

LOOK_SECONDS = 1.0
"""Seconds between two checks whether others need the connection of a waiting claimer."""


class StrandedJobs:
    """Finds the jobs that belong to this worker in the table but not in its process. Their lease
    would be renewed forever.

    It looks once per lease, and before the next claim if an answer may have been lost. The settler
    does so, because it has a connection if the claimer has none.
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
        """Look soon: there may be some."""
        self._due_at = 0.0

    def give_back_if_due(self) -> bool:
        """Have them given back if that is due. Returns whether to claim. Called by the claiming
        thread, which waits, and gives its connection up to others that need one."""
        if time.monotonic() < self._due_at:
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
        worker = self._slot.worker

        def give_back() -> bool:
            unknown = [job.fence for job in claiming.claimed_by(worker) if job not in self._claimed]
            if unknown:
                given, _ = give_back_row_by_row(unknown)
                emit("stranded_jobs", logging.WARNING, worker=worker, given_back=len(given))
            return True

        return retry_while_disconnected(
            give_back,
            what="give back stranded jobs",
            give_up=lambda: self._draining() or not self._slot.is_safe(self._lease),
            deadline=self._settler.deadline,
        )
