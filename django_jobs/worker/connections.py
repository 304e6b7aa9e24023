"""Opens, closes and limits the connections of a worker process to the jobs' database."""

from __future__ import annotations

import logging
import os
import random
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg import IsolationLevel, OperationalError

from ..conf import conf
from ..domain.numbers import NEVER
from ..models.database import DATABASE_ERRORS
from ..signals import WorkerSignal
from .events import emit_throttled
from .statement_timeout import StatementTimedOut, StatementTimeout

R = TypeVar("R")

# A silent partition is noticed in about ten seconds instead of the kernel's quarter of an hour.
TRANSPORT = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 9_000,
}

IDLE_SECONDS = 60.0
"""Connections that are not used for this long are closed."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0

PATIENCE = 5.0
"""Seconds to wait for a session of a pooler, or in a handler for a connection."""
UNUSUAL_WAIT, LOOK = 1.0, 0.25
"""Seconds after which who waits for a session of a pooler asks others for theirs, and how often."""

KEEP_MEMORY = "SELECT length(repeat(' ', 1000000))"
"""Takes and frees a megabyte at once. After that, glibc keeps up to two megabytes of what a session
frees. By default it keeps 128 KiB, so that most sessions got 150 to 250 pages anew for each claim
and settle; which of them, a catalog query before decided. A pickup took a sixth longer then."""

INDEXES_ALONE = """SELECT CASE WHEN pg_backend_pid() = {pid}
THEN set_config('enable_seqscan', 'off', false) || set_config('random_page_cost', '1.1', false)
    || set_config('jit', 'off', false) END"""
"""For a session that keeps its plans, and is the one that the connection was given: no pooler is
between. A plan that was made while the live table had a page would read it from end to end, and a
million rows later too. With PostgreSQL's 4 for a random page, of a table of a few pages it would
read each job of a settle once for each of them."""

PREPARED_AFTER = 5
"""Executions after which a statement is prepared, which is a round trip: psycopg's default."""


def close_everything() -> None:
    """Close this thread's connections and the process's pools: a child inherits no socket."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def signal_process(signal: WorkerSignal, sender: str) -> None:
    """Send a signal of this process, if anybody listens."""
    if signal.receivers:
        signal.send_robust(sender, pid=os.getpid())
        close_everything()


def nothing(*_: object) -> None:
    """In place of a function that is not given."""


def own_connection(
    *, note: Callable[[bool], None] = nothing, keeps_plans: bool = False
) -> BaseDatabaseWrapper:
    """Replace this thread's connection to the jobs' database by a private one.

    It is not from a pool, never aged out, and its transactions are READ COMMITTED, even if the
    project uses another level: under other levels a claim would fail with serialization errors.
    Statements in autocommit have the default level of the database or role. If that is another
    level, :func:`retry_while_disconnected` repeats a statement that failed to serialize. ``note``
    is called with False before the connection is opened, and with True when it is open. With
    ``keeps_plans``, and no pooler between, :func:`~django_jobs.models.database.fetch_planned` has
    each statement planned once; not with ``server_side_binding``, where psycopg would prepare all
    others too.
    """
    alias = conf().database
    wrapper: Any = unpooled(connections[alias])
    keeps_plans &= not wrapper.settings_dict["OPTIONS"].get("server_side_binding")
    wrapper.get_new_connection = partial(_open, wrapper.get_new_connection, note, keeps_plans)
    wrapper.queries_log = deque(maxlen=1)  # with DEBUG on it would keep 9,000 statements
    wrapper.settings_dict["OPTIONS"] = {
        **TRANSPORT,
        **wrapper.settings_dict["OPTIONS"],
        "isolation_level": IsolationLevel.READ_COMMITTED,
    }
    wrapper.settings_dict["CONN_MAX_AGE"] = None
    wrapper.settings_dict["CONN_HEALTH_CHECKS"] = False
    connections[alias] = wrapper
    opened: BaseDatabaseWrapper = wrapper
    return opened


NO_SESSION = "no session became free"
NO_CONNECTION_LEFT = (
    "too many clients already",
    "too many connections for",
    "connection slots are reserved",
    "query_wait_timeout",
    NO_SESSION,
)
"""PostgreSQL's message if a limit of the server, a role or a database is reached, that of
PgBouncer if no session of its pool became free for a first statement, and ours before. libpq has no
SQLSTATE for a failed connection. In other languages it is an error like any other."""

_needed = 0


def note_need(number: int) -> None:
    """Remember how many connections this command needs, for the log line about a missing one."""
    global _needed
    _needed = number


def is_out_of_connections(error: BaseException) -> bool:
    return any(text in str(error) for text in NO_CONNECTION_LEFT)


class Closable(Protocol):
    """An object whose connections can be closed if others need them more."""

    def close_if_idle(self, seconds: float) -> None:
        """Close the connections that were not used for ``seconds``."""


_closable: WeakSet[Closable] = WeakSet()
_closable_lock = threading.Lock()


def add_closable(one: Closable) -> None:
    """Let :func:`close_idle` close the connections of this object while it exists."""
    with _closable_lock:
        _closable.add(one)


def close_idle(seconds: float = 0.0) -> None:
    """Close the connections of this process that handlers have not used for this long."""
    with _closable_lock:  # another thread may add one meanwhile
        found = list(_closable)
    for connections_of_a_thread in found:
        connections_of_a_thread.close_if_idle(seconds)


_ask_for_room: Callable[[], None] = nothing
_ask_for_idle: Callable[[], None] = nothing
_short_until = 0.0


def make_room_by(ask_for_room: Callable[[], None], ask_for_idle: Callable[[], None]) -> None:
    """Set the functions that ask all processes of the tree to close idle connections, because one
    of ours cannot be opened, or one of a handler."""
    global _ask_for_room, _ask_for_idle
    _ask_for_room, _ask_for_idle = ask_for_room, ask_for_idle


def close_idle_of_tree() -> None:
    """Close the connections that handlers of this process do not use, and soon those of the other
    processes, because a handler here needs one."""
    close_idle()
    _ask_for_idle()


def note_shortage() -> None:
    """Close the idle connections of handlers, because one of ours could not be opened. Handlers
    open no others until the next try."""
    global _short_until
    _short_until = time.monotonic() + LONGEST_PAUSE + 0.5
    close_idle()


def is_short() -> bool:
    """Whether a connection that a handler would open now is needed for settling or the like."""
    return time.monotonic() < _short_until


def emit_shortage(error: str) -> None:
    """Log that there is no connection, and how many this command needs."""
    reason = f"this jobworker needs {_needed} connections, and more for isolated jobs"
    emit_throttled("no_connection_left", logging.WARNING, reason=reason, error=error)


def with_session(
    raw: Any,
    statement: bytes = b"SELECT 1",
    *,
    meanwhile: Callable[[str], object] = nothing,
    patience: float = PATIENCE,
) -> bytes | None:
    """Send the first statement of a connection, and return the value that it reads, if it does.

    A pooler accepts a connection before it has a session for it, and this statement is what waits
    for one: in PgBouncer for 120 seconds, and no time-out of libpq counts them. ``meanwhile`` is
    called with the reason if that takes unusually long. Raises an error of
    :data:`NO_CONNECTION_LEFT` after ``patience`` seconds, or that of the connection if it is lost.
    """
    try:
        return _await_answer(raw, statement, meanwhile, patience)
    except BaseException:
        raw.close()
        raise


def _await_answer(
    raw: Any, statement: bytes, meanwhile: Callable[[str], object], patience: float
) -> bytes | None:
    raw.pgconn.send_query(statement)
    waited = 0.0
    with selectors.DefaultSelector() as selector:  # where a time-out may interrupt a handler
        selector.register(raw.fileno(), selectors.EVENT_READ)
        while not selector.select(LOOK):
            waited += LOOK  # not by the clock: a machine may have stood still
            reason = f"{NO_SESSION} in {waited:g} s: a pooler has too few, or the server hangs"
            if waited >= patience:
                raise OperationalError(reason)
            if waited >= UNUSUAL_WAIT:
                meanwhile(reason)
    error, value = "", None
    while (result := raw.pgconn.get_result()) is not None:
        error = result.error_message.decode(errors="replace")
        value = result.get_value(0, 0) if result.ntuples else None
    if raw.closed:
        raise OperationalError(error or "the connection was lost at its first statement")
    return value


def _open(
    connect: Callable[[Any], Any],
    note: Callable[[bool], None],
    keeps_plans: bool,
    parameters: Any,
) -> Any:
    note(False)
    try:
        opened = connect(parameters)
        first = KEEP_MEMORY
        if keeps_plans:
            first += "; " + INDEXES_ALONE.format(pid=opened.info.backend_pid)
        is_direct = with_session(opened, first.encode(), meanwhile=_make_room) is not None
        opened.prepare_threshold = PREPARED_AFTER if keeps_plans and is_direct else None
    except PsycopgError as error:
        if is_out_of_connections(error):
            _make_room(str(error))
        raise
    note(True)
    return opened


def _make_room(reason: str) -> None:
    note_shortage()
    _ask_for_room()
    emit_shortage(reason)


def has_news(raw: Any) -> bool:
    """Whether the server has sent something unrequested, as it does when it ends the connection.
    Takes no round trip. True if there is no connection."""
    try:
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError, PsycopgError):
        return True


def unpooled(wrapper: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """A copy of the connection that is not from a pool, so that each thread here keeps its own. It
    uses autocommit even if the project has set AUTOCOMMIT to False: nothing else would commit
    claims and settles."""
    copy = wrapper.copy(wrapper.alias)
    copy.settings_dict["AUTOCOMMIT"] = True
    copy.settings_dict["OPTIONS"].pop("pool", None)
    return copy


def retry_while_disconnected(
    work: Callable[[], R],
    *,
    what: str,
    give_up: Callable[[], bool] = lambda: False,
    until: float = NEVER,
    deadline: StatementTimeout | None = None,
) -> R | None:
    """Call ``work`` on this thread's connection, and repeat it while the database is away.

    Pauses with jitter from 50 ms to 2 s, logs at most every five seconds, and returns None once
    ``give_up`` returns True, or ``time.monotonic()`` is ``until``. Closes the connection after each
    error, because Django does not reopen a broken one in autocommit. Raises
    :class:`StatementTimedOut` if ``deadline`` ended the statement.
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
            if deadline is not None and deadline.cut_short(error):
                raise StatementTimedOut(what) from error
            if give_up() or time.monotonic() >= until:
                return None
            text = f"{type(error).__name__}: {error}"
            emit_throttled("database_error", logging.WARNING, what=what, error=text)
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 — jitter
            pause = min(pause * 2, LONGEST_PAUSE)


def drop_connection() -> None:
    """Close this thread's connection to the jobs' database, in any state."""
    connection = connections[conf().database]
    try:
        connection.close()
    except DATABASE_ERRORS:
        connection.connection = None


def is_disconnected() -> bool:
    """Whether this thread has no connection to the jobs' database, such as after an error."""
    raw: Any = connections[conf().database].connection
    return raw is None or bool(raw.closed)


def close_others() -> None:
    """Close this thread's connections to other databases if they are broken or too old, as Django
    does between two requests. Receivers of signals opened them."""
    for connection in connections.all(initialized_only=True):
        if connection.alias != conf().database:
            connection.close_if_unusable_or_obsolete()


def ping() -> None:
    """Send a statement on this thread's connection. Raises the database's error if it fails."""
    with connections[conf().database].cursor() as cursor:
        cursor.execute("SELECT 1")
