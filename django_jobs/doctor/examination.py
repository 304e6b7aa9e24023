"""Makes all examinations, so that they can neither change nor hold up anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction

from ..domain.errors import ErrorReport
from ..exceptions import NotMigrated
from ..models.database import (
    DATABASE_ERRORS,
    fetch,
    jobs_connection,
    migration_problem,
    needing_tables,
    sqlstate_of,
)
from . import configuration, history, incidents, schedules, server, tables, work
from .findings import CannotExamine, Diagnosis, Finding, NotExamined, Reader, Severity, Statement

STATEMENT_SECONDS = 2.0
LOCK_SECONDS = 0.5

# Local to the transaction, so that nobody inherits them from a pool. It fails without our tables.
HARMLESS = """
SELECT 'django_jobs_job_live'::regclass, set_config('statement_timeout', %(statement)s, true),
    set_config('lock_timeout', %(lock)s, true), set_config('transaction_read_only', 'on', true)
"""
BEGIN = "SAVEPOINT django_jobs_doctor"
UNDO = f"ROLLBACK TO {BEGIN}"


class Examination(NamedTuple):
    """A function that yields findings of these kinds. It may raise :class:`CannotExamine`.

    The statements in ``reads`` are read ahead, and the function gets the :class:`Reader`. One that
    opens connections of its own holds no other one meanwhile, because a pool may have only one.
    """

    examine: Callable[..., Iterable[Finding]]
    numbers: tuple[str, ...]
    reads: tuple[Statement, ...] = ()
    connects: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f"django_jobs.{number}" for number in self.numbers)

    def findings(self, reader: Reader) -> Iterable[Finding]:
        return self.examine(reader) if self.reads else self.examine()


EXAMINATIONS = (
    Examination(tables.examine_server, ("D102",), (tables.SERVER,)),
    Examination(tables.examine_tables, ("D101", "D103", "D104"), (tables.TABLES,)),
    Examination(tables.examine_sessions, ("D111",), (tables.SESSIONS, tables.SEES_SESSIONS)),
    Examination(tables.examine_prepared, ("D112",), (tables.PREPARED,)),
    Examination(tables.examine_slots, ("D113",), (tables.SLOTS,)),
    Examination(
        tables.examine_indexes,
        ("D121", "D122", "D123", "D124"),
        (tables.INDEXES, *history.PARTITIONS.values()),
    ),
    Examination(
        history.examine_partitions,
        ("D131", "D132", "D134", "D135"),
        (history.NOW, *history.PARTITIONS.values(), *history.MISPLACED.values(), history.ROWS),
    ),
    Examination(history.examine_totals, ("D133",), (history.WATERMARK,)),
    Examination(server.examine_listening, ("D201", "D202", "D206"), connects=True),
    Examination(server.examine_clock, ("D203",), (server.SKEWED,)),
    Examination(server.examine_connections, ("D204", "D205"), (server.LIMITS, server.FLEET)),
    Examination(configuration.examine_lease, ("D211",), (configuration.LEASES,)),
    Examination(configuration.examine_time_outs, ("D212",), (configuration.TIME_OUTS,)),
    Examination(configuration.examine_date_style, ("D213",), (configuration.DATE_STYLE,)),
    Examination(configuration.examine_abandoned, ("D214",), (configuration.UNCHECKED,)),
    Examination(configuration.examine_checks, ()),
    Examination(work.examine_queues, ("D301", "D302"), work.IN_QUEUES),
    Examination(work.examine_types, ("D303", "D304"), (work.UNCLAIMABLE, work.QUEUES)),
    Examination(work.examine_payloads, ("D305",), (work.FORMS, server.FLEET)),
    Examination(schedules.examine_schedules, ("D306", "D307"), (schedules.UNHANDLED,)),
    Examination(work.examine_workflows, ("D308",)),
    Examination(work.examine_compensations, ("D309",), (work.COMPENSATIONS,)),
    Examination(
        schedules.examine_declarations,
        ("D310", "D311", "D312"),
        (schedules.UNWRITTEN, schedules.UNDECLARED),
    ),
    Examination(schedules.examine_due_times, ("D313",), (schedules.FAR_AHEAD,)),
    Examination(configuration.examine_rows, ("D314",), (configuration.ROWS,)),
    Examination(schedules.examine_zones, ("D315",), (schedules.ZONES,)),
    Examination(work.examine_generations, ("D316",), (work.GENERATIONS,)),
    Examination(incidents.examine_keys, ("D321",), (incidents.KEYS,)),
    Examination(
        incidents.examine_pauses,
        ("D322", "D324"),
        (*work.IN_QUEUES, incidents.PAUSED, incidents.QUARANTINED),
    ),
    Examination(incidents.examine_breakers, ("D323",), (incidents.BREAKERS,)),
)


def diagnose(examinations: Sequence[Examination] | None = None) -> Diagnosis:
    """The findings of these examinations, or of all, errors first, without those that
    ``SILENCED_SYSTEM_CHECKS`` names. One that fails is listed, and the others are made: in the same
    transaction, or in another one if the connection was lost.

    Raises :class:`~django_jobs.NotMigrated` if the tables are not those of this code, and the
    database's error if it does not answer.
    """
    chosen = EXAMINATIONS if examinations is None else examinations
    findings: list[Finding] = []
    not_examined: list[NotExamined] = []
    reader = Reader()
    ahead = list(dict.fromkeys(read for one in chosen for read in one.reads))

    def read_ahead() -> None:
        try:
            reader.read_together(ahead, UNDO)
        except Exception:  # of one of them, or the connection was lost
            waiting.extendleft(partial(reader.read_alone, one) for one in ahead)

    def examine(examination: Examination) -> None:
        try:
            findings.extend(examination.findings(reader))
        except CannotExamine as cannot:
            not_examined.append(NotExamined(ids=examination.ids, reason=str(cannot)))
        except DATABASE_ERRORS as error:
            if problem := migration_problem(error):
                raise NotMigrated(problem) from error
            not_examined.append(NotExamined(ids=examination.ids, reason=_reason(error)))
        except NotImplementedError:
            reason = "psycopg reads no times in this DateStyle (D213)"
            not_examined.append(NotExamined(ids=examination.ids, reason=reason))
        except Exception as error:  # of the code of the project. Its message may quote values
            reason = f"raised {ErrorReport.of(error).type}"
            not_examined.append(NotExamined(ids=examination.ids, reason=reason))

    waiting = deque([read_ahead] if ahead else [])
    waiting.extend(partial(examine, one) for one in chosen if not one.connects)
    while waiting:
        with _harmless() as undo:
            waiting.popleft()()
            while undo() and waiting:
                waiting.popleft()()
    for one in chosen:
        if one.connects:
            examine(one)
    kept = [one for one in findings if one.id not in settings.SILENCED_SYSTEM_CHECKS]
    return Diagnosis(
        tuple(sorted(kept, key=lambda one: (one.severity is not Severity.ERROR, one.id))),
        tuple(sorted(not_examined, key=lambda one: one.ids)),
    )


@contextmanager
def _harmless() -> Iterator[Callable[[], bool]]:
    """Statements inside are short, and change nothing. Yields what releases the locks of the ones
    before and forgets their error; it returns False if the connection was lost.

    Also inside a transaction of the caller: the savepoint is rolled back, and with it the limits.
    """
    connection = jobs_connection()
    limits = {"statement": f"{STATEMENT_SECONDS}s", "lock": f"{LOCK_SECONDS}s"}
    has_run = False

    def note(execute: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal has_run
        has_run = True
        return execute(*arguments)

    def undo() -> bool:
        nonlocal has_run
        if not has_run:
            return True
        try:
            connection.set_rollback(False)  # or the next statement is refused
            with connection.cursor() as cursor:
                cursor.execute(UNDO)
        except DATABASE_ERRORS:
            connection.close()
            return False
        has_run = False
        return True

    with transaction.atomic(using=connection.alias):
        with needing_tables:
            fetch(HARMLESS, limits)
        with connection.cursor() as cursor:
            cursor.execute(BEGIN)
        with connection.execute_wrapper(note):
            yield undo
        connection.set_rollback(True)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    match sqlstate_of(error):
        case "57014":  # query_canceled
            return f"took longer than {STATEMENT_SECONDS:g} s"
        case "42501":  # insufficient_privilege
            return f"needs a right: {text}"
        case _:
            return text
