"""Deletes succeeded and cancelled jobs after their retention."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..conf import conf
from ..domain.retention import ALL, Kept, kept_by_status
from ..domain.states import FINAL, JobState
from ..lifecycle.pruning import EVERY_OTHER_QUEUE, PAGE, Rules, prune, prune_ticks, prune_workers
from ..models import Queue

EVERY_SECONDS = 60.0
BUDGET_SECONDS = 0.25
"""Seconds for one run. The next run continues an unfinished pass."""

WORKER_SECONDS = 7 * 86_400.0
"""Seconds for which the row of an ended worker is kept."""

TICK_SECONDS = 90 * 86_400.0
"""Seconds for which the outcome of a due time is kept. A backfill of an older due time makes its
job a second time."""


class Retention:
    """A pass over the jobs by primary key. Its position is kept from run to run."""

    def __init__(self, *, page: int = PAGE, budget: float = BUDGET_SECONDS) -> None:
        self.page = page
        self.budget = budget
        self.after = 0

    def run_once(self) -> int:
        """Delete expired jobs until the budget is spent; return how many rows were deleted.

        At the end of a walk, ended workers and old ticks are deleted too, and the next run starts
        from the lowest id.
        """
        rules = rules_in_force()
        deadline = time.monotonic() + self.budget
        deleted = 0
        while True:
            step = prune(rules, after=self.after, page=self.page)
            deleted += step.deleted
            self.after = step.next_after or 0
            if step.next_after is None:
                return deleted + prune_workers(WORKER_SECONDS) + self._prune_ticks(deadline)
            if time.monotonic() >= deadline:
                return deleted

    def _prune_ticks(self, deadline: float) -> int:
        deleted = 0
        while True:
            gone = prune_ticks(TICK_SECONDS, self.page)
            deleted += gone
            if gone < self.page or time.monotonic() >= deadline:
                return deleted


def rules_in_force() -> Rules:
    """How long succeeded and cancelled jobs are kept."""
    return {
        queue: {status: one.age for status, one in kept.items() if status != JobState.DEAD}
        for queue, kept in kept_by_queue().items()
    }


def kept_by_queue() -> dict[str, dict[str, Kept]]:
    """``DJANGO_JOBS["RETENTION"]``, with the settings of the queues that have their own."""
    default = kept_by_status(conf().retention)
    kept = {EVERY_OTHER_QUEUE: default}
    queues = Queue.objects.using(conf().database).filter(retention__isnull=False)
    for name, own in queues.values_list("name", "retention"):
        if own is not None:
            kept[name] = {**default, **_readable(own)}
    return kept


def _readable(own: Any) -> dict[str, Kept]:
    """A queue's own retention. An unreadable one keeps its jobs, because an error must not
    delete."""
    if isinstance(own, Mapping):
        with suppress(ValueError):
            return kept_by_status(own)
    return dict.fromkeys(FINAL, ALL)
