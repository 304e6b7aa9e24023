"""Gives back the jobs of a claim whose answer was lost."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ...lifecycle import claiming
from ...lifecycle.job_columns import ClaimedJob, Fence
from ...lifecycle.settling_rows import give_back_row_by_row
from ..connections import drop_connection, retry_while_disconnected
from ..events import emit
from ..ipc.scoreboard import WorkerSlot
from ..pools.claimed_jobs import ClaimedJobs
from ..statement_timeout import StatementTimedOut
from .settler import Settler

R = TypeVar("R")

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
        """Give them back, the steps of each workflow run apart: one that was cancelled waits for
        its run. If another session has locked that, the rest is left to the next look."""
        stranded = self._retry(self._find)
        if not stranded:
            return stranded is not None
        groups: dict[int | None, list[Fence]] = {None: []}
        for job in random.sample(stranded, len(stranded)):
            groups.setdefault(job.workflow_run_id, []).append(job.fence)
        given_back = 0
        with suppress(StatementTimedOut):
            for fences in groups.values():
                done = self._retry(partial(give_back_row_by_row, fences))
                if done is None:
                    return None
                given_back += len(done[0])
        emit("stranded_jobs", logging.WARNING, worker=self._slot.worker, given_back=given_back)
        return True

    def _find(self) -> list[ClaimedJob]:
        held = claiming.claimed_by(self._slot.worker)
        return [job for job in held if job not in self._claimed]

    def _retry(self, work: Callable[[], R]) -> R | None:
        return retry_while_disconnected(
            work,
            what="give back stranded jobs",
            give_up=lambda: self._draining() or not self._slot.is_safe(self._lease),
            deadline=self._settler.deadline,
        )
