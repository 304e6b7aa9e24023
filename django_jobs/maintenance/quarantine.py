"""Quarantines job types that keep crashing; blocks and unblocks their jobs."""

from __future__ import annotations

import logging
import random
import time

from ..conf import conf
from ..domain.maintenance import TaskParts
from ..lifecycle.claiming import START
from ..lifecycle.job_columns import QueuePosition
from ..lifecycle.operations import quarantines
from ..lifecycle.operations.quarantines import PAGE
from ..models import Queue
from ..signals import worker_event

BUDGET_SECONDS = 0.1
"""Seconds for the scan of one queue in one run. The next run continues it."""

MOVING_SECONDS = 1.0
"""Seconds for a scan that finds jobs to block, because these slow down every claim until they are
blocked. The run is then repeated at once, after the schedules that are due by then."""


class Quarantining:
    """Scans the queues for one worker. The positions are kept from run to run."""

    def __init__(self, *, page: int = PAGE, budget: float = BUDGET_SECONDS) -> None:
        self.page = page
        self.budget = budget
        self.positions: dict[str, QueuePosition] = {}
        self._task_parts = TaskParts()

    def run_once(self) -> int:
        """Quarantine the job types that crashed too often, block a batch of jobs and unblock
        another. Returns how many rows changed."""
        return self._task_parts.run([quarantine_what_crashes, self._block, self._unblock])

    def _block(self) -> int:
        names = quarantines.in_force()
        changed = len(quarantines.spread(names))
        if names:
            changed += sum(map(self._walk, Queue.objects.names()))
        else:
            self.positions.clear()
        return changed

    def _unblock(self) -> int:
        return sum(quarantines.unblock(name, self.page) for name in quarantines.types_to_unblock())

    def _walk(self, queue: str) -> int:
        """Scan the head of the queue, where claims begin and jobs return to, then a part of the
        rest. Returns the number of blocked jobs."""
        started = time.monotonic()
        step = quarantines.block(queue, START, self.page)
        blocked = step.blocked
        position = self.positions.pop(queue, step.last)
        while step.is_full and time.monotonic() < started + (
            MOVING_SECONDS if step.blocked else self.budget
        ):
            step = quarantines.block(queue, position, self.page)
            blocked += step.blocked
            position = step.last
        if step.is_full:
            self.positions[queue] = position
        return blocked


def asks() -> str:
    """The condition under which there may be something to do."""
    seconds = conf().quarantine["seconds"]
    if seconds is None:
        return quarantines.ANY
    return f"({quarantines.ANY} OR {quarantines.ANY_CRASH.format(seconds=float(seconds))})"


def quarantine_what_crashes() -> int:
    """Quarantine the job types that crashed as often as ``QUARANTINE`` states, or more often;
    return how many."""
    rule = conf().quarantine
    most, seconds = rule["crashes"], rule["seconds"]
    if most is None or seconds is None:
        return 0
    made = 0
    counted = [*quarantines.crashes(seconds).items()]
    random.shuffle(counted)  # the row of one may be locked
    for name, crashes in counted:
        if crashes.count >= most:
            reason = f"crashed {crashes.count} times in {seconds:g} s"
            if quarantines.quarantine(name, reason=reason, crashed_at=crashes.first, seconds=0.0):
                made += 1
                fields = {"job_type": name, "reason": reason}
                worker_event.send_robust("job_type_quarantined", level=logging.ERROR, fields=fields)
    return made
