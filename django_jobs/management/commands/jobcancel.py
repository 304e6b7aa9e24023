"""``manage.py jobcancel``: cancel jobs, or stop running ones by force."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...lifecycle.operations.jobs import cancel, signed, stop
from ..base import OperatorCommand, counted, operator, whole


class Command(OperatorCommand):
    help = (
        "Cancel jobs: at once if they have not begun; otherwise they are asked to stop. Exits with "
        "1 if any was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("ids", nargs="+", type=whole, metavar="ID", help="ids of jobs")
        add(
            "--force",
            action="store_true",
            help="stop running jobs: with an exception in their handler, and a second later by the "
            "end of its process, whose other jobs run again",
        )
        add("--reason", default="", help="stored with each job, with your user name")

    def handle(self, *args: Any, ids: list[int], force: bool, reason: str, **options: Any) -> None:
        by = f"{operator()} (jobcancel)"
        if force:
            result, asked = stop(ids, by=by, reason=reason), "Stopping {} by force."
        else:
            why = signed("cancelled", by, reason)
            result, asked = cancel(ids, reason=why), "Asked {} to stop."
        if result.asked:
            self.stdout.write(asked.format(counted(len(result.asked), "running job")))
        if at_once := len(result.done) - len(result.asked):
            self.stdout.write(f"Cancelled {counted(at_once, 'job')}.")
        self.report_refused(result, "job")
