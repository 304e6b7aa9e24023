"""The threads in which async handlers make blocking calls, such as those of the ORM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from ..connections import IDLE_SECONDS
from .lent_connections import LentConnections, Sessions

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
    # The handler may have made a context of its own.
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
