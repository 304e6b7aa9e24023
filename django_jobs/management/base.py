"""What the commands for operators share: their errors, words and tables."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import (
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
)

from .. import registry
from ..conf import conf
from ..domain.hints import did_you_mean
from ..models import Job, Quarantine, Queue, Run, Worker
from ..models.database import DATABASE_ERRORS, migration_problem


class OperatorCommand(BaseCommand):
    """Says what is wrong with the database instead of printing a traceback."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except DATABASE_ERRORS as error:
            problem = database_problem(error)
            if problem is None:
                raise
            raise CommandError(problem) from error


def database_problem(error: Exception) -> str | None:
    """What an operator can do something about, in one line; None for a fault of the code."""
    if isinstance(error, ProgrammingError):
        return migration_problem(error)
    if not isinstance(error, OperationalError | InterfaceError):
        return None
    alias = conf().database
    state = getattr(error.__cause__, "sqlstate", None)
    text = " ".join(str(error).split())
    away = state is None or state.startswith(("08", "57P", "53300"))
    return f"the database {alias!r} {'does not answer' if away else 'refused'}: {text}"


def demand_no_transaction(command: str) -> None:
    """Raise ``CommandError`` inside ``transaction.atomic()``, as in a ``TestCase``: the processes
    of ``command`` would not see what it wrote, and closing its connection would lose it."""
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        raise CommandError(
            f"{command} runs inside transaction.atomic(): use TransactionTestCase, or "
            "pytest.mark.django_db(transaction=True)"
        )


def demand_queue(name: str) -> None:
    """Raise ``CommandError`` for a misspelt queue. One whose row is gone may still have jobs."""
    alias = conf().database
    known = Queue.objects.using(alias)
    if known.filter(name=name).exists() or Job.objects.using(alias).filter(queue=name).exists():
        return
    names = ", ".join(known.values_list("name", flat=True))
    raise CommandError(f"no queue is named {name!r}; known are: {names}")


def demand_job_type(name: str) -> None:
    """Raise ``CommandError`` for a misspelt name: one that neither this code, a worker nor a job
    knows, and that was never quarantined."""
    alias = conf().database
    known = (
        registry.find(name) is not None
        or Worker.objects.using(alias).filter(job_types__contains=name).exists()
        or Quarantine.objects.using(alias).filter(job_type=name).exists()
        or Job.objects.using(alias).filter(job_type=name).exists()
    )
    if not known:
        hint = did_you_mean(name, registry.names(), most=3)
        raise CommandError(f"no job type is named {name!r}" + (f"; {hint}" if hint else ""))


def demand_fingerprint(fingerprint: str) -> None:
    """Raise ``CommandError`` for one that no run has. It has no index: a misspelt one is looked for
    in all runs."""
    if not Run.objects.using(conf().database).filter(fingerprint=fingerprint).exists():
        raise CommandError(
            f"no run has the fingerprint {fingerprint!r}; see the page of a run in the admin"
        )


def operator() -> str:
    """Who is at the command line: ``deploy@web-1``."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def counted(number: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what stands in them."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *rows))
    return "\n".join(lines)
