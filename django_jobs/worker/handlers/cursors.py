"""Cursors that note statements which leave state in their session, and which of them are open; the
number of queries of each handler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from psycopg import Connection, Cursor, ServerCursor

from ..context.attempt import Attempt
from ..context.run_context import running_attempt
from .plain_statements import is_plain, plain_texts

if TYPE_CHECKING:
    AnyCursor = Cursor[Any]
else:
    AnyCursor = object

Session = Connection[Any]

touched: WeakSet[Session] = WeakSet()
"""Sessions with a statement that is not plain."""

_remembered: WeakKeyDictionary[Session, WeakSet[Cursor[Any] | ServerCursor[Any]]]
_remembered = WeakKeyDictionary()


def remember(cursor: Cursor[Any] | ServerCursor[Any]) -> None:
    """Let :func:`open_cursors` find this cursor while it is open and something refers to it."""
    if cursor.connection not in _remembered:
        _remembered[cursor.connection] = WeakSet()
    _remembered[cursor.connection].add(cursor)


def open_cursors(raw: Any) -> list[Cursor[Any] | ServerCursor[Any]]:
    """The remembered cursors of a session that are open."""
    found = _remembered.get(raw, ()) if isinstance(raw, Connection) else ()
    return [cursor for cursor in found if not cursor.closed]


class _Watched(AnyCursor):
    """A cursor that notes statements that are not plain. Each goes by one of these four methods."""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        # The path of the ORM: one dict lookup.
        if not (type(query) is str and plain_texts.get(query)) and not is_plain(query):
            touched.add(self.connection)
        return super().execute(query, *args, **options)

    def executemany(self, query: Any, *args: Any, **options: Any) -> None:
        if not is_plain(query):
            touched.add(self.connection)
        super().executemany(query, *args, **options)

    def stream(self, query: Any, *args: Any, **options: Any) -> Any:
        if not is_plain(query):
            touched.add(self.connection)
        return super().stream(query, *args, **options)

    def copy(self, statement: Any, *args: Any, **options: Any) -> Any:
        if not is_plain(statement):
            touched.add(self.connection)
        return super().copy(statement, *args, **options)


class _WatchedOnServer(_Watched):
    """A server-side cursor, which may be left open WITH HOLD."""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        touched.add(self.connection)
        return super().execute(query, *args, **options)


@cache
def watched(cursor: Any) -> Any:
    """The class with the notes of its statements."""
    if issubclass(cursor, _Watched):
        return cursor
    watched = _WatchedOnServer if issubclass(cursor, ServerCursor) else _Watched
    return type(f"Watched{cursor.__name__}", (watched, cursor), {})


class _Remembered(AnyCursor):
    """A cursor that a handler may keep for its next call."""

    def __init__(self, connection: Session, *args: Any, **options: Any) -> None:
        super().__init__(connection, *args, **options)
        remember(self)


@cache
def remembered(cursor: Any) -> Any:
    """The class with its instances remembered."""
    if issubclass(cursor, _Remembered):
        return cursor
    return type(f"Remembered{cursor.__name__}", (_Remembered, cursor), {})


def count_query(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
) -> Any:
    """Count a statement for the run in whose context it is sent. One of ``execute_wrappers``."""
    attempt = running_attempt()
    if attempt is None or (meter := attempt.meter) is None:
        return execute(sql, params, many, context)
    began = time.perf_counter()
    try:
        return execute(sql, params, many, context)
    finally:
        meter.add_query(time.perf_counter() - began)


@contextmanager
def not_counted(attempt: Attempt) -> Iterator[None]:
    """Send statements of this package's own, before the handler begins."""
    meter, attempt.meter = attempt.meter, None
    try:
        yield
    finally:
        attempt.meter = meter
