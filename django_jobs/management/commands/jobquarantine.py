"""``manage.py jobquarantine``: block the jobs of a job type, and unblock them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ... import registry
from ...conf import conf
from ...domain.hints import did_you_mean
from ...lifecycle.operations import quarantines
from ...metrics.unclaimable import take_quarantines
from ...models import Quarantine
from ...models.fields import TimestampNow
from ..arguments import add_subcommand
from ..base import OperatorCommand, demand_job_type, operator, table
from ..status_text import age

HEADS = ("JOB TYPE", "SINCE", "BLOCKED", "BY", "REASON")
MOST_NAMED = 10
"""Quarantined names that an error lists."""


class Command(OperatorCommand):
    """List, add and lift quarantines."""

    help = "List the quarantined job types; quarantine one, or lift its quarantine."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for action, does, meaning in (
            ("list", self._list, "list the quarantined job types"),
            ("add", self._add, "block the jobs of this type, so that none starts"),
            ("lift", self._lift, "let the jobs of this type run again"),
        ):
            added = add_subcommand(parsers, action, does, meaning)
            if action != "list":
                added.add_argument("name", metavar="NAME", help="name of a job type")
            if action == "add":
                added.add_argument(
                    "--reason", default="", help="stored with the quarantine, with your user name"
                )

    def handle(self, *args: Any, **options: Any) -> None:
        options["does"](**options)

    def _list(self, **options: Any) -> None:
        rows = [
            (
                row.job_type,
                age(row.since_seconds),
                row.blocked_text,
                row.by or "a worker",
                row.reason,
            )
            for row in take_quarantines()
        ]
        self.stdout.write(table(HEADS, rows) if rows else "No job type is quarantined.")

    def _add(self, *, name: str, reason: str, **options: Any) -> None:
        demand_job_type(name)
        made = quarantines.quarantine(name, reason=reason, by=operator())
        for job_type in made:
            self.stdout.write(f"{job_type}: quarantined. Running jobs are not stopped.")
        rows = Quarantine.objects.using(conf().database).filter(job_type__in=registry.family(name))
        for row in (
            rows.exclude(job_type__in=made).order_by("job_type").annotate(now=TimestampNow())
        ):
            since = age((row.now - row.since).total_seconds())
            why = f": {row.reason}" if row.reason else ""
            self.stdout.write(
                f"{row.job_type}: already quarantined, for {since}, by {row.by or 'a worker'}{why}"
            )
            if reason not in ("", row.reason):
                self.stdout.write(f"{row.job_type}: the reason was not changed.")

    def _lift(self, *, name: str, **options: Any) -> None:
        lifted = quarantines.lift(name)
        if not lifted:
            raise CommandError(f"{name!r} is not quarantined; {_in_force(name)}")
        for job_type in lifted:
            self.stdout.write(f"{job_type}: lifted.")


def _in_force(name: str) -> str:
    """A hint for a name that is not quarantined: a similar name, or the quarantined ones."""
    quarantined = quarantines.in_force()
    if hint := did_you_mean(name, quarantined, most=3):
        return hint
    if len(quarantined) > MOST_NAMED:
        return "jobquarantine list shows the quarantined job types"
    names = ", ".join(quarantined)
    return f"quarantined job types: {names}" if names else "no job type is"
