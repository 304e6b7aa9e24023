"""Operations for tables that are in use: a claim waits behind them for a moment at most.

``ALTER TABLE`` waits until all transactions that have read the table end, and later statements wait
behind it: one report that stays open for an hour would stop all workers for an hour. Each operation
here waits for its lock for a moment only, lets the others pass, and tries again. Each runs in a
separate transaction, so it holds a lock only while its statement runs. It skips what exists already,
so an interrupted migration can be run again. On other databases the operations are Django's.

Jobs and runs are partitioned. A column is added to the table with all its partitions in one turn. An
index is built in one partition after the other; see :class:`PatientAddIndex`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import OperationalError, migrations, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

MOMENT = 0.15
"""Seconds that claims may wait behind a statement that waits for its lock."""
VACUUM_GIVES_WAY = 10.0
"""Seconds for an autovacuum to yield: it does once a statement waits for ``deadlock_timeout``."""
PATIENCE = 300.0
"""Seconds after which the migration fails; run it again when the table is free."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
IN_USE = {"55P03", "57014"}
"""The errors of a lock that was not free for a moment, and of all of them together."""

COLUMN = """
SELECT EXISTS (SELECT 1 FROM pg_attribute
               WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped)
"""
# The default one first: partitions that are made meanwhile are like it.
PARTITIONS = """
SELECT relname FROM pg_partition_tree(to_regclass(%s)) AS part JOIN pg_class ON oid = part.relid
WHERE part.isleaf AND part.level = 1
ORDER BY pg_get_expr(relpartbound, oid) <> 'DEFAULT', relname
"""
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
# By their definition, because those of a partition that was made later have names that PostgreSQL
# chose.
COPIES = """
SELECT copy.relname, indisvalid FROM pg_index JOIN pg_class AS copy ON copy.oid = indexrelid
WHERE indrelid = to_regclass(%s)
  AND split_part(pg_get_indexdef(indexrelid), ' USING ', 2)
      = split_part(pg_get_indexdef(to_regclass(%s)), ' USING ', 2)
"""
HOLDER = """
SELECT activity.pid, date_part('epoch', clock_timestamp() - activity.xact_start)::integer
FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid)
WHERE lock.relation IN (
    SELECT to_regclass(%(table)s) UNION SELECT relid FROM pg_partition_tree(to_regclass(%(table)s)))
  AND lock.granted AND pid <> pg_backend_pid()
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY activity.xact_start NULLS LAST LIMIT 1
"""


def in_short_turns(
    schema_editor: BaseDatabaseSchemaEditor, table: str, work: Callable[[], None]
) -> None:
    """Try ``work`` in a transaction that waits for a lock on ``table`` for a moment only, until it
    succeeds. Raises ``OperationalError`` after ``PATIENCE`` seconds."""
    deadline, pause = time.monotonic() + PATIENCE, FIRST_PAUSE
    while True:
        try:
            _in_one_transaction(schema_editor, table, work)
            return
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) not in IN_USE:
                raise
            if time.monotonic() > deadline:
                raise OperationalError(
                    f"{table} was in use for {PATIENCE:g} s{_holder(schema_editor, table)}. "
                    "Earlier operations stay applied; migrate again when it has ended."
                ) from error
        sys.stderr.write(
            f"\ndjango_jobs: {table} is in use{_holder(schema_editor, table)}; trying again"
        )
        sys.stderr.flush()
        # A statement that holds it may recur at our own interval.
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 — jitter
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _in_one_transaction(
    schema_editor: BaseDatabaseSchemaEditor, table: str, work: Callable[[], None]
) -> None:
    """Run ``work``, and the statements that Django defers to the end of the migration."""
    deferred = schema_editor.deferred_sql
    before = len(deferred)
    try:
        with transaction.atomic(schema_editor.connection.alias):
            quoted = schema_editor.quote_name(table)
            with schema_editor.connection.cursor() as cursor:
                moment = int(MOMENT * 1000)
                if _row(schema_editor, "SELECT to_regclass(%s)", quoted) != (None,):
                    # A moment is too short for an autovacuum to yield, and a busy table may be
                    # vacuumed all the time. This lock cancels it and does not block claims.
                    cursor.execute(f"SET LOCAL lock_timeout = {int(VACUUM_GIVES_WAY * 1000)}")
                    cursor.execute(f"LOCK TABLE {quoted} IN SHARE UPDATE EXCLUSIVE MODE")
                    # One moment for all partitions; the time limit of a lock counts for each.
                    cursor.execute(f"SET LOCAL statement_timeout = {moment}")
                    cursor.execute(f"LOCK TABLE {quoted} IN ACCESS EXCLUSIVE MODE")
                    cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
                cursor.execute(f"SET LOCAL lock_timeout = {moment}")
            work()
            for statement in deferred[before:]:
                schema_editor.execute(statement, None)
    finally:
        del deferred[before:]


def _holder(schema_editor: BaseDatabaseSchemaEditor, table: str) -> str:
    (found,) = _rows(schema_editor, HOLDER, {"table": schema_editor.quote_name(table)}) or [None]
    return f" (process {found[0]}, for {found[1]} s)" if found and found[1] is not None else ""


def _row(schema_editor: BaseDatabaseSchemaEditor, sql: str, *parameters: Any) -> Any:
    return next(iter(_rows(schema_editor, sql, parameters)), None)


def _rows(schema_editor: BaseDatabaseSchemaEditor, sql: str, parameters: Any) -> list[Any]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        rows: list[Any] = cursor.fetchall()
        return rows


def _is_there(schema_editor: BaseDatabaseSchemaEditor, table: str, column: str) -> bool:
    return bool(_row(schema_editor, COLUMN, schema_editor.quote_name(table), column)[0])


def _is_in_use(schema_editor: BaseDatabaseSchemaEditor) -> bool:
    """Whether other clients may use the tables: not for ``sqlmigrate``, which collects the SQL."""
    return schema_editor.connection.vendor == "postgresql" and not schema_editor.collect_sql


class Patient(Operation):
    """Mixed into one of Django's operations; see the module."""

    atomic = False  # it begins its transactions itself

    def place(self, app_label: str, state: ProjectState) -> tuple[str, str]:
        """The table, and the column that exists exactly if the operation is applied. ``state`` is the
        one that has it."""
        raise NotImplementedError

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        def work() -> None:
            super(Patient, self).database_forwards(app_label, schema_editor, from_state, to_state)

        self._do(schema_editor, self.place(app_label, to_state), False, work)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        def work() -> None:
            super(Patient, self).database_backwards(app_label, schema_editor, from_state, to_state)

        self._do(schema_editor, self.place(app_label, from_state), True, work)

    @staticmethod
    def _do(
        schema_editor: BaseDatabaseSchemaEditor,
        place: tuple[str, str],
        is_there_before: bool,
        work: Callable[[], None],
    ) -> None:
        if not _is_in_use(schema_editor):
            with transaction.atomic(schema_editor.connection.alias):
                work()
        elif _is_there(schema_editor, *place) is is_there_before:
            in_short_turns(schema_editor, place[0], work)


class PatientCreateModel(Patient, migrations.CreateModel):
    """A new table blocks nobody. Dropping it waits for those that read it."""

    def place(self, app_label: str, state: ProjectState) -> tuple[str, str]:
        options = state.apps.get_model(app_label, self.name)._meta
        assert options.pk is not None
        return options.db_table, options.pk.column


class PatientAddField(Patient, migrations.AddField):
    """Add a column without rewriting a row. Code of the release before inserts rows without it.

    Raises :class:`TypeError` for a field that needs more than that: the rows would be rewritten, old
    code would fail, or an index would be built or a constraint checked under the table's lock.
    """

    def __init__(self, model_name: str, name: str, field: models.Field[Any, Any]) -> None:
        has_value = field.null or field.has_db_default()
        under_lock = ("db_index", "unique", "db_constraint")
        if not has_value or any(getattr(field, option, False) for option in under_lock):
            raise TypeError(
                f"{model_name}.{name}: give it null=True or a db_default, and an index by "
                "PatientAddIndex; a foreign key needs db_constraint=False and db_index=False"
            )
        super().__init__(model_name, name, field)

    def place(self, app_label: str, state: ProjectState) -> tuple[str, str]:
        options = state.apps.get_model(app_label, self.model_name)._meta
        return options.db_table, options.get_field(self.name).column


class PatientAddIndex(AddIndexConcurrently):
    """Build an index without blocking writes. An invalid one, of an interrupted build, is replaced.

    PostgreSQL builds none concurrently in a partitioned table. So each partition directly beneath
    it that holds rows gets one: of jobs that is the live one alone, because the history is
    partitioned again. Of runs it is the default one, which gives the index its name and its copies
    to partitions made later, and then each that exists.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            migrations.AddIndex.database_forwards(
                self, app_label, schema_editor, from_state, to_state
            )
            return
        for table, name in self._places(app_label, schema_editor, to_state):
            if _is_in_use(schema_editor) and self._is_built(schema_editor, table, name):
                continue
            index = self.index.clone()
            index.name = name
            state = to_state.clone()
            state.alter_model_options(app_label, self.model_name_lower, {"db_table": table})
            AddIndexConcurrently(self.model_name, index).database_forwards(
                app_label, schema_editor, from_state, state
            )

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor != "postgresql":
            migrations.AddIndex.database_backwards(
                self, app_label, schema_editor, from_state, to_state
            )
            return
        # The named one last: the others are found by it.
        for table, name in reversed(self._places(app_label, schema_editor, from_state)):
            for copy, _ in self._copies(schema_editor, table) or [(name, True)]:
                _drop_index(schema_editor, copy)

    def _places(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState
    ) -> list[tuple[str, str]]:
        """The tables that get the index, each with its name there."""
        table = state.apps.get_model(app_label, self.model_name)._meta.db_table
        found = _rows(schema_editor, PARTITIONS, [schema_editor.quote_name(table)])
        first, *others = [partition for (partition,) in found] or [table]
        name = self.index.name
        return [
            (first, name),
            *((other, name + other.removeprefix(table)) for other in others),
        ]

    def _copies(
        self, schema_editor: BaseDatabaseSchemaEditor, table: str
    ) -> list[tuple[str, bool]]:
        """The indexes of ``table`` that are as this one, each with whether it is valid."""
        names = [schema_editor.quote_name(name) for name in (table, self.index.name)]
        return _rows(schema_editor, COPIES, names)

    def _is_built(self, schema_editor: BaseDatabaseSchemaEditor, table: str, name: str) -> bool:
        """Whether the index is there. Drops what an interrupted build has left."""
        found = dict(self._copies(schema_editor, table))
        for (valid,) in _rows(schema_editor, IS_VALID, [schema_editor.quote_name(name)]):
            found[name] = valid
        for left in (name for name, valid in found.items() if not valid):
            _drop_index(schema_editor, left)
        return any(found.values())


def _drop_index(schema_editor: BaseDatabaseSchemaEditor, name: str) -> None:
    schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(name)}")
