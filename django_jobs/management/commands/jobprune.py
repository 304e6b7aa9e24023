"""``manage.py jobprune``: delete finished jobs and their runs."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Collection
from typing import Any

from django.core.management.base import CommandError

from ...domain.retention import Kept
from ...domain.states import FINAL, JobState
from ...lifecycle.dead_letters import (
    DeadLimit,
    Group,
    PruningRefused,
    count_dead,
    prune_dead,
    queues_with_dead,
)
from ...lifecycle.pruning import EVERY_OTHER_QUEUE, PAGE, Rules, prune
from ...maintenance.retention import limits_in_force, rules_in_force
from ..base import OperatorCommand, age_of, counted, demand_queue, whole


class Command(OperatorCommand):
    help = (
        "Delete finished jobs and their runs. Without options: those past their configured "
        "retention. Dead letters are deleted by --older-than only if --status dead names them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--status",
            action="append",
            choices=sorted(state.value for state in FINAL),
            help="only jobs with this final status; may be repeated",
        )
        add(
            "--older-than",
            metavar="AGE",
            help="only jobs that finished this long ago (12h, 7d); overrides the retention",
        )
        add("--queue", help="only jobs of this queue")
        add("--dry-run", action="store_true", help="only count the jobs")
        add("--batch", type=whole, default=PAGE, help=f"jobs examined per statement ({PAGE})")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["batch"] <= 100_000:
            raise CommandError(f"--batch takes 1 to 100,000, not {options['batch']}")
        queue, dry_run = options["queue"], options["dry_run"]
        age = age_of(options["older_than"], "--older-than")
        statuses = options["status"] or (FINAL if age is None else FINAL - {JobState.DEAD})
        if queue is not None:
            demand_queue(queue)
        deleted = _prune(_rules(statuses, age, queue), options["batch"], dry_run)
        dead: Counter[Group] = Counter()
        refusals: list[str] = []
        for limit in _limits(age, queue) if JobState.DEAD in statuses else ():
            if dry_run:
                dead += count_dead(limit, queue=queue)
                continue
            try:
                while step := prune_dead(limit, queue=queue, page=options["batch"]):
                    dead += step
            except PruningRefused as refusal:
                refusals.append(f"dead jobs of {limit.name} were kept: {refusal}")
        verb = "Would delete" if dry_run else "Deleted"
        for (job_type, name, reason), number in sorted(dead.items()):
            what = f"{counted(number, 'dead job')} of {job_type} in queue {name}"
            self.stdout.write(f"{verb} {what}, over the limit on {reason}.")
        self.stdout.write(f"{verb} {counted(deleted + dead.total(), 'job')}.")
        if refusals:
            raise CommandError("; ".join(refusals))


def _prune(rules: Rules, page: int, dry_run: bool) -> int:
    after: int | None = 0
    deleted = 0
    while after is not None:
        step = prune(rules, after=after, page=page, dry_run=dry_run)
        deleted += step.deleted
        after = step.next_after
    return deleted


def _rules(statuses: Collection[str], age: float | None, queue: str | None) -> Rules:
    rules: Rules = rules_in_force()
    if age is not None:
        rules = {EVERY_OTHER_QUEUE: dict.fromkeys(FINAL - {JobState.DEAD}, age)}
    if queue is not None:
        rules = {queue: rules.get(queue, rules[EVERY_OTHER_QUEUE])}
    return {
        name: {status: keep for status, keep in rule.items() if status in statuses}
        for name, rule in rules.items()
    }


def _limits(age: float | None, queue: str | None) -> list[DeadLimit]:
    if age is None:
        limits = limits_in_force()
    else:
        kept = Kept(age=age)
        limits = [DeadLimit(column="queue", name=name, kept=kept) for name in queues_with_dead()]
    return [limit for limit in limits if limit.column != "queue" or queue in (None, limit.name)]
