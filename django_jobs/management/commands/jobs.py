"""``manage.py jobs VERB``: all that an operator does from a shell."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, DjangoHelpFormatter

from ..subcommands import VERBS, command_of, known_command


class HelpFormatter(DjangoHelpFormatter):
    """Leaves the lines of the verbs as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Command(BaseCommand):
    help = (
        "Show, explain and change jobs, queues, schedules and workers. `jobs VERB --help` has the "
        "options of a verb."
    )
    requires_system_checks = ()  # the verb has them

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        options |= {"formatter_class": HelpFormatter, "epilog": descriptions()}
        return super().create_parser(prog_name, subcommand, **options)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("verb", type=known_command, metavar="VERB", help="one of those below")
        parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="of the verb")

    def run_from_argv(self, argv: list[str]) -> None:
        program, name, *rest = argv
        if rest and rest[0] in VERBS:
            command = command_of(rest[0])
            command.run_from_argv([program, f"{name} {rest[0]}", *rest[1:]])
        elif rest:
            super().run_from_argv(argv)
        else:
            self.create_parser(program, name).print_help(sys.stderr)
            sys.exit(2)

    def handle(self, *args: Any, verb: str, rest: list[str], **options: Any) -> None:
        """Of ``call_command()``, and of a shell with options before the verb."""
        command = command_of(verb)
        parser = command.create_parser("manage.py", f"jobs {verb}")
        parser.set_defaults(**{**options, "stdout": self.stdout, "stderr": self.stderr})
        command.execute(**vars(parser.parse_args(rest)))


def descriptions() -> str:
    """A line for each verb, of what it does: the first sentence of its help."""
    lines = ["verbs:"]
    for verb in VERBS:
        sentence = command_of(verb).help.partition(". ")[0].removesuffix(".")
        begin, further = f"  {verb:<12}", " " * 14
        lines.append(textwrap.fill(sentence, 79, initial_indent=begin, subsequent_indent=further))
    return "\n".join(lines)
