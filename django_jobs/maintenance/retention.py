"""Delete finished jobs whose retention is over."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..conf import conf, seconds_of
from ..domain.states import FINAL
from ..lifecycle.pruning import EVERY_OTHER_QUEUE, PAGE, Rules, prune, prune_ticks, prune_workers
from ..models import Queue
from .task import MaintenanceTask

EVERY_SECONDS = 60.0
BUDGET_SECONDS = 0.25
"""Time for one run. A walk that is not through goes on where it stopped at the next run."""

WORKER_SECONDS = 7 * 86_400.0
"""How long the row of an ended worker is kept."""

TICK_SECONDS = 90 * 86_400.0
"""How long it is known what became of a due time. A backfill makes the job of one from before it
again."""


class Retention:
    """One walk over the jobs by primary key, remembered from run to run."""

    def __init__(self, *, page: int = PAGE, budget: float = BUDGET_SECONDS) -> None:
        self.page = page
        self.budget = budget
        self.after = 0

    def run_once(self) -> int:
        """Delete expired jobs for as long as the budget lasts; return how many.

        At the end of a walk ended workers and old ticks are deleted too, and the next run starts
        from the bottom.
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


def retention_task() -> MaintenanceTask:
    """The maintenance task, with a walk of its own."""
    return MaintenanceTask(
        name="retention", every=EVERY_SECONDS, batch=PAGE, run_once=Retention().run_once
    )


def rules_in_force() -> Rules:
    """``DJANGO_JOBS["RETENTION"]`` and what queues have of their own instead, in seconds."""
    default = {status: seconds_of(keep) for status, keep in conf().retention.items()}
    rules: dict[str, Mapping[str, float | None]] = {EVERY_OTHER_QUEUE: default}
    queues = Queue.objects.using(conf().database).filter(retention__isnull=False)
    for name, own in queues.values_list("name", "retention"):
        if own is not None:
            rules[name] = {**default, **_readable(own)}
    return rules


def _readable(own: Any) -> dict[str, float | None]:
    """A queue's own retention. What cannot be read keeps its jobs: an error may not delete."""
    if not isinstance(own, Mapping):
        return dict.fromkeys(FINAL)
    found: dict[str, float | None] = {}
    for status, keep in own.items():
        try:
            found[status] = seconds_of(keep)
        except ValueError:
            found[status] = None
    return found
