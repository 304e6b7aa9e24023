"""``manage.py jobquarantine``: hold the jobs of a job type, and let them go."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from difflib import get_close_matches
from typing import Any

from django.core.management.base import CommandError

from ... import registry
from ...conf import conf
from ...lifecycle import quarantining
from ...metrics.snapshot import MOST_COUNTED, take_quarantines
from ...models import Quarantine, Worker
from ..base import OperatorCommand, operator, table
from ..glance import age

HEADS = ("JOB TYPE", "SINCE", "HELD", "BY", "REASON")


class Command(OperatorCommand):
    """List, add and release quarantines."""

    help = "Show the job types that are quarantined; quarantine one, or release it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for verb, meaning in (
            ("list", "show what is quarantined"),
            ("add", "have no job of this type start any more"),
            ("release", "let the jobs of this type go"),
        ):
            added = parsers.add_parser(verb, help=meaning, description=f"{meaning.capitalize()}.")
            # Django's own, also behind the verb, where people write them.
            added.add_argument("--settings", default=SUPPRESS, help=SUPPRESS)
            added.add_argument("--pythonpath", default=SUPPRESS, help=SUPPRESS)
            if verb != "list":
                added.add_argument("name", metavar="NAME", help="name of a job type")
            if verb == "add":
                added.add_argument("--reason", default="", help="kept with it, besides who")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = options["verb"]
        if verb == "list":
            self._list()
        elif verb == "add":
            self._add(options["name"], options["reason"])
        else:
            self._release(options["name"])

    def _list(self) -> None:
        rows = [
            (
                one.job_type,
                age(one.since_seconds),
                f"{one.held}+" if one.held >= MOST_COUNTED else str(one.held),
                one.by or "a worker",
                one.reason,
            )
            for one in take_quarantines()
        ]
        self.stdout.write(table(HEADS, rows) if rows else "Nothing is quarantined.")

    def _add(self, name: str, reason: str) -> None:
        _demand_job_type(name)
        made = quarantining.quarantine(name, reason=reason, by=operator())
        if not made:
            self.stdout.write(f"{name}: it was quarantined before.")
        for one in made:
            self.stdout.write(f"{one}: quarantined. What runs goes on.")

    def _release(self, name: str) -> None:
        released = quarantining.release(name)
        if not released:
            self.stdout.write(f"{name}: it is not quarantined.")
        for one in released:
            self.stdout.write(f"{one}: released.")


def _demand_job_type(name: str) -> None:
    """Raise ``CommandError`` for a misspelt name: known here, to a worker, or held before."""
    alias = conf().database
    known = (
        registry.find(name) is not None
        or Worker.objects.using(alias).filter(job_types__contains=name).exists()
        or Quarantine.objects.using(alias).filter(job_type=name).exists()
    )
    if not known:
        near = get_close_matches(name, registry.names(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise CommandError(f"no job type is named {name!r}{hint}")
