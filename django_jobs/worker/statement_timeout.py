"""Limits the time of a statement from outside its thread."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError

from ..conf import conf


class StatementTimedOut(Exception):
    """A statement took too long: it waits for a lock, or the server does not answer."""


def took_too_long(error: BaseException) -> bool:
    """Whether the server ended it by the role's ``lock_timeout`` or ``statement_timeout``."""
    return getattr(error.__cause__ or error, "sqlstate", None) in ("55P03", "57014")


class StatementTimeout:
    """Ends statements of another thread that take too long.

    Time-outs of the server would be settings of the session, which a pooler passes on to others,
    and they do not help if packets are lost. So the main thread of the process checks from time to
    time: it asks the server to cancel, and then shuts the socket. The limit is for each statement,
    and not for several ones or for connecting: over a slow line they would never complete.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.passed = False
        self.seconds = seconds
        self._since = 0.0
        self._wrapper: BaseDatabaseWrapper | None = None

    def watch(self) -> None:
        """Limit every statement on this thread's connection from now on."""
        self._wrapper = connections[conf().database]
        self._wrapper.execute_wrappers.append(self._bound)

    def __enter__(self) -> None:
        """Limit the statements inside the ``with`` block, and their commit."""
        self.passed = False
        self._wrapper = connections[conf().database]
        self._wrapper.ensure_connection()
        self._since = time.monotonic()
        self._wrapper.execute_wrappers.append(self._begin)

    def __exit__(self, *error: object) -> None:
        self._since = 0.0
        if self._wrapper is not None:
            self._wrapper.execute_wrappers.remove(self._begin)

    def cut_short(self, error: BaseException) -> bool:
        """Whether a statement took too long, for example because it waited for a lock."""
        return self.passed or took_too_long(error)

    def _begin(self, execute: Callable[..., Any], *statement: Any) -> Any:
        self._since = time.monotonic()
        return execute(*statement)

    def _bound(self, execute: Callable[..., Any], *statement: Any) -> Any:
        self.passed = False
        self._since = time.monotonic()
        try:
            return execute(*statement)
        finally:
            self._since = 0.0

    def enforce(self) -> None:
        """Cancel the statement if it has run for too long."""
        since, wrapper = self._since, self._wrapper
        raw: Any = wrapper.connection if wrapper is not None else None
        late = time.monotonic() - since - self.seconds if since else -1.0
        if late < 0 or raw is None:
            return
        self.passed = True
        try:
            if late < self.seconds:
                raw.cancel_safe(timeout=1.0)
            else:
                with socket.socket(fileno=os.dup(raw.fileno())) as ours:
                    ours.shutdown(socket.SHUT_RDWR)
        except (OSError, PsycopgError):
            return
