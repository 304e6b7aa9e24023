"""``manage.py jobimport``: take the waiting jobs or the schedules of another queue over."""

from __future__ import annotations

from argparse import ArgumentParser

from ...contrib import sources
from ..arguments import add_subcommand
from ..base import ActionCommand


class Command(ActionCommand):
    """One subcommand for each queue that jobs can come from."""

    help = "Take the waiting jobs or the schedules of another queue over."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parsers = parser.add_subparsers(dest="source", required=True, metavar="SOURCE")
        for name, source in sources().items():
            added = add_subcommand(parsers, name, source.run, source.meaning)
            source.add_options(added.add_argument)
