"""Makes a handler's forks behave as usual: they get signals, and share no connection."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any
from weakref import WeakSet

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Error as PsycopgError

from ..ipc.pipes import STOPS

USUAL: dict[signal.Signals, Any] = {
    number: signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    for number in signal.Signals
    if number in STOPS or number.name in ("SIGALRM", "SIGURG")
}
"""The signals that this package handles in a process with handlers, with Python's default actions.
``multiprocessing`` ends its processes with SIGTERM and waits for them."""

PACKAGE = __name__.partition(".")[0]

_connected: WeakSet[BaseDatabaseWrapper] = WeakSet()
_mask = threading.local()
_inherited: list[Any] = []
"""The parent's connections. They are kept, because each would warn when it is collected."""


def start_afresh_in_forks() -> None:
    """Apply this to forks of this process from now on. Not for a process that forks workers."""
    connection_created.connect(_remember)
    if not hasattr(os, "register_at_fork"):
        return
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_release_signals, after_in_child=_start_afresh
    )


def _remember(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _connected.add(connection)


def _hold_signals() -> None:
    """Block signals until the child handles them as usual: pools end their children early."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, USUAL)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _start_afresh() -> None:
    """Takes no lock: a thread that does not exist in the child may have held it."""
    for number, usual in USUAL.items():
        if _is_ours(signal.getsignal(number)):
            signal.signal(number, usual)
    connection_created.lock = threading.Lock()
    try:
        _let_go_of_connections()
    finally:
        _release_signals()


def _is_ours(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).partition(".")[0] == PACKAGE


def _let_go_of_connections() -> None:
    """Close the sockets without a message, because the parent still uses the connections. While a
    socket is open, the transaction of a killed worker does not end."""
    inherited = [wrapper.connection for wrapper in list(_connected)]
    _inherited.extend(inherited)
    _connected.clear()
    for wrapper in connections.all(initialized_only=True):
        connections[wrapper.alias] = wrapper.copy()
    # Last, because it fails if no descriptor is left.
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for raw in inherited:
        try:
            os.dup2(nowhere, raw.fileno(), inheritable=False)
        except (AttributeError, OSError, PsycopgError):  # closed, or of another kind of database
            continue
    os.close(nowhere)
