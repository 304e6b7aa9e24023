"""Operations for tables that are in use: no claim waits behind them for longer than a moment.

``ALTER TABLE`` waits for all that read the table, and whatever comes after waits behind it: one
report that is open for an hour would stop all workers for an hour. So each operation here waits for
a moment only, lets the others pass, and tries again. Each is a transaction of its own, so that no
lock is held for longer than its statement takes; and what is there already is passed over, so that
a migration that was cut short is simply run again. On other databases they are Django's own.
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
"""Seconds for an autovacuum to make room: it does once somebody waits for ``deadlock_timeout``."""
PATIENCE = 300.0
"""Seconds after which the migration fails; run it again when the table is free."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
LOCK_NOT_AVAILABLE = "55P03"

COLUMN = """
SELECT EXISTS (SELECT 1 FROM pg_attribute
               WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped)
"""
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)"
HOLDER = """
SELECT activity.pid, date_part('epoch', clock_timestamp() - activity.xact_start)::integer
FROM pg_locks AS lock JOIN pg_stat_activity AS activity USING (pid)
WHERE lock.relation = to_regclass(%s) AND lock.granted AND pid <> pg_backend_pid()
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY activity.xact_start NULLS LAST LIMIT 1
"""


def in_short_turns(
    schema_editor: BaseDatabaseSchemaEditor, table: str, work: Callable[[], None]
) -> None:
    """Do ``work`` in a transaction that waits for a lock on ``table`` for a moment only, again and
    again. Raises ``OperationalError`` when patience is at its end."""
    deadline, pause = time.monotonic() + PATIENCE, FIRST_PAUSE
    while True:
        try:
            _in_one_transaction(schema_editor, table, work)
            return
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            if time.monotonic() > deadline:
                raise OperationalError(
                    f"{table} was in use for {PATIENCE:g} s{_holder(schema_editor, table)}. "
                    "What was done before stays; migrate again when it has ended."
                ) from error
        sys.stderr.write(
            f"\ndjango_jobs: {table} is in use{_holder(schema_editor, table)}; trying again"
        )
        sys.stderr.flush()
        # Whatever holds it may come as regularly as we do.
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 — jitter
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _in_one_transaction(
    schema_editor: BaseDatabaseSchemaEditor, table: str, work: Callable[[], None]
) -> None:
    """With the statements that Django puts off to the end of the migration."""
    put_off = schema_editor.deferred_sql
    before = len(put_off)
    try:
        with transaction.atomic(schema_editor.connection.alias):
            quoted = schema_editor.quote_name(table)
            with schema_editor.connection.cursor() as cursor:
                if _row(schema_editor, "SELECT to_regclass(%s)", quoted) != (None,):
                    # A moment is too short for an autovacuum to give way, and a busy table may be
                    # vacuumed all the time. This lock makes it go; claims pass beside it.
                    cursor.execute(f"SET LOCAL lock_timeout = {int(VACUUM_GIVES_WAY * 1000)}")
                    cursor.execute(f"LOCK TABLE {quoted} IN SHARE UPDATE EXCLUSIVE MODE")
                cursor.execute(f"SET LOCAL lock_timeout = {int(MOMENT * 1000)}")
            work()
            for statement in put_off[before:]:
                schema_editor.execute(statement, None)
    finally:
        del put_off[before:]


def _holder(schema_editor: BaseDatabaseSchemaEditor, table: str) -> str:
    found = _row(schema_editor, HOLDER, schema_editor.quote_name(table))
    return f" (process {found[0]}, for {found[1]} s)" if found and found[1] is not None else ""


def _row(schema_editor: BaseDatabaseSchemaEditor, sql: str, *parameters: Any) -> Any:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()


def _is_there(schema_editor: BaseDatabaseSchemaEditor, table: str, column: str) -> bool:
    return bool(_row(schema_editor, COLUMN, schema_editor.quote_name(table), column)[0])


def _is_in_use(schema_editor: BaseDatabaseSchemaEditor) -> bool:
    """Whether there is a PostgreSQL with clients; ``sqlmigrate`` has none and wants the SQL."""
    return schema_editor.connection.vendor == "postgresql" and not schema_editor.collect_sql


class Patient(Operation):
    """Mixed into one of Django's operations; see the module."""

    atomic = False  # it makes its transactions itself

    def place(self, app_label: str, state: ProjectState) -> tuple[str, str]:
        """The table, and a column of it that is there exactly when the operation was done.
        ``state`` is the one that has it."""
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
    """A new table locks nothing; to drop it waits for all that read it."""

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
    """Built beside those who write. What a build that was cut short left behind is built anew."""

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
        if _is_in_use(schema_editor):
            found = _row(schema_editor, IS_VALID, schema_editor.quote_name(self.index.name))
            if found == (True,):
                return
            if found == (False,):
                self.database_backwards(app_label, schema_editor, to_state, from_state)
        super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
        else:
            migrations.AddIndex.database_backwards(
                self, app_label, schema_editor, from_state, to_state
            )
