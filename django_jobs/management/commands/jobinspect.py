"""``manage.py jobinspect``: what a running job is doing now."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...lifecycle.operations import inspections
from ...models import Job
from ..base import OperatorCommand, demand_no_transaction, row_of
from ..reports import as_dict, render


class Command(OperatorCommand):
    help = (
        "Show which worker runs a job, for how long, its progress, and the stack of its handler. "
        "Exits with 1 if the job is not running, or its worker does not answer."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("id", type=int, metavar="ID", help="id of a running job")
        add("--json", action="store_true", help="print one JSON object")
        add(
            "--timeout",
            type=float,
            default=15.0,
            metavar="SECONDS",
            help="wait this long for the answer of the worker (15)",
        )
        add("--no-stack", action="store_true", help="print only what the tables know")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 <= options["timeout"] <= 600:
            raise CommandError(f"--timeout takes 0 to 600 seconds, not {options['timeout']:g}")
        demand_no_transaction("jobinspect")
        job = row_of(Job.objects.all(), options["id"], "job")
        if job.status != "running":
            raise CommandError(f"job {job.pk} is not running: it is {job.status}")
        problem, question = "", None
        if not options["no_stack"]:
            question, problem = self._ask(job, options["timeout"])
        shown = as_dict(job, question)
        self.stdout.write(json.dumps(shown) if options["json"] else render(shown))
        if problem:
            raise CommandError(problem)

    def _ask(self, job: Job, timeout: float) -> tuple[Any, str]:
        if not inspections.ask([job.pk]).done:
            raise CommandError(f"job {job.pk} has just ended")
        question = inspections.latest(job.pk)
        assert question is not None
        question = inspections.wait_for_answer(question, timeout)
        if question.answered_at is not None:
            return question, ""
        why = inspections.why_unanswered(question)
        return question, f"no answer within {timeout:g} s: {why}"
