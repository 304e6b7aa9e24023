"""``manage.py jobimport``: take the waiting jobs or the schedules of another queue over."""

from __future__ import annotations

from argparse import ArgumentParser

from ...contrib import sources
from ..base import ActionCommand, subcommands_of


class Command(ActionCommand):
    help = "Take the waiting jobs or the schedules of another queue over."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_source = subcommands_of(parser, "source")
        for name, source in sources().items():
            source.add_options(add_source(name, source.run, source.meaning))
