"""The connections of a worker process for the queue."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg import IsolationLevel

from ..conf import conf
from ..signals import worker_event

R = TypeVar("R")

DATABASE_ERRORS = (DatabaseError, InterfaceError, PsycopgError)

# A silent partition is noticed in about ten seconds instead of the kernel's quarter of an hour
# (faults.md, b).
TRANSPORT = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 9_000,
}

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
QUIET_SECONDS = 5.0


def close_everything() -> None:
    """Close this thread's connections and the process's pools: a child must inherit no socket."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def own_connection(alias: str | None = None) -> BaseDatabaseWrapper:
    """Give this thread a private connection to the jobs' database, in place of Django's.

    Not from a pool, never aged out, its transactions in READ COMMITTED whatever the project uses:
    under other levels a claim would fail with serialization errors (faults.md, b). Statements in
    autocommit have the level that the database or the role has by default. Where that is another,
    one that lost a race is made again by :func:`persistent`.
    """
    alias = alias or conf().database
    wrapper = unpooled(connections[alias])
    wrapper.queries_log = deque(maxlen=1)  # with DEBUG on it would keep 9,000 statements
    wrapper.settings_dict["OPTIONS"] = {
        **TRANSPORT,
        **wrapper.settings_dict["OPTIONS"],
        "isolation_level": IsolationLevel.READ_COMMITTED,
    }
    wrapper.settings_dict["CONN_MAX_AGE"] = None
    wrapper.settings_dict["CONN_HEALTH_CHECKS"] = False
    connections[alias] = wrapper
    return wrapper


def unpooled(wrapper: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """A copy of the connection that is not from a pool: each thread here keeps one of its own. It
    commits by itself, also where the project has set AUTOCOMMIT to False: nobody else would commit
    what is claimed and settled here."""
    copy = wrapper.copy(wrapper.alias)
    copy.settings_dict["AUTOCOMMIT"] = True
    copy.settings_dict["OPTIONS"].pop("pool", None)
    return copy


def persistent(
    work: Callable[[], R],
    *,
    what: str,
    give_up: Callable[[], bool] = lambda: False,
    deadline: Deadline | None = None,
) -> R | None:
    """Do ``work`` on this thread's connection, again and again while the database is away.

    Pauses with jitter from 50 ms to 2 s, logs at most every five seconds, and returns None once
    ``give_up`` says so. Django never reopens a broken connection in autocommit by itself, so it is
    closed after each error. Raises :class:`Blocked` if ``deadline`` cut it short.
    """
    pause = FIRST_PAUSE
    while True:
        try:
            if deadline is None:
                return work()
            with deadline:
                return work()
        except DATABASE_ERRORS as error:
            drop_connection()
            if deadline is not None and (deadline.passed or _took_too_long(error)):
                raise Blocked(what) from error
            if give_up():
                return None
            text = f"{type(error).__name__}: {error}"
            say_rarely("database_error", logging.WARNING, what=what, error=text)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 — jitter
            pause = min(pause * 2, LONGEST_PAUSE)


class Blocked(Exception):
    """A statement took longer than it may: somebody holds a lock, or the server is deaf."""


def _took_too_long(error: BaseException) -> bool:
    """Whether the server itself ended the statement: ``lock_timeout`` and ``statement_timeout`` may
    be set for a whole role."""
    return getattr(error.__cause__ or error, "sqlstate", None) in ("55P03", "57014")


class Deadline:
    """Ends a statement of another thread that takes too long, from outside.

    Server-side time-outs would be settings of the session, which a pooler hands on to others, and
    do not help where packets vanish. So the process's main thread asks now and then: first the
    server is told to cancel, then the socket is shut.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.passed = False
        self._seconds = seconds
        self._since = 0.0
        self._wrapper: BaseDatabaseWrapper | None = None

    def __enter__(self) -> None:
        self.passed = False
        self._wrapper = connections[conf().database]
        self._since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._since = 0.0

    def enforce(self) -> None:
        """Cancel what has run for longer than it may."""
        since, wrapper = self._since, self._wrapper
        raw: Any = wrapper.connection if wrapper is not None else None
        late = time.monotonic() - since - self._seconds if since else -1.0
        if late < 0 or raw is None:
            return
        self.passed = True
        try:
            if late < self._seconds:
                raw.cancel_safe(timeout=1.0)
            else:
                with socket.socket(fileno=os.dup(raw.fileno())) as ours:
                    ours.shutdown(socket.SHUT_RDWR)
        except (OSError, PsycopgError):
            return


def drop_connection() -> None:
    """Close this thread's connection to the jobs' database, whatever state it is in."""
    connection = connections[conf().database]
    try:
        connection.close()
    except DATABASE_ERRORS:
        connection.connection = None


def say(event: str, level: int, **fields: Any) -> None:
    """Tell of something that happened to this worker."""
    worker_event.send_robust(event, level=level, fields=fields)


_said: dict[str, float] = {}


def say_rarely(event: str, level: int, **fields: Any) -> None:
    """:func:`say`, at most once in five seconds for each event: a database that is away is the
    same news every time."""
    now = time.monotonic()
    if now - _said.get(event, float("-inf")) > QUIET_SECONDS:
        _said[event] = now
        say(event, level, **fields)


def ping() -> None:
    """Raise what the database raises if it does not answer on this thread's connection."""
    with connections[conf().database].cursor() as cursor:
        cursor.execute("SELECT 1")
