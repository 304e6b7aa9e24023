"""The blocking calls of async handlers, such as those of the ORM: their threads, and their database
connections, which are few and lent for one call each."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import OperationalError
from psycopg import Error as PsycopgError

from ..connections import IDLE_SECONDS, NO_CONNECTION_LEFT, add_closable, has_news
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


Call = tuple[Future[Any], Callable[[], Any]]


class CallThreads:
    """A handler gets a thread at its first call, and keeps it until it ends: libraries keep state
    in their thread. Its connections are lent, so there may be many more threads."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._idle: list[_CallThread] = []
        self._lock = threading.Lock()

    def take(self) -> _CallThread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _CallThread(self, self._sessions)

    def give_back(self, thread: _CallThread) -> None:
        with self._lock:
            self._idle.append(thread)

    def wake(self) -> None:
        """Let calls that wait for a connection see that their handler has ended."""
        self._sessions.wake()

    def lets_go(self, thread: _CallThread) -> bool:
        """Whether a thread that was idle for long may end: no handler has just taken it."""
        with self._lock:
            if thread not in self._idle:
                return False
            self._idle.remove(thread)
            return True

    def enter(self) -> HandlerCalls:
        """Give the handler its thread for ``sync_to_async``. Close what this returns at its end."""
        calls = HandlerCalls(self)
        context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[context] = calls
        SyncToAsync.thread_sensitive_context.set(context)
        return calls


def current_calls() -> HandlerCalls | None:
    context = SyncToAsync.thread_sensitive_context.get(None)
    calls = None if context is None else SyncToAsync.context_to_thread_executor.get(context)
    # The handler may have made another context.
    return calls if isinstance(calls, HandlerCalls) else None


class _CallThread:
    connections: LentConnections
    """Those of the thread, which makes them."""

    def __init__(self, threads: CallThreads, sessions: Sessions) -> None:
        self.calls: SimpleQueue[Call | Future[None]] = SimpleQueue()
        self.has_ended = False
        """Whether the handler has ended, perhaps during a call."""
        self._threads = threads
        self._sessions = sessions
        threading.Thread(target=self._run, name="django_jobs-call", daemon=True).start()

    def _run(self) -> None:
        connections = self.connections = LentConnections(self._sessions, lambda: self.has_ended)
        while True:
            try:
                call = self.calls.get(timeout=IDLE_SECONDS)
            except Empty:
                if self._threads.lets_go(self):
                    return
                continue
            if isinstance(call, Future):  # the end of the handler
                connections.end_handler()
                self.has_ended = False
                self._threads.give_back(self)
                call.set_result(None)
            else:
                connections.prepare()
                _make(call, then=connections.end_call)
            del call


def _make(call: Call, then: Callable[[], None]) -> None:
    """Make the call, and give the sessions back before its answer is known."""
    future, work = call
    if not future.set_running_or_notify_cancel():
        return
    try:
        answer = work()
    except BaseException as error:
        then()
        future.set_exception(error)
    else:
        then()
        future.set_result(answer)


class HandlerCalls(Executor):
    """The calls of one handler, one after the other."""

    def __init__(self, threads: CallThreads) -> None:
        self.busy: set[LentConnections] = set()
        """The connections of the threads that make a call now, free ones too."""
        self._threads = threads
        self._thread: _CallThread | None = None
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._closed:
            raise RuntimeError("the handler has ended, and with it its thread for blocking calls")
        if self._thread is None:
            self._thread = self._threads.take()
        future: Future[Any] = Future()
        self._thread.calls.put((future, partial(self._call, self._thread, fn, *args, **kwargs)))
        return future

    def _call(
        self, thread: _CallThread, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        with self.making_one(thread.connections):
            return fn(*args, **kwargs)

    @contextmanager
    def making_one(self, connections: LentConnections) -> Iterator[None]:
        """A thread makes one of the calls inside the ``with`` block."""
        self.busy.add(connections)
        try:
            yield
        finally:
            self.busy.discard(connections)

    def cancel(self) -> None:
        """Ask the servers to end the statements that its calls wait for."""
        for connections in list(self.busy):
            connections.cancel()

    def close(self) -> Future[None] | None:
        """End it. Returns a future that is done when its last call has ended and its connections
        are clean; None if it made no call."""
        self._closed = True
        if self._thread is None:
            return None
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()  # a cancel of who waits for it does not cancel it
        self._thread.has_ended = True
        self._thread.calls.put(ended)
        self._threads.wake()
        return ended


class FreeThreads(ThreadPoolExecutor):
    """The threads of ``asyncio.to_thread`` and the like. Each call has clean connections."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._sessions = sessions
        self._own = threading.local()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._call, current_calls(), fn, *args, **kwargs)

    def _call(
        self, calls: HandlerCalls | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        connections = getattr(self._own, "connections", None)
        if connections is None:
            connections = self._own.connections = LentConnections(self._sessions)
        connections.prepare()
        try:
            with nullcontext() if calls is None else calls.making_one(connections):
                return fn(*args, **kwargs)
        finally:
            connections.end_handler()
