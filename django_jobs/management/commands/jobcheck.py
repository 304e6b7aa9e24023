"""``manage.py jobcheck``: check that this code can run the stored jobs and schedules."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from ..base import OperatorCommand, counted, table
from ..payload_check import PayloadCheck, check_pending

JOB_HEADS = ("JOB TYPE", "VERSION", "JOBS", "LOWEST ID", "WHY")
SCHEDULE_HEADS = ("SCHEDULE", "JOB TYPE", "VERSION", "WHY")


class Command(OperatorCommand):
    """Try the stored payloads with the handlers of this code. Run it before a deployment, with the
    new code while the old code still runs."""

    help = (
        "List the live jobs, and the schedules of the admin, that this code cannot run. Exits with "
        "1 if there are any."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--pending",
            action="store_true",
            help="check all live jobs, and the schedules that no code declares; also the default",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        report = check_pending()
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report)))
        else:
            for line in _problem_tables(report):
                self.stdout.write(line)
        if report.unreadable_jobs or report.unreadable_schedules:
            jobs = counted(report.unreadable_jobs, "job")
            schedules = counted(report.unreadable_schedules, "schedule")
            raise CommandError(f"this code cannot run {jobs} and {schedules}")


def _problem_tables(report: PayloadCheck) -> Iterator[str]:
    if report.listed_jobs:
        yield table(JOB_HEADS, [list(map(str, row.values())) for row in report.listed_jobs])
    if report.listed_schedules:
        rows = [list(map(str, row.values())) for row in report.listed_schedules]
        yield table(SCHEDULE_HEADS, rows)
    checked = f"{counted(report.jobs, 'live job')} and {counted(report.schedules, 'schedule')}"
    yield f"Checked {checked}."
