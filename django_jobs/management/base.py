"""Shared by the commands for operators: errors, look-ups and tables."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from math import isfinite
from signal import SIGINT
from typing import Any, ClassVar, TypeVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import InterfaceError, OperationalError, ProgrammingError, connections
from django.db.models import Model, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..conf import conf
from ..domain.errors import cut
from ..domain.hints import did_you_mean, hint
from ..domain.numbers import seconds_of
from ..domain.states import LIVE
from ..exceptions import JobsError
from ..lifecycle.operations import OperationResult
from ..models import Job, Queue, Run
from ..models.database import DATABASE_ERRORS, migration_problem, sqlstate_of

M = TypeVar("M", bound=Model)

HIGHEST = 2**63 - 1
"""Of a number in PostgreSQL."""

OF_DJANGO: dict[tuple[str, ...], dict[str, Any]] = {
    ("--settings",): {},
    ("--pythonpath",): {},
    ("-v", "--verbosity"): {"type": int},
    ("--traceback",): {"action": "store_true"},
}
"""Options of Django, accepted after the name of a subcommand too."""


AddArgument = Callable[..., argparse.Action]
AddSubcommand = Callable[[str, Callable[..., Any], str], AddArgument]


def subcommands_of(parser: argparse.ArgumentParser, dest: str = "action") -> AddSubcommand:
    """Let a command have subcommands: what adds one returns what adds its arguments. The name of
    the chosen one is then in the options as ``dest``, and what it ``does``."""
    parsers = parser.add_subparsers(dest=dest, required=True, metavar=dest.upper())

    def add(name: str, does: Callable[..., Any], meaning: str) -> AddArgument:
        added: argparse.ArgumentParser = parsers.add_parser(
            name, help=meaning, description=f"{meaning.capitalize()}."
        )
        added.set_defaults(does=does)
        for flags, options in OF_DJANGO.items():
            added.add_argument(*flags, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)
        return added.add_argument

    return add


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} must be greater than 0")
    return number


def seconds(text: str) -> float:
    """A number of seconds, 0 or more, for argparse."""
    return 0.0 if float(text) == 0 else positive(text)


def count(text: str) -> int:
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def whole(text: str) -> int:
    """A whole number that PostgreSQL can have, for argparse."""
    if len(text) > 40 or abs(number := int(text)) > HIGHEST:
        raise argparse.ArgumentTypeError(f"{cut(text, 40)} is not between -{HIGHEST} and {HIGHEST}")
    return number


def since(text: str) -> Any:
    """The time that ``--since`` names: a date, or an age by the database's clock.

    Raises ``CommandError`` for anything else.
    """
    with suppress(ValueError):
        return Now() - timedelta(seconds=min(seconds_of(text) or 0.0, 1e10))
    moment = _moment(text)
    if moment is None:
        raise CommandError(f"--since takes an age such as 2h or 1d, or a date, not {text!r}")
    return moment


def until(text: str) -> datetime | timedelta:
    """A time for argparse: an ISO date or time, local without an offset, or an age from now."""
    with suppress(ValueError):
        if found := seconds_of(text):
            return timedelta(seconds=min(found, 1e10))
    moment = _moment(text)
    if moment is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no date, no time and no age such as 2h")
    return moment


def _moment(text: str) -> datetime | None:
    """An ISO date or time, local without an offset; None for anything else."""
    moment: datetime | None = None
    with suppress(ValueError):  # such as month 13
        moment = parse_datetime(text)
    return (
        timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment
    )


NO_RIGHT = "42501"


class OperatorCommand(BaseCommand):
    """Reports Ctrl-C, and an error of the database or of this package, in one line instead of a
    traceback, and an unknown option with the one that was probably meant."""

    instead: ClassVar[Mapping[str, str]] = {}
    """What to write for options of other job queues; "" for a word without an option."""

    def create_parser(self, *args: Any, **options: Any) -> CommandParser:
        parser = super().create_parser(*args, **options)
        refuse = parser.error

        def error(message: str) -> Any:
            if unknown := re.search(r"unrecognized arguments: ([^\s=]*)", message):
                word = unknown[1]
                meant = self.instead.get(word if word.startswith("-") else "")
                known = [one for one in parser._option_string_actions if one.startswith("--")]
                message += f"; {meant}" if meant else hint(word, known)
            return refuse(message)

        parser.error = error  # type: ignore[method-assign]
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
            sys.exit(128 + SIGINT)

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except DATABASE_ERRORS as error:
            problem = database_problem(error)
            if problem is None:
                raise
            raise CommandError(problem) from error
        except JobsError as error:
            raise CommandError(str(error)) from None

    def report_refused(self, result: OperationResult, noun: str) -> None:
        """Print what was refused, and why. Raises ``CommandError`` if anything was."""
        for id_, why_not in result.refused.items():
            self.stderr.write(f"{noun} {id_} was refused: {why_not}")
        if result.refused:
            of = counted(len({*result.done, *result.refused}), noun)
            raise CommandError(f"{len(result.refused)} of {of} refused")


class ActionCommand(OperatorCommand):
    """Runs the chosen subcommand, ``does`` of the options, and prints the lines that it yields."""

    def handle(self, *args: Any, **options: Any) -> None:
        for line in options["does"](options):
            self.stdout.write(line)


def database_problem(error: Exception) -> str | None:
    """A database error in one line for an operator; None if it is a bug in the code."""
    alias = conf().database
    state = sqlstate_of(error)
    text = " ".join(str(error).split())
    if state == NO_RIGHT:
        return f"the database {alias!r} refused: {text}"
    if isinstance(error, ProgrammingError):
        return migration_problem(error)
    if not isinstance(error, OperationalError | InterfaceError):
        return None
    away = state is None or state.startswith(("08", "57P", "53300"))
    return f"the database {alias!r} {'does not answer' if away else 'refused'}: {text}"


def demand_no_transaction(command: str) -> None:
    """Raise ``CommandError`` inside ``transaction.atomic()``, as in a ``TestCase``: the processes
    of ``command`` would not see its writes, and closing its connection would lose them."""
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        raise CommandError(
            f"{command} cannot run inside transaction.atomic(): use TransactionTestCase, or "
            "pytest.mark.django_db(transaction=True)"
        )


def demand_queue(name: str) -> None:
    """Raise ``CommandError`` for an unknown queue. A queue without a row may still have jobs."""
    queues = list(Queue.objects.names())
    if name not in queues and not Job.objects.using(conf().database).filter(queue=name).exists():
        raise CommandError(f"no queue is named {name!r}; known are: {', '.join(queues)}")


def row_of(rows: QuerySet[M], id_: int, noun: str) -> M:
    """The row with this id. Raises ``CommandError`` if there is none."""
    row = rows.filter(pk=id_).first() if abs(id_) <= HIGHEST else None
    if row is None:
        raise CommandError(f"there is no {noun} {id_}")
    return row


def age_of(text: str | None, option: str) -> float | None:
    """The seconds of an age such as 7d; None for none. Raises ``CommandError``."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None


def unknown_tenants(names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """A line for each name neither ``known`` nor of a live job: its jobs may come later."""
    live = Job.objects.using(conf().database).filter(status__in=LIVE)
    for name in dict.fromkeys(names):
        if name not in known and not live.filter(tenant=name).exists():
            hint = did_you_mean(name, known, most=3)
            end = f"; {hint}" if hint else "."
            yield f"No tenant was named {name!r}, and no live job has it{end}"


def demand_fingerprint(fingerprint: str) -> None:
    """Raise ``CommandError`` if no run has this fingerprint. Reads all runs: there is no index."""
    if not Run.objects.using(conf().database).filter(fingerprint=fingerprint).exists():
        raise CommandError(
            f"no run has the fingerprint {fingerprint!r}; the page of a run in the admin shows it"
        )


def operator() -> str:
    """The user of the command line, such as ``deploy@web-1``."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def json_text(value: Any) -> str:
    """``value`` as JSON, which has no infinity: null for an age since a time that is infinite, as
    hands write it. What JSON does not have otherwise is a text."""
    return json.dumps(_finite(value), default=str)


def _finite(value: Any) -> Any:
    match value:
        case float() if not isfinite(value):
            return None
        case dict():
            return {name: _finite(one) for name, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
    return value


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *rows))
    return "\n".join(lines)


def cell(text: str, longest: int = 60) -> str:
    """A cell of a table: the text in one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
