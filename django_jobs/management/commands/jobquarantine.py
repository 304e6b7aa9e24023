"""``manage.py jobquarantine``: block the jobs of a job type, and unblock them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from ... import registry
from ...api.closing import demand_known
from ...conf import conf
from ...domain.hints import did_you_mean
from ...lifecycle.operations import quarantines
from ...metrics.unclaimable import take_quarantines
from ...models import Quarantine
from ...models.fields import TimestampNow
from ..base import ActionCommand, operator, subcommands_of, table
from ..status_text import age

HEADS = ("JOB TYPE", "SINCE", "BLOCKED", "BY", "REASON")
MOST_NAMED = 10
"""Quarantined names that an error lists."""


class Command(ActionCommand):
    help = "List the quarantined job types; quarantine one, or lift its quarantine."

    def add_arguments(self, parser: ArgumentParser) -> None:
        action = subcommands_of(parser)
        action("list", _list, "list the quarantined job types")
        name: dict[str, Any] = {"metavar": "NAME", "help": "name of a job type"}
        add = action("add", _add, "block the jobs of this type, so that none starts")
        add("name", **name)
        add("--reason", default="", help="stored with the quarantine, with your user name")
        action("lift", _lift, "let the jobs of this type run again")("name", **name)


def _list(options: dict[str, Any]) -> Iterator[str]:
    rows = [
        (row.job_type, age(row.since_seconds), row.blocked_text, row.by or "a worker", row.reason)
        for row in take_quarantines()
    ]
    yield table(HEADS, rows) if rows else "No job type is quarantined."


def _add(options: dict[str, Any]) -> Iterator[str]:
    name, reason = options["name"], options["reason"]
    demand_known("job_type", name)
    made = quarantines.quarantine(name, reason=reason, by=operator())
    for job_type in made:
        yield f"{job_type}: quarantined. Running jobs are not stopped."
    rows = Quarantine.objects.using(conf().database).filter(job_type__in=registry.family(name))
    for row in rows.exclude(job_type__in=made).order_by("job_type").annotate(now=TimestampNow()):
        since = age((row.now - row.since).total_seconds())
        why = f": {row.reason}" if row.reason else ""
        yield f"{row.job_type}: already quarantined, for {since}, by {row.by or 'a worker'}{why}"
        if reason not in ("", row.reason):
            yield f"{row.job_type}: the reason was not changed."


def _lift(options: dict[str, Any]) -> Iterator[str]:
    lifted = quarantines.lift(options["name"])
    if not lifted:
        raise CommandError(f"{options['name']!r} is not quarantined; {_in_force(options['name'])}")
    for job_type in lifted:
        yield f"{job_type}: lifted."


def _in_force(name: str) -> str:
    """A hint for a name that is not quarantined: a similar name, or the quarantined ones."""
    quarantined = quarantines.in_force()
    if hint := did_you_mean(name, quarantined, most=3):
        return hint
    if len(quarantined) > MOST_NAMED:
        return "jobquarantine list shows the quarantined job types"
    names = ", ".join(quarantined)
    return f"quarantined job types: {names}" if names else "no job type is"
