"""``manage.py jobwhy``: why a job is not running."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from ...conf import conf
from ...logs import printable
from ...models import Job
from ...why.evaluation import explain
from ...why.explanation import Explanation, GateState, plain
from ..base import OperatorCommand, row_of


class Command(OperatorCommand):
    help = (
        "Show why a job is not running: each gate on its way to a worker, what holds it, how many "
        "jobs are before it, and its expected start."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", type=int, metavar="ID", help="id of a job")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        jobs = Job.objects.using(conf().database).defer("payload", "result", "headers", "signals")
        job = row_of(jobs, options["id"], "job")
        explanation = explain(job)
        shown = json.dumps(explanation.as_dict()) if options["json"] else render(job, explanation)
        self.stdout.write(shown)


MARKS = {GateState.PASSED: "ok", GateState.HOLDS: "HOLDS", GateState.UNKNOWN: "?"}


def render(job: Job, why: Explanation) -> str:
    """For a terminal: the sentence, and a line for each gate."""
    lines = [f"{job.job_type} #{job.pk} on {job.queue} is {job.status}. {plain(why.sentence)}"]
    if why.expected is not None and why.expected.seconds:
        lines.append(f"The expected start is computed from this: {why.expected.basis}.")
    if why.gates:
        lines.append("")
    width = max((len(gate.title) for gate in why.gates), default=0)
    for gate in why.gates:
        lines.append(f"{MARKS[gate.state]:<6} {gate.title:<{width}}  {plain(gate.text)}")
        lines += [f"{'':<7}{'':<{width}}  {plain(detail)}" for detail in gate.details]
    return "\n".join(map(printable, lines))
