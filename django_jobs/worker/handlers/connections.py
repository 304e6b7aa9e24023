"""The database connections of one executor thread. Each handler gets clean ones."""

from __future__ import annotations

import functools
import random
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg import Connection
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus

from ...conf import conf
from ...models.database import DATABASE_ERRORS
from ..connections import (
    PATIENCE,
    add_closable,
    close_idle_of_tree,
    emit_shortage,
    has_news,
    is_out_of_connections,
    is_short,
    unpooled,
    with_session,
)
from .cursors import count_query, is_plain, open_cursors, remember, touched, watched

IDLE_CHECK_SECONDS = 30.0

LOOK_FOR_THE_CLIENT = b"""
SELECT set_config('client_connection_check_interval', '500', false)
WHERE current_setting('client_connection_check_interval') = '0' AND NOT EXISTS (
    SELECT FROM pg_db_role_setting, unnest(setconfig) AS setting
    WHERE starts_with(setting, 'client_connection_check_interval=')
      AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user))
      AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())))
"""
"""Lets the server end a statement soon after its client has gone, as a killed process has. By
default it completes it, and commits, while the next attempt runs. Every half second, unless the
role or the database has another time, such as 0, which is never (D214). In the catalog, because
pg_settings takes 0.6 ms, also after each DISCARD. Not in the options of the connection, which
PgBouncer refuses. A server on a system that cannot notice it answers with an error."""


class HandlerConnections:
    """Keeps the connections of one executor thread open between jobs, and clean."""

    def __init__(self) -> None:
        self.in_use = threading.Lock()
        """Held by the thread from before it prepares the connections until they are reset."""
        self.all = [self.new_connection(alias) for alias in connections]
        add_closable(self)

    def new_connection(self, alias: str) -> HandlerConnection:
        return HandlerConnection(alias)

    def prepare(self) -> None:
        """Ensure before a handler that the open connections are usable."""
        for connection in self.all:
            connection.prepare()

    def clean(self) -> bool:
        """Ensure after a handler that no transaction is open. Returns whether one was, with what it
        had written."""
        was_open = False
        for connection in self.all:
            was_open |= connection.clean()
        return was_open

    def cancel(self) -> None:
        """Ask the servers to end what they do for the handler. From any thread, or a signal."""
        active = [raw for one in self.all if (raw := one.given_up()) is not None]
        if active:
            with suppress(RuntimeError):  # no thread can be started: its process will be killed
                start_new_thread(_cancel, (active,))

    def close_if_idle(self, seconds: float) -> None:
        """Close connections that no handler used for this long. May be called from any thread."""
        if self.in_use.acquire(blocking=False):
            try:
                for connection in self.all:
                    connection.close_if_idle(seconds)
            finally:
                self.in_use.release()

    def reset(self) -> None:
        """Reset the sessions: the next handler gets no setting, lock or table of this one."""
        for connection in self.all:
            connection.reset()


class HandlerConnection:
    """One database, and Django's wrapper of the session there.

    If state may be left behind, the wrapper is replaced, because backends and projects keep state
    on it too, such as the tenant whose ``search_path`` is set. The session is passed to the new
    wrapper after ``DISCARD ALL``, like in a pool, or is closed.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._pattern = unpooled(connections[alias])
        self._last_used = time.monotonic()
        self._as_connected: tuple[Any, ...] = ()
        self._other_touched = False
        self._attributes = 0
        self._given_up: Connection[Any] | None = None
        self.wrapper = self._new_wrapper()

    def given_up(self) -> Connection[Any] | None:
        """The session, if a statement runs there. It serves no later handler: a cancel of this one
        may arrive late."""
        raw = self.wrapper.connection
        if not is_psycopg(raw):
            return None
        # First noted and then looked: its thread may lend it to another handler just now.
        self._given_up = raw
        is_active = raw.pgconn.transaction_status == TransactionStatus.ACTIVE
        if not is_active or self.wrapper.connection is not raw:
            self._given_up = None
        return self._given_up

    def prepare(self) -> None:
        wrapper = self.wrapper
        if wrapper.connection is None:
            return
        idle = time.monotonic() - self._last_used > IDLE_CHECK_SECONDS
        if wrapper.errors_occurred or idle or has_news(wrapper.connection):
            if wrapper.is_usable():
                wrapper.errors_occurred = False
            else:
                wrapper.close()

    def close_if_idle(self, seconds: float) -> None:
        raw = self.wrapper.connection
        # Only the session: Django's wrapper belongs to its thread, which finds it closed.
        if is_psycopg(raw) and time.monotonic() - self._last_used >= seconds:
            raw.close()

    def clean(self) -> bool:
        wrapper = self.wrapper
        if wrapper.connection is None:
            if wrapper.in_atomic_block or wrapper.execute_wrappers or self._is_marked():
                self._replace()
            return False
        self._last_used = time.monotonic()
        try:
            for cursor in open_cursors(wrapper.connection):
                cursor.close()  # now, and not by the garbage collector in the next transaction
        except PsycopgError:
            self._replace()
            return False
        is_given_up, self._given_up = self._given_up is wrapper.connection, None
        is_open = has_open_transaction(wrapper.connection)
        is_broken = is_open and wrapper.connection.broken  # by the server, which rolled it back
        if is_open or is_given_up or wrapper.in_atomic_block or self.is_changed():
            self._replace()
        else:
            wrapper.queries_log.clear()
        return is_open and not is_broken

    def is_changed(self) -> bool:
        """Whether the handler has set something on the objects of Django or psycopg."""
        return self._as_connected != _client_side(self.wrapper) or self._is_marked()

    def _is_marked(self) -> bool:
        """Whether an attribute of the wrapper was set that is not Django's."""
        number = len(vars(self.wrapper))
        if self.wrapper.force_debug_cursor:
            return True
        # The names are compared only if there are more than before: that takes 1 µs.
        if number != self._attributes or self._as_made:
            if _own_attributes(self.wrapper) != self._as_made:
                return True
            self._attributes = number
        return False

    def reset(self) -> None:
        raw = self.wrapper.connection
        if raw is None:
            return
        if self._other_touched:
            self._replace()
        elif raw in touched and raw.prepare_threshold is not None:
            self._replace()  # psycopg 3.2.0 would go on with what it had prepared
        elif raw in touched:
            try:
                raw.execute("DISCARD ALL")
                with_session(raw, LOOK_FOR_THE_CLIENT)
            except PsycopgError:
                self._replace()
            else:
                self._replace(keep=raw)

    def _replace(self, keep: Connection[Any] | None = None) -> None:
        """Make a new wrapper with the session that is to be kept."""
        old = self.wrapper
        if keep is None:
            _close(old)
        old.connection = None
        self.wrapper = new = self._new_wrapper()
        if keep is not None:
            try:
                new.connect(keep)
            except Exception:  # a receiver of connection_created may raise anything
                _close(new)
                new.connection = None

    def _new_wrapper(self) -> Any:
        self._other_touched = False
        self._attributes = 0
        wrapper: Any = self._pattern.copy(self.alias)
        # On the instance, not on a class: receivers of connection_created may select by sender.
        wrapper.connect = functools.partial(self.connect, wrapper, wrapper.connect)
        wrapper.chunked_cursor = functools.partial(
            self.chunked_cursor, wrapper, wrapper.chunked_cursor
        )
        connections[self.alias] = wrapper
        self._as_made, self._attributes = _own_attributes(wrapper), len(vars(wrapper))
        return wrapper

    def connect(
        self, wrapper: Any, connect: Callable[[], None], keep: Connection[Any] | None = None
    ) -> None:
        """Give the wrapper the session that is kept, or a new one."""
        opens = wrapper.get_new_connection
        try:
            if keep is None:
                wrapper.get_new_connection = functools.partial(_open, opens)
                _patiently(connect)
            else:
                wrapper.get_new_connection = lambda parameters: keep
                connect()
        finally:
            del wrapper.get_new_connection
        raw = wrapper.connection
        if is_psycopg(raw):
            raw.cursor_factory = self.cursor_class(raw.cursor_factory)
            raw.server_cursor_factory = self.cursor_class(raw.server_cursor_factory)
            touched.discard(raw)
        elif self._watch not in wrapper.execute_wrappers:
            wrapper.execute_wrappers.append(self._watch)
        if conf().count_queries and count_query not in wrapper.execute_wrappers:
            wrapper.execute_wrappers.append(count_query)
        self._as_connected = _client_side(wrapper)

    def cursor_class(self, factory: Any) -> Any:
        return watched(factory)

    def chunked_cursor(self, wrapper: Any, chunked_cursor: Callable[[], Any]) -> Any:
        """A cursor for ``iterator()``, for which Django does not use the class."""
        cursor = chunked_cursor()
        if is_psycopg(wrapper.connection):
            touched.add(wrapper.connection)
            remember(cursor.cursor)
        return cursor

    def _watch(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
    ) -> Any:
        """Watch a database that is not PostgreSQL, where only this is possible."""
        self._other_touched = self._other_touched or not is_plain(sql)
        return execute(sql, params, many, context)


def _patiently(connect: Callable[[], None]) -> None:
    """Wait for a while if the limit of connections is reached: others of the tree may be idle
    now or soon. Settling and renewing have precedence."""
    until = time.monotonic() + PATIENCE
    while True:
        if not is_short() or time.monotonic() > until:
            try:
                connect()
                return
            except DATABASE_ERRORS as error:
                if not is_out_of_connections(error):
                    raise
                if time.monotonic() > until:
                    emit_shortage(str(error))
                    raise
            close_idle_of_tree()
        time.sleep(random.uniform(0.05, 0.25))  # noqa: S311 — jitter


def _open(connect: Callable[[Any], Any], parameters: Any) -> Any:
    raw = connect(parameters)
    if is_psycopg(raw):
        with_session(raw, LOOK_FOR_THE_CLIENT, meanwhile=_ask_for_one)
    return raw


def _ask_for_one(reason: str) -> None:
    close_idle_of_tree()
    emit_shortage(reason)


def _cancel(active: list[Connection[Any]]) -> None:
    for raw in active:
        with suppress(OSError, PsycopgError):
            raw.cancel_safe(timeout=1.0)


def is_psycopg(raw: Any) -> bool:
    """Whether this is a session of PostgreSQL."""
    return isinstance(raw, Connection)


def _client_side(wrapper: Any) -> tuple[Any, ...]:
    """The values that a handler may set on the objects of Django and psycopg."""
    raw = wrapper.connection
    ours = (wrapper.autocommit, wrapper.force_debug_cursor, *wrapper.execute_wrappers)
    if not is_psycopg(raw):
        return ours
    return (
        *ours,
        *(raw.autocommit, raw.isolation_level, raw.read_only, raw.deferrable),
        *(raw.row_factory, raw.cursor_factory, raw.server_cursor_factory, raw.prepare_threshold),
    )


def _own_attributes(wrapper: Any) -> dict[str, Any]:
    """The attributes that a project has set, or the class of a backend that is not Django's."""
    attributes = vars(wrapper)
    kind: Any = type(wrapper)
    known = _known_attributes(kind)
    if attributes.keys() <= known:
        return {}
    return {name: attributes[name] for name in attributes if name not in known}


@functools.cache
def _known_attributes(kind: type) -> frozenset[str]:
    made = DatabaseWrapper({"OPTIONS": {}}, "")
    return frozenset({*vars(made), *dir(kind), "isolation_level"})  # this one when it connects


def has_open_transaction(raw: Any) -> bool:
    return is_psycopg(raw) and bool(raw.pgconn.transaction_status != TransactionStatus.IDLE)


def _close(wrapper: BaseDatabaseWrapper) -> None:
    try:
        wrapper.close()
    except DATABASE_ERRORS:
        return
