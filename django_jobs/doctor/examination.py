"""Makes all examinations, so that they can neither change nor hold up anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

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
)
from . import configuration, history, incidents, indexes, server, snapshots, tables, work
from .findings import CannotExamine, Diagnosis, Finding, NotExamined, Severity

STATEMENT_SECONDS = 2.0
LOCK_SECONDS = 0.5

# Local to the transaction, so that nobody inherits them from a pool. It fails without our tables.
HARMLESS = """
SELECT 'django_jobs_job_live'::regclass, set_config('statement_timeout', %(statement)s, true),
    set_config('lock_timeout', %(lock)s, true), set_config('transaction_read_only', 'on', true)
"""


class Examination(NamedTuple):
    """A function that yields findings of these kinds. It may raise :class:`CannotExamine`. One that
    opens connections of its own holds no other one meanwhile, because a pool may have only one."""

    examine: Callable[[], Iterable[Finding]]
    numbers: tuple[str, ...]
    connects: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f"django_jobs.{number}" for number in self.numbers)


EXAMINATIONS = (
    Examination(tables.examine_server, ("D102",)),
    Examination(tables.examine_tables, ("D101", "D103", "D104")),
    Examination(snapshots.examine_sessions, ("D111",)),
    Examination(snapshots.examine_prepared, ("D112",)),
    Examination(snapshots.examine_slots, ("D113",)),
    Examination(indexes.examine_indexes, ("D121", "D122", "D123", "D124")),
    Examination(history.examine_partitions, ("D131", "D132", "D134", "D135")),
    Examination(history.examine_totals, ("D133",)),
    Examination(server.examine_listening, ("D201", "D202"), connects=True),
    Examination(server.examine_clock, ("D203",)),
    Examination(server.examine_connections, ("D204", "D205")),
    Examination(configuration.examine_lease, ("D211",)),
    Examination(configuration.examine_time_outs, ("D212",)),
    Examination(configuration.examine_checks, ()),
    Examination(work.examine_queues, ("D301", "D302")),
    Examination(work.examine_types, ("D303", "D304")),
    Examination(work.examine_payloads, ("D305",)),
    Examination(work.examine_schedules, ("D306", "D307")),
    Examination(work.examine_workflows, ("D308",)),
    Examination(work.examine_compensations, ("D309",)),
    Examination(incidents.examine_keys, ("D321",)),
    Examination(incidents.examine_pauses, ("D322", "D324")),
    Examination(incidents.examine_breakers, ("D323",)),
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

    def examine(examination: Examination) -> None:
        try:
            findings.extend(examination.examine())
        except CannotExamine as cannot:
            not_examined.append(NotExamined(ids=examination.ids, reason=str(cannot)))
        except DATABASE_ERRORS as error:
            if problem := migration_problem(error):
                raise NotMigrated(problem) from error
            not_examined.append(NotExamined(ids=examination.ids, reason=_reason(error)))
        except Exception as error:  # of the code of the project. Its message may quote values
            reason = f"raised {ErrorReport.of(error).type}"
            not_examined.append(NotExamined(ids=examination.ids, reason=reason))

    waiting = deque(one for one in chosen if not one.connects)
    while waiting:
        with _harmless() as undo:
            examine(waiting.popleft())
            while undo() and waiting:
                examine(waiting.popleft())
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
    with transaction.atomic(using=connection.alias):
        with needing_tables:
            fetch(HARMLESS, limits)
        start = connection.savepoint()
        assert start is not None

        def undo() -> bool:
            try:
                connection.set_rollback(False)  # or the next statement is refused
                connection.savepoint_rollback(start)
            except DATABASE_ERRORS:
                connection.close()
                return False
            return True

        yield undo
        connection.set_rollback(True)


def _reason(error: Exception) -> str:
    """Why an examination failed, in one line."""
    text = " ".join(str(error).split())
    match getattr(error.__cause__, "sqlstate", None):
        case "57014":  # query_canceled
            return f"took longer than {STATEMENT_SECONDS:g} s"
        case "42501":  # insufficient_privilege
            return f"needs a right: {text}"
        case _:
            return text
