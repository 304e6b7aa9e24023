"""Subcommands, and the values of options: numbers and times."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..domain.durations import seconds_of
from ..domain.errors import cut

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
    """A whole number above zero, for argparse."""
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
