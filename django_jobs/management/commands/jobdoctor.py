"""``manage.py jobdoctor``: what is wrong with database, settings and jobs, and what to do."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from ...doctor.examination import diagnose
from ...doctor.findings import Diagnosis, Severity
from ...exceptions import NotMigrated
from ...models.database import DATABASE_ERRORS
from ..base import OperatorCommand, counted, database_problem, json_text

FAILED = 2
"""The exit code with errors, also if the database does not answer."""


class Command(OperatorCommand):
    """Changes nothing; each statement is ended after two seconds."""

    help = (
        "List what is wrong with the database, the settings and the stored jobs, and what to do. "
        "Exits with 1 if there are warnings, and with 2 if there are errors."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            diagnosis = diagnose()
        except NotMigrated as error:
            raise CommandError(str(error), returncode=FAILED) from None
        except DATABASE_ERRORS as error:
            text = database_problem(error)
            if text is None:
                raise
            raise CommandError(text, returncode=FAILED) from error
        if options["json"]:
            self.stdout.write(json_text(diagnosis.as_json()))
        else:
            for line in _lines(diagnosis):
                self.stdout.write(line)
        if diagnosis.exit_code:
            errors = counted(diagnosis.count(Severity.ERROR), "error")
            warnings = counted(diagnosis.count(Severity.WARNING), "warning")
            raise CommandError(f"{errors}, {warnings}", returncode=diagnosis.exit_code)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    for finding in diagnosis.findings:
        yield f"{finding.severity.upper()} {finding.id}: {finding.problem}"
        yield f"    {finding.advice}"
        for command in finding.commands:
            yield f"        {command}"
    for one in diagnosis.not_examined:
        yield f"Not examined: {', '.join(one.ids)}: {one.reason}"
    if not diagnosis.findings:
        yield "Nothing was found."
