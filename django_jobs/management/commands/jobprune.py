"""``manage.py jobprune``: delete finished jobs and their runs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...domain.durations import seconds_of
from ...domain.states import FINAL
from ...lifecycle.pruning import EVERY_OTHER_QUEUE, PAGE, Rules, prune
from ...maintenance.retention import rules_in_force
from ..base import OperatorCommand, counted, demand_queue


class Command(OperatorCommand):
    """Delete finished jobs, by the configured retention or by the given age."""

    help = (
        "Delete finished jobs and their runs. Without options: those past their configured "
        "retention. Dead letters are deleted by age only if --status dead names them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--status",
            action="append",
            choices=sorted(FINAL),
            help="only jobs with this final status; may be repeated",
        )
        parser.add_argument(
            "--older-than",
            metavar="AGE",
            help="only jobs that finished this long ago (12h, 7d); overrides the retention",
        )
        parser.add_argument("--queue", help="only jobs of this queue")
        parser.add_argument("--dry-run", action="store_true", help="only count the jobs")
        parser.add_argument(
            "--batch", type=int, default=PAGE, help=f"jobs examined per statement ({PAGE})"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["batch"] <= 100_000:
            raise CommandError(f"--batch takes 1 to 100,000, not {options['batch']}")
        rules = _rules(options["status"], _age(options["older_than"]), options["queue"])
        after: int | None = 0
        deleted = 0
        while after is not None:
            step = prune(rules, after=after, page=options["batch"], dry_run=options["dry_run"])
            deleted += step.deleted
            after = step.next_after
        verb = "Would delete" if options["dry_run"] else "Deleted"
        self.stdout.write(f"{verb} {counted(deleted, 'job')}.")


def _age(text: str | None) -> float | None:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise CommandError(f"--older-than: {error}") from None


def _rules(statuses: list[str] | None, age: float | None, queue: str | None) -> Rules:
    if age is None:
        rules: Rules = rules_in_force()
    else:
        rules = {EVERY_OTHER_QUEUE: dict.fromkeys(statuses or ("succeeded", "cancelled"), age)}
    if statuses is not None:
        rules = {
            name: {status: keep for status, keep in rule.items() if status in statuses}
            for name, rule in rules.items()
        }
    if queue is None:
        return rules
    demand_queue(queue)
    return {queue: rules.get(queue, rules[EVERY_OTHER_QUEUE])}
