"""The connection to the jobs' database, and problems with its tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import psycopg
from django.core.exceptions import SynchronousOnlyOperation
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.models import Model
from psycopg.types.datetime import TimestamptzLoader

from ..conf import conf
from ..exceptions import NotMigrated
from .fields import read_floats

DATABASE_ERRORS = (DatabaseError, InterfaceError, psycopg.Error)
"""Django does not translate the errors that psycopg raises outside a cursor, such as in a pool."""

REFUSALS = (DataError, IntegrityError, NotSupportedError, ValueError, RecursionError)
"""Errors of a value. ``NotSupportedError``: a database that is not UTF8 cannot read the escapes in
JSON."""

ROW_ERRORS = (*REFUSALS, ProgrammingError)
"""The classes of the errors that :func:`is_of_a_row` tells from others."""

NO_TABLE, NO_COLUMN = "42P01", "42703"
MIGRATIONS, FIRST = Path(__file__).parents[1] / "migrations", "0001_initial"
CONFLICTS = {"40001", "40P01"}
"""SQLSTATEs of a serialization failure and a deadlock. A retry may succeed soon."""

# Of tgtype 1 is FOR EACH ROW, 2 BEFORE and 4 INSERT.
DROPPING = """
SELECT tgname::text FROM pg_trigger
WHERE tgrelid = to_regclass('{table}') AND tgtype & 7 = 7 AND tgenabled <> 'D'
"""
"""The triggers that may drop a new row of a table by returning NULL, and say nothing."""

TRIES = 5
"""How often to try. A job moves once, so a second conflict is of other jobs."""

Parameters = Mapping[str, Any] | Sequence[Any] | None
P = ParamSpec("P")
R = TypeVar("R")


class ChangedMeanwhile(OperationalError):
    """What a transaction has read was changed before it locked it: see :func:`repeat_conflicts`."""


def jobs_connection() -> BaseDatabaseWrapper:
    return connections[conf().database]


class UtcLoader(TimestamptzLoader):
    def load(self, data: Any) -> datetime:
        return super().load(data).astimezone(UTC)


def jobs_cursor() -> Any:
    """A cursor of :func:`jobs_connection` that reads numbers as ``float``, and times in UTC, also
    if ``DATABASES`` has another zone for the alias. A time in a repeated hour of such a zone equals
    none in UTC, and its distance to others of the same zone may be an hour off (PEP 495)."""
    return _adapted(jobs_connection().cursor())


def _adapted(cursor: Any) -> Any:
    if jobs_connection().timezone is not UTC:
        cursor.adapters.register_loader("timestamptz", UtcLoader)
    read_floats(cursor)
    return cursor


def is_of_a_test(connection: Any) -> bool:
    """Whether the only transaction of the connection is that of a ``TestCase``."""
    blocks = connection.atomic_blocks
    return bool(blocks) and all(block._from_testcase for block in blocks)


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether writes on this connection are not committed yet. Takes no round trip."""
    return connection.in_atomic_block or (
        connection.connection is not None and not connection.autocommit
    )


def call_after_all_commits(work: Callable[[], object]) -> None:
    """Call ``work`` once all transactions have committed that are open in this thread; at once if
    there is none. Never if one of them rolls back. That of a ``TestCase`` does not count.

    Raises ``TransactionManagementError`` if one is managed without ``atomic``: Django does not
    notice its commit.
    """
    open_ones = connections.all(initialized_only=True)
    waiting = {one.alias for one in open_ones if in_transaction(one) and not is_of_a_test(one)}

    def committed(alias: str) -> None:
        waiting.discard(alias)
        if not waiting:
            work()

    for alias in list(waiting):
        transaction.on_commit(functools.partial(committed, alias), using=alias)
    if not waiting:
        work()


def repeat_conflicts(work: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of one ``atomic`` block: call it again after a conflict with another
    session. Raises the error of the fifth try.

    A row that it waited for has moved to the history: PostgreSQL raises a serialization failure,
    because the row has no later version in its partition. The next try finds the job ended. Or it
    waited for a session that waited for it, a deadlock. Or it raises :class:`ChangedMeanwhile`.
    """

    @functools.wraps(work)
    def repeated(*args: P.args, **options: P.kwargs) -> R:
        for _ in range(TRIES - 1):
            try:
                return work(*args, **options)
            except OperationalError as error:
                if not (isinstance(error, ChangedMeanwhile) or sqlstate_of(error) in CONFLICTS):
                    raise
        return work(*args, **options)

    return repeated


def sqlstate_of(error: BaseException) -> str | None:
    """PostgreSQL's code of an error that Django raised."""
    return getattr(error.__cause__, "sqlstate", None)


def is_canceled(error: BaseException) -> bool:
    """Whether PostgreSQL ended the statement because of a time limit, or was asked to."""
    return sqlstate_of(error) == "57014"


def is_of_a_row(error: Exception) -> bool:
    """Whether an error is of a value, or a trigger of the project's has raised it."""
    return isinstance(error, REFUSALS) or (sqlstate_of(error) or "").startswith("P0")


def is_blocked(error: Exception) -> bool:
    """Whether a statement waited for a lock for as long as ``lock_timeout`` permits."""
    return sqlstate_of(error) == "55P03"


def fetch(sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
    """Run one statement; return its rows. Repeated as :func:`repeat_conflicts`."""
    rows: list[tuple[Any, ...]] = _run(sql, parameters, methodcaller("fetchall"))
    return rows


def fetch_planned(sql: str, parameters: Parameters, *, before: str = "") -> list[tuple[Any, ...]]:
    """As :func:`fetch`, or :func:`fetch_last` with a statement ``before`` it. On a session with a
    ``prepare_threshold``, as workers claim and settle on, the server keeps the plans for the next
    statements of the same text. None after a migration has changed the type of a result."""
    statements = [before, sql] if before else [sql]
    connection = jobs_connection()
    connection.ensure_connection()
    raw: Any = connection.connection
    if raw.prepare_threshold is None:
        return fetch_last(statements, parameters) if before else fetch(sql, parameters)
    run = _run_planned if connection.in_atomic_block else _run_planned_again
    try:
        return run(statements, parameters)
    except NotSupportedError as error:
        raw.prepare_threshold = None
        if connection.in_atomic_block:
            raise ChangedMeanwhile(str(error)) from error
        return fetch_planned(sql, parameters, before=before)


def _run_planned(statements: Sequence[str], parameters: Parameters) -> list[tuple[Any, ...]]:
    connection = jobs_connection()
    raw: Any = connection.connection
    bind: Any = ServerBindingCursor
    # In a pipeline they are one round trip and, in autocommit, one transaction.
    with connection.wrap_database_errors, raw.pipeline() if statements[1:] else nullcontext():
        for statement in statements:
            cursor = _adapted(connection.make_cursor(bind(raw)))
            cursor.execute(statement, parameters)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


_run_planned_again = repeat_conflicts(_run_planned)


def as_text(sql: str, parameters: Mapping[str, Any]) -> str:
    """The statement with its parameters as literals. Then it has one plan. A plan for all values is
    kept only if PostgreSQL expects it to be as quick as one for the values at hand."""
    operations: Any = jobs_connection().ops
    return str(operations.compose_sql(sql, parameters))


def fetch_last(statements: Sequence[str], parameters: Parameters) -> list[tuple[Any, ...]]:
    """Run statements in one transaction and one round trip, and return the rows of the last. Each
    sees what was committed before it began. Repeated like :func:`fetch`.

    A connection that binds parameters on the server sends one after the other.
    """
    if jobs_connection().settings_dict["OPTIONS"].get("server_side_binding"):
        return _fetch_one_by_one(statements, parameters)
    rows: list[tuple[Any, ...]] = _run(";".join(statements), parameters, _rows_of_the_last)
    return rows


def _fetch_one_by_one(statements: Sequence[str], parameters: Parameters) -> list[tuple[Any, ...]]:
    with transaction.atomic(using=jobs_connection().alias):
        return [fetch(statement, parameters) for statement in statements][-1]


def _rows_of_the_last(cursor: Any) -> Any:
    while cursor.nextset():
        pass
    return cursor.fetchall()


def fetch_locking(sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
    """As :func:`fetch_planned`, for a statement that locks jobs. It is repeated inside a
    transaction too, which takes a savepoint there."""
    if jobs_connection().in_atomic_block:
        return _fetch_in_savepoint(sql, parameters)
    return fetch_planned(sql, parameters)


@repeat_conflicts
def _fetch_in_savepoint(sql: str, parameters: Parameters) -> list[tuple[Any, ...]]:
    with transaction.atomic(using=jobs_connection().alias):
        return fetch(sql, parameters)


def fetch_named(sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run one statement and return its rows as dicts by column name."""
    with jobs_cursor() as cursor:
        cursor.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def with_parts(parts: Mapping[str, str], start: str = "") -> str:
    """One query of parts, each a query, after ``start``, their common tables. It returns the rows
    of each by its name, as JSON."""
    rows = ", ".join(
        f"'{name}', ARRAY(SELECT row_to_json(part) FROM ({sql}) AS part)"  # noqa: S608 — constants
        for name, sql in parts.items()
    )
    return f"{start} SELECT json_build_object({rows})::text"


def execute(sql: str, parameters: Parameters) -> int:
    """Run one statement and return the number of changed rows. Repeated like :func:`fetch`."""
    return int(_run(sql, parameters, attrgetter("rowcount")))


def _run_once(sql: str, parameters: Parameters, read: Callable[[Any], Any]) -> Any:
    with jobs_cursor() as cursor:
        cursor.execute(sql, parameters)
        return read(cursor)


_run_again = repeat_conflicts(_run_once)


def _run(sql: str, parameters: Parameters, read: Callable[[Any], Any]) -> Any:
    run = _run_once if jobs_connection().in_atomic_block else _run_again
    return run(sql, parameters, read)


# For this transaction only, so that a pooler may give the session to others after it.
SET_LIMIT = """
SELECT before.setting, set_config('statement_timeout', %(limit)s, true)
FROM (SELECT current_setting('statement_timeout') AS setting) AS before
"""


@contextmanager
def statement_limit(seconds: float) -> Iterator[None]:
    """A transaction whose statements end after ``seconds``. Inside another one it is a savepoint,
    and the limit of before returns at its end."""
    connection = jobs_connection()
    is_nested = connection.in_atomic_block
    with transaction.atomic(using=connection.alias):
        ((before, _),) = fetch(SET_LIMIT, {"limit": f"{max(round(seconds * 1000), 1)}ms"})
        yield
        if is_nested and not connection.needs_rollback:
            fetch(SET_LIMIT, {"limit": before})


def database_time() -> datetime:
    """The current time of the database's clock, which decides what is due."""
    ((now,),) = fetch("SELECT statement_timestamp()", {})
    return cast(datetime, now)


def has_todays_columns(model: type[Model], alias: str) -> bool:
    """Whether the table of ``model`` has all columns of the current code. ``post_migrate`` is sent
    after the migration of any app, so also before the tables exist and after they are removed."""
    with connections[alias].cursor() as cursor:
        introspection = connections[alias].introspection
        table = model._meta.db_table
        if table not in introspection.table_names(cursor):
            return False
        there = {column.name for column in introspection.get_table_description(cursor, table)}
    return there >= {field.column for field in model._meta.concrete_fields}


def migration_problem(error: Exception) -> str | None:
    """The command to run if ``error`` shows that the tables do not match this code; else None."""
    alias = conf().database
    state = sqlstate_of(error)
    if state == NO_TABLE and "django_jobs_" in str(error):  # or it is a table of a trigger's
        return f"django_jobs has no tables in {alias!r}: run {migrate_command()}"
    if state == NO_COLUMN:
        stale = f"the tables of django_jobs in {alias!r} are not those of this code"
        return f"{stale}: run {migrate_command()}"
    return None


def migrate_command() -> str:
    return f"manage.py migrate{database_option()}"


def database_option() -> str:
    """The option that names the jobs' database to Django's own commands, with a space before it;
    empty if it is the default one."""
    alias = conf().database
    return "" if alias == "default" else f" --database={alias}"


class NeedingTables:
    """Raises :class:`NotMigrated` instead of the database's error about the tables. A class,
    because a generator would cost each enqueue three microseconds."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, ProgrammingError) and (problem := migration_problem(error)):
            newest = max((path.stem for path in MIGRATIONS.glob("[0-9]*.py")), default=FIRST)
            hint = f'a migration that enqueues needs the dependency ("django_jobs", "{newest}")'
            raise NotMigrated(f"{problem}; {hint}") from error
        if isinstance(error, SynchronousOnlyOperation):
            raise SynchronousOnlyOperation(
                "in a coroutine, await the function with an a before its name, such as aenqueue(), "
                "or sync_to_async() of the code that calls this"
            ) from None


needing_tables = NeedingTables()
