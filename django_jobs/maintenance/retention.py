"""Deletes succeeded and cancelled jobs after their retention, and dead ones beyond their limits."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from django.db.models import TextField
from django.db.models.functions import Cast

from .. import registry
from ..conf import conf
from ..domain.maintenance import TaskParts
from ..domain.numbers import seconds_of
from ..domain.retention import ALL, NOT_OF_JOBS, Kept, Period, end_of, kept_by_status
from ..domain.states import FINAL, JobState
from ..lifecycle import history
from ..lifecycle.dead_letters import DeadLimit, PruningRefused, prune_dead, queues_with_dead
from ..lifecycle.operations import bulk
from ..lifecycle.progress import PRUNE_EFFECTS
from ..lifecycle.pruning import (
    ANY_EXPIRED,
    ANY_EXPIRED_WORKFLOW,
    ANY_RUN_LEFT,
    EVERY_OTHER_QUEUE,
    HISTORY,
    LONGEST_KEPT,
    PAGE,
    PRUNE_EXCEPTIONS,
    PRUNE_RESOURCE_OUTCOMES,
    PRUNE_TICKS,
    PRUNE_UNIQUE_KEYS,
    PRUNE_WORKERS,
    WITHOUT_PARTITION,
    Page,
    Rules,
    prune,
    prune_old,
    prune_runs,
    prune_workflows,
    runs_go_with_jobs,
)
from ..lifecycle.run_totals import prune_run_totals
from ..models import Queue
from ..signals import emit

EVERY_SECONDS = 60.0
ALL_SECONDS = 3600.0
"""How often it runs without a question: few rows are past their time that no question names."""
BUDGET_SECONDS = 0.25
"""Seconds for one run. The next run continues an unfinished pass."""

WORKER_SECONDS = 7 * 86_400.0
"""Seconds for which the row of an ended worker is kept."""

FIRST = datetime(1970, 1, 1, tzinfo=UTC)

OPERATION_SECONDS = 90 * 86_400.0
"""Seconds for which an ended operation on many jobs is kept, with its report."""

TICK_SECONDS = 90 * 86_400.0
"""Seconds for which the outcome of a due time is kept, and its exception. A backfill of an
older due time makes its job a second time."""


RUNS = "django_jobs_run_default"
WALKS = WITHOUT_PARTITION, HISTORY, RUNS

Part = Callable[[float], int]
"""Deletes rows until a deadline; returns how many."""


class Retention:
    """Passes by primary key. Their positions are kept from run to run.

    What is kept longest goes with its partition; see :mod:`.history`. One pass deletes the jobs
    that have no partition, one those that are kept less long, and one the runs that have none.
    """

    def __init__(self, *, page: int = PAGE, budget: float = BUDGET_SECONDS) -> None:
        self.page = page
        self.budget = budget
        self.after = dict.fromkeys(WALKS, 0)
        self._stuck: set[str] = set()
        self._task_parts = TaskParts()

    def run_once(self) -> int:
        """Delete expired rows until the budget is spent; return how many were deleted.

        At the end of all walks, ended workers, expired unique keys and effects, outcomes that no
        breaker counts, old ticks and old totals are deleted too, and the next run starts from the
        lowest id.
        """
        deadline = time.monotonic() + self.budget
        return self._task_parts.run([partial(part, deadline) for part in self._parts()])

    def _parts(self) -> list[Part]:
        rules = rules_in_force()
        by_row = kept_less_long(rules) if history.owns_tables() else rules
        parts: list[Part] = [
            self._prune_workflows,
            partial(self._walk, WITHOUT_PARTITION, partial(prune, rules, table=WITHOUT_PARTITION)),
            partial(self._walk, HISTORY, partial(prune, by_row)),
        ]
        if not runs_go_with_jobs() and (age := runs_kept(rules)) is not None:
            parts.append(partial(self._walk, RUNS, partial(prune_runs, age)))
        last: list[Part] = [
            lambda _: prune_old(PRUNE_WORKERS, older_than=WORKER_SECONDS),
            lambda _: prune_run_totals(),
            lambda _: bulk.prune(OPERATION_SECONDS),
            partial(self._repeat, partial(prune_old, PRUNE_UNIQUE_KEYS)),
            partial(self._repeat, partial(prune_old, PRUNE_EFFECTS)),
            partial(self._repeat, partial(prune_old, PRUNE_RESOURCE_OUTCOMES)),
            partial(self._repeat, partial(prune_old, PRUNE_TICKS, older_than=TICK_SECONDS)),
            partial(self._repeat, partial(prune_old, PRUNE_EXCEPTIONS, older_than=TICK_SECONDS)),
        ]
        return parts + [partial(self._at_the_end, part) for part in last]

    def _at_the_end(self, part: Part, deadline: float) -> int:
        """Do this, unless a walk is under way."""
        walks = (after for table, after in self.after.items() if table not in self._stuck)
        return 0 if any(walks) else part(deadline)

    def _prune_workflows(self, deadline: float) -> int:
        """Delete the expired runs of workflows with their steps."""
        age = seconds_of(conf().retention["workflows"])
        if age is None:
            return 0
        dead = kept_by_queue()[EVERY_OTHER_QUEUE]["dead"].age
        return self._repeat(lambda page: prune_workflows(age, dead, page), deadline)

    def _walk(self, table: str, prune_page: Callable[..., Page], deadline: float) -> int:
        deleted = 0
        while True:
            self._stuck.add(table)
            page = prune_page(after=self.after[table], page=self.page)
            self._stuck.discard(table)
            deleted += page.deleted
            self.after[table] = page.next_after or 0
            if page.next_after is None or time.monotonic() >= deadline:
                return deleted

    def _repeat(self, prune_page: Callable[[int], int], deadline: float) -> int:
        deleted = 0
        while True:
            gone = prune_page(self.page)
            deleted += gone
            if gone < self.page or time.monotonic() >= deadline:
                return deleted


class StoredFiles:
    """Deletes files after the last job that refers to them. Remembers how far it has come."""

    def __init__(self) -> None:
        self._after = 0

    def run_once(self) -> int:
        """Delete some until the budget is spent, and at the end of a pass those that a transaction
        which rolled back has left behind; return how many. Raises an error of the storage."""
        from ..lifecycle.stored_files import delete_left_behind, delete_unused

        deadline = time.monotonic() + BUDGET_SECONDS
        deleted = 0
        while True:
            page, problem = delete_unused(self._after)
            self._after = page.next_after or 0
            deleted += page.deleted
            if problem is not None:
                raise problem
            if not self._after:
                return deleted + delete_left_behind()
            if time.monotonic() >= deadline:
                return deleted


def retention_asks() -> str:
    """The condition, in SQL, under which there may be something to delete soon; empty where rows of
    partitions are deleted."""
    by_row = kept_less_long(rules_in_force(queues=False))
    if any(age is not None for one in by_row.values() for age in one.values()):
        return ""
    asks = [ANY_EXPIRED] if runs_go_with_jobs() else [ANY_EXPIRED, ANY_RUN_LEFT]
    if (age := seconds_of(conf().retention["workflows"])) is not None:
        asks.append(ANY_EXPIRED_WORKFLOW.format(seconds=min(age, LONGEST_KEPT)))
    return f"({' OR '.join(asks)})"


def runs_kept(rules: Rules) -> float | None:
    """Seconds for which runs are kept: those of ``RETENTION``, or as jobs are; None for ever."""
    return longest_kept(rules) if runs_go_with_jobs() else seconds_of(conf().retention["runs"])


def rules_in_force(*, queues: bool = True) -> Rules:
    """How long succeeded and cancelled jobs are kept, unless those of ``queues`` have their own."""
    kept_by = kept_by_queue() if queues else {EVERY_OTHER_QUEUE: _kept_by_default()}
    return {
        queue: {status: one.age for status, one in kept.items() if status != JobState.DEAD}
        for queue, kept in kept_by.items()
    }


def kept_less_long(rules: Rules) -> Rules:
    """Those of the rules under which jobs are deleted before their partition is dropped."""
    longest = longest_kept(rules)
    period = end_of(Period(conf().history["partition"]), FIRST) - FIRST
    whole = longest is not None and longest >= period.total_seconds()
    return {
        queue: {status: keep for status, keep in rule.items() if not (whole and keep == longest)}
        for queue, rule in rules.items()
    }


def longest_kept(rules: Rules) -> float | None:
    """Seconds for which some finished jobs are kept, the longest of all rules; None for ever."""
    kept = [keep for rule in rules.values() for keep in rule.values()]
    return None if None in kept else max(keep for keep in kept if keep is not None)


def kept_by_queue() -> dict[str, dict[str, Kept]]:
    """``DJANGO_JOBS["RETENTION"]``, with the settings of the queues that have their own."""
    default = _kept_by_default()
    kept = {EVERY_OTHER_QUEUE: default}
    queues = Queue.objects.using(conf().database).filter(retention__isnull=False)
    for name, text in queues.values_list("name", Cast("retention", TextField())):
        if text != "null":
            kept[name] = {**default, **_readable(text)}
    return kept


def _kept_by_default() -> dict[str, Kept]:
    retention = conf().retention
    return kept_by_status(retention, NOT_OF_JOBS)


def _readable(text: str) -> dict[str, Kept]:
    """A queue's own retention, of JSON. An unreadable one keeps jobs: an error must not delete."""
    with suppress(ValueError, RecursionError):
        own = json.loads(text)
        if isinstance(own, Mapping):
            return kept_by_status(own)
    return dict.fromkeys(FINAL, ALL)


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
                of = {limit.column: limit.name}
                emit("dead_not_pruned", logging.ERROR, **of, reason=str(refusal))
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
