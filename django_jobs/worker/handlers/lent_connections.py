"""The database connections of async handlers: few, and lent for one call each."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import OperationalError
from psycopg import Error as PsycopgError

from ..connections import NO_CONNECTION_LEFT, add_closable, has_news
from ..timeouts.limits import never
from .connections import (
    IDLE_CHECK_SECONDS,
    HandlerConnection,
    HandlerConnections,
    has_open_transaction,
)
from .cursors import Session, open_cursors, remembered, touched

PATIENCE = 30.0
"""Seconds that a call waits for a session, if handlers that keep theirs have all of them."""


class Sessions:
    """At most ``most`` sessions of each database, for the calls of all async handlers of a process.
    Those that no call uses stay open for the next one.

    One more is for calls in free threads, which always give theirs back: so such a call ends even
    while handlers keep all others, perhaps the one that waits for it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._free: dict[str, deque[tuple[float, Session]]] = {}
        self._taken: Counter[str] = Counter()
        self._taken_free: Counter[str] = Counter()
        """Those of them that free threads have."""
        add_closable(self)

    def take(
        self, alias: str, has_ended: Callable[[], bool], *, in_free_thread: bool = False
    ) -> Session | None:
        """A session that is clean and works, or None to open a new one, which counts as taken.
        Nothing is waited for once the handler ``has_ended``, such as by its time-out."""

        def is_over() -> bool:
            uses_spare = in_free_thread or self._taken_free[alias] > 0
            return has_ended() or self._taken[alias] < self._most + uses_spare

        with self._changed:
            free = self._free.setdefault(alias, deque())
            found = self._changed.wait_for(is_over, PATIENCE)
            if has_ended():
                raise OperationalError("the handler has ended while it waited for a connection")
            if not found:
                raise OperationalError(
                    f"{NO_CONNECTION_LEFT[1]} async handlers: all {self._most} of this process "
                    "are in use, or kept by handlers with an open transaction or a changed session"
                )
            self._taken[alias] += 1
            self._taken_free[alias] += in_free_thread
        while True:
            with self._changed:
                if not free:
                    return None
                idle_since, session = free.pop()  # the last one that was used
            # Without the lock: a dead network may take its time to answer.
            if _works(session, time.monotonic() - idle_since):
                return session
            session.close()

    def give_back(
        self, alias: str, session: Session | None, *, in_free_thread: bool = False
    ) -> None:
        """Take back a session that is clean; None if it was closed."""
        with self._changed:
            self._taken[alias] -= 1
            self._taken_free[alias] -= in_free_thread
            if session is not None:
                self._free[alias].append((time.monotonic(), session))
            self._changed.notify_all()  # they wait for sessions of several databases

    def wake(self) -> None:
        """Let those who wait see whether their handler has ended."""
        with self._changed:
            self._changed.notify_all()

    def close_if_idle(self, seconds: float) -> None:
        """Close those that were not used for this long. May be called from any thread."""
        with self._changed:
            until = time.monotonic() - seconds
            for free in self._free.values():
                while free and free[0][0] <= until:
                    free.popleft()[1].close()


def _works(session: Session, idle: float) -> bool:
    if session.closed or has_news(session):
        return False
    if idle > IDLE_CHECK_SECONDS:
        try:
            session.execute("SELECT 1")
        except PsycopgError:
            return False
    return True


class LentConnections(HandlerConnections):
    """The connections of a thread that makes the calls of one async handler after another, until
    that ``has_ended``; or, without that, of a free thread."""

    def __init__(self, sessions: Sessions, has_ended: Callable[[], bool] | None = None) -> None:
        free = has_ended is None
        has_ended = has_ended or never
        self._take = partial(sessions.take, has_ended=has_ended, in_free_thread=free)
        self._give_back = partial(sessions.give_back, in_free_thread=free)
        super().__init__()

    def new_connection(self, alias: str) -> HandlerConnection:
        return _LentConnection(alias, partial(self._take, alias), partial(self._give_back, alias))

    def end_call(self) -> None:
        """Give the sessions to others, but for those in which the call has left something: an open
        transaction, a setting, a lock, an open cursor. The handler keeps these until its end."""
        for connection in self.all:
            assert isinstance(connection, _LentConnection)
            connection.end_call()

    def end_handler(self) -> None:
        """Roll back, reset, and give back what the handler has kept."""
        self.clean()
        self.reset()
        for connection in self.all:
            assert isinstance(connection, _LentConnection)
            connection.end_handler()


class _LentConnection(HandlerConnection):
    def __init__(
        self,
        alias: str,
        take: Callable[[], Session | None],
        give_back: Callable[[Session | None], None],
    ) -> None:
        self._take = take
        self._give_back = give_back
        self._has_session = False
        super().__init__(alias)

    def prepare(self) -> None:
        """Does nothing: what is lent was tested, and what is kept may be in a transaction."""

    def close_if_idle(self, seconds: float) -> None:
        """Does nothing: what is idle is in ``Sessions``."""

    def cursor_class(self, factory: Any) -> Any:
        return remembered(super().cursor_class(factory))

    def connect(
        self, wrapper: Any, connect: Callable[[], None], keep: Session | None = None
    ) -> None:
        if self._has_session or wrapper.vendor != "postgresql":  # its handler has closed it, or so
            super().connect(wrapper, connect, keep)
            return
        session = self._take()
        self._has_session = True
        super().connect(wrapper, connect, session)

    def end_call(self) -> None:
        if not self._has_session:
            return
        wrapper = self.wrapper
        raw = wrapper.connection
        if raw is not None and raw.closed and not wrapper.in_atomic_block:
            wrapper.close()
            raw = None
        if raw is None or not self.has_state():
            wrapper.connection = None
            self._has_session = False
            self._give_back(raw)

    def end_handler(self) -> None:
        self.wrapper.queries_log.clear()  # with DEBUG it holds thousands
        if self._has_session:
            self.end_call()
        else:
            self.wrapper.close()  # of another kind of database

    def has_state(self) -> bool:
        """Whether another handler would notice what was done in this session, or a late cancel."""
        wrapper = self.wrapper
        raw = wrapper.connection
        return (
            wrapper.in_atomic_block
            or self._given_up is raw
            or self.is_changed()
            or has_open_transaction(raw)
            or raw in touched
            or bool(open_cursors(raw))
        )
