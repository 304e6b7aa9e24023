"""What the doctor can find, and how it reads. An id never changes; see docs/doctor.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from ..models.database import fetch_named, jobs_connection, jobs_cursor


class Severity(StrEnum):
    """An error keeps jobs from running, or from running correctly; a warning may become one."""

    ERROR = "error"
    WARNING = "warning"


class Kind(NamedTuple):
    severity: Severity
    title: str


KINDS: Mapping[str, Kind] = {
    f"django_jobs.{number}": Kind(severity, title)
    for severity, number, title in (
        (Severity.WARNING, "D101", "dead rows"),
        (Severity.ERROR, "D102", "autovacuum off"),
        (Severity.ERROR, "D103", "autovacuum off for a table"),
        (Severity.WARNING, "D104", "storage parameters lost"),
        (Severity.WARNING, "D111", "old snapshot"),
        (Severity.WARNING, "D112", "old prepared transaction"),
        (Severity.WARNING, "D113", "replication slot with an old snapshot"),
        (Severity.ERROR, "D121", "index missing"),
        (Severity.ERROR, "D122", "index invalid"),
        (Severity.WARNING, "D123", "index left over"),
        (Severity.WARNING, "D124", "index bloated"),
        (Severity.WARNING, "D131", "partitions missing"),
        (Severity.WARNING, "D132", "default partition filled"),
        (Severity.WARNING, "D133", "totals of runs behind"),
        (Severity.WARNING, "D134", "default partition large"),
        (Severity.WARNING, "D135", "partition past its retention"),
        (Severity.WARNING, "D201", "no notifications"),
        (Severity.WARNING, "D202", "pooler in transaction mode"),
        (Severity.WARNING, "D203", "clock skew"),
        (Severity.WARNING, "D204", "too few connections"),
        (Severity.WARNING, "D205", "connections used up"),
        (Severity.WARNING, "D206", "no session in the pooler"),
        (Severity.WARNING, "D211", "lease too short"),
        (Severity.WARNING, "D212", "time-out of the server too short"),
        (Severity.ERROR, "D213", "date style that psycopg cannot read"),
        (Severity.WARNING, "D214", "statements outlive their handlers"),
        (Severity.ERROR, "D301", "no worker"),
        (Severity.ERROR, "D302", "queue without a worker"),
        (Severity.ERROR, "D303", "unknown job type"),
        (Severity.ERROR, "D304", "payload too new"),
        (Severity.ERROR, "D305", "payload unreadable"),
        (Severity.ERROR, "D306", "schedule without a handler"),
        (Severity.ERROR, "D307", "schedules do not fire"),
        (Severity.ERROR, "D308", "workflow stuck"),
        (Severity.ERROR, "D309", "compensation failed"),
        (Severity.ERROR, "D310", "schedule not written"),
        (Severity.WARNING, "D311", "schedule not as declared"),
        (Severity.WARNING, "D312", "schedule no longer declared"),
        (Severity.WARNING, "D313", "schedule due too far ahead"),
        (Severity.WARNING, "D314", "setting not in effect"),
        (Severity.WARNING, "D315", "time zone tables differ"),
        (Severity.WARNING, "D316", "jobs that enqueue one another"),
        (Severity.WARNING, "D321", "concurrency key held"),
        (Severity.WARNING, "D322", "pause with a backlog"),
        (Severity.WARNING, "D323", "breaker open"),
        (Severity.WARNING, "D324", "quarantine with a backlog"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. ``facts`` are the numbers and names in ``problem``; ``advice`` is
    what to do, and ``commands`` the statements or commands that do it."""

    id: str
    severity: Severity
    problem: str
    advice: str
    commands: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExamined:
    """Findings that could not be looked for, and why."""

    ids: tuple[str, ...]
    reason: str


class CannotExamine(Exception):
    """An examination cannot be made, or not to its end. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, errors first, and what could not be examined."""

    findings: tuple[Finding, ...] = ()
    not_examined: tuple[NotExamined, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 without findings, 1 with warnings, 2 with errors."""
        return max((1 + (one.severity is Severity.ERROR) for one in self.findings), default=0)

    def count(self, severity: Severity) -> int:
        return sum(one.severity is severity for one in self.findings)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def found(number: str, problem: str, advice: str, *commands: str, **facts: Any) -> Finding:
    """A finding of :data:`KINDS`. ``number`` is the end of its id, such as ``D101``."""
    id_ = f"django_jobs.{number}"
    return Finding(
        id=id_,
        severity=KINDS[id_].severity,
        problem=problem,
        advice=advice,
        commands=commands,
        facts=facts,
    )


def at_least(count: int, most: int) -> str:
    """``12``, or ``1,000+`` if counting stopped there."""
    return f"{count:,}+" if count >= most else f"{count:,}"


def jobs(count: int, most: int) -> str:
    return f"{at_least(count, most)} {'job' if count == 1 else 'jobs'}"


def jobs_wait(count: int, most: int) -> str:
    return f"{jobs(count, most)} {'waits' if count == 1 else 'wait'}"


def age(seconds: float) -> str:
    """``90 s``, ``5 min``, ``3 h``, ``2 days``."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


Rows = list[dict[str, Any]]


class Statement(NamedTuple):
    """A statement that reads. ``parameters`` returns its values when it is run."""

    sql: str
    parameters: Callable[[], Mapping[str, Any]] = dict


class Reader:
    """Returns the rows of statements. What was read ahead is not read again."""

    def __init__(self) -> None:
        self._read: dict[Statement, Rows | Exception] = {}

    def __call__(self, statement: Statement) -> Rows:
        """The rows as dicts by column name. Raises the error with which reading ahead ended."""
        rows = self._read.get(statement)
        if rows is None:
            return fetch_named(statement.sql, statement.parameters())
        if isinstance(rows, Exception):
            raise rows
        return rows

    def read_together(self, statements: Sequence[Statement], between: str) -> None:
        """Read ahead in one round trip, and run ``between`` between two statements. The server
        limits the time of each. One that fails ends all, and nothing was read."""
        connection: Any = jobs_connection()
        texts = [
            connection.ops.compose_sql(statement.sql, statement.parameters())
            for statement in statements
        ]
        with jobs_cursor() as cursor:
            cursor.execute(f";\n{between};\n".join(texts))
            for statement in statements:
                while cursor.description is None:  # of what ran between them
                    cursor.nextset()
                names = [column[0] for column in cursor.description]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
                self._read[statement] = rows
                cursor.nextset()

    def read_alone(self, statement: Statement) -> None:
        """Read ahead. An error is raised where the rows are asked for."""
        try:
            self._read[statement] = self(statement)
        except Exception as error:
            self._read[statement] = error
