"""Deletes the dead jobs beyond their limits."""

from __future__ import annotations

import logging
import random
import time

from .. import registry
from ..domain.retention import ALL, kept_by_status
from ..lifecycle.dead_letters import DeadLimit, PruningRefused, prune_dead, queues_with_dead
from ..lifecycle.pruning import EVERY_OTHER_QUEUE, PAGE
from ..signals import worker_event
from .retention import BUDGET_SECONDS, kept_by_queue


def prune_dead_letters(*, page: int = PAGE, budget: float = BUDGET_SECONDS) -> int:
    """Delete a page of what is beyond each limit, and more within the budget; return how many."""
    deadline = time.monotonic() + budget
    deleted = 0
    limits = limits_in_force()
    random.shuffle(limits)  # the jobs of one may not be deletable, and then the run ends there
    for limit in limits:
        while True:
            try:
                step = prune_dead(limit, page=page).total()
            except PruningRefused as refusal:
                fields = {limit.column: limit.name, "reason": str(refusal)}
                worker_event.send_robust("dead_not_pruned", level=logging.ERROR, fields=fields)
                break
            deleted += step
            if step < page or time.monotonic() >= deadline:
                break
    return deleted


def limits_in_force() -> list[DeadLimit]:
    """The limits of job types, then those of all queues that have dead jobs."""
    known = {name: registry.get(name).retention for name in registry.versions()}
    types = {name: kept_by_status(given)["dead"] for name, given in known.items() if given}
    queues = kept_by_queue()
    limits = [DeadLimit(column="job_type", name=name, kept=kept) for name, kept in types.items()]
    if any(kept["dead"] != ALL for kept in queues.values()):
        for name in queues_with_dead():
            kept = queues.get(name, queues[EVERY_OTHER_QUEUE])["dead"]
            limits.append(DeadLimit(column="queue", name=name, kept=kept, but=list(types)))
    return [limit for limit in limits if limit.kept != ALL]
