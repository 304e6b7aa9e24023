"""``manage.py jobs VERB``: all that an operator does from a shell."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from ..subcommands import VERBS, command_of


class Command(BaseCommand):
    help = (
        "Show, explain and change jobs, queues, schedules and workers. `jobs VERB --help` has the "
        "options of a verb."
    )
    requires_system_checks = ()  # the verb has them

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("verb", choices=VERBS, metavar="VERB", help=", ".join(VERBS))
        parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="of the verb")

    def run_from_argv(self, argv: list[str]) -> None:
        program, name, *rest = argv
        if rest and rest[0] in VERBS:
            command = command_of(rest[0])
            command.run_from_argv([program, f"{name} {rest[0]}", *rest[1:]])
        else:
            super().run_from_argv(argv)

    def handle(self, *args: Any, verb: str, rest: list[str], **options: Any) -> None:
        """Of ``call_command()``, and of a shell with options before the verb."""
        command = command_of(verb)
        parser = command.create_parser("manage.py", f"jobs {verb}")
        parser.set_defaults(**{**options, "stdout": self.stdout, "stderr": self.stderr})
        command.execute(**vars(parser.parse_args(rest)))
