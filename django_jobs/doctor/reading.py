"""Reads for the examinations: what several of them read once, and all of it in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..models.database import fetch_named, jobs_connection, jobs_cursor

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
