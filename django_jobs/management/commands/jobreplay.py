"""``manage.py jobreplay``: send dead jobs back to their queues."""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from ...api import replay_problem
from ...domain.replay_plan import ReplayPlan
from ...lifecycle.operations import bulk
from ...lifecycle.operations.jobs import replay
from ..base import operator
from ..dead_jobs import DeadJobsCommand, terms_of


class Command(DeadJobsCommand):
    help = (
        "Send dead jobs back to their queue with their counters at zero; their runs are kept. "
        "Exits with 1 if any was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--plan",
            nargs="?",
            const="1,20,10,20",
            metavar="FIRST,THEN,RATE,PERCENT",
            help="let the workers do it in waves: by default first 1, then 20, then 10 per second, "
            "and stop if more than 20 percent fail",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["plan"] is None:
            checked = partial(replay, check=replay_problem)
            return self.operate(checked, options, ("replay", "Replayed"))
        plan, by = _plan(options["plan"]), f"{operator()} (jobreplay)"
        started = bulk.start(
            "replay", terms_of(options), plan=plan, by=by, reason=options["reason"]
        )
        is_new = not started.deduplicated
        what = "the workers will replay them." if is_new else "it is under way already."
        self.stdout.write(f"Operation {started.pk}: {what}")
        return None


def _plan(text: str) -> ReplayPlan:
    try:
        first, then, rate, most_failed = map(int, text.split(","))
        return ReplayPlan(first=first, then=then, rate=rate, most_failed=most_failed)
    except ValueError as error:
        raise CommandError(f"--plan takes four numbers such as 1,20,10,20: {error}") from None
