"""The thread that raises time-outs in the other threads of a worker process."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time

from ...domain.durations import NEVER
from ..context.attempt import Attempt
from ..ipc.pipes import ignore_signal
from .limits import STOP_SIGNAL, TimeLimit, is_unsafe, wait_for


class ThreadTimeouts:
    """The time-outs of handlers on threads. Code in C gets the exception when it returns to Python.
    The thread starts with the first limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._earlier = threading.Condition(self._lock)
        self._armed: dict[int, TimeLimit] = {}
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None

    def arm(self, limit: TimeLimit) -> None:
        """Raise in the calling thread when the time of ``limit`` is over."""
        due = limit.due()
        # The lock and not the condition, which is entered through Python code: an exception could
        # arrive there with the lock held.
        with self._lock:
            self._armed[threading.get_ident()] = limit
            self._wake(due)

    def look(self, thread: int, attempt: Attempt) -> None:
        """Raise in another thread if its attempt's limit is over, also if its call had none."""
        with self._lock:
            if attempt.in_call and attempt.limit is not None:
                self._armed[thread] = attempt.limit
            self._wake(0.0)

    def _wake(self, due: float) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="django_jobs-timeouts", daemon=True)
            thread.start()  # this may fail; the next limit tries again
            self._thread = thread
        elif due < self._wakes_at:
            self._earlier.notify()

    def disarm(self, limit: TimeLimit) -> None:
        """Stop raising in the calling thread, and take back an exception still to arrive."""
        thread = threading.get_ident()
        with self._lock:
            self._armed.pop(thread, None)
            if limit.ended is not None:
                take_back()

    def _run(self) -> None:
        with self._earlier:
            while True:
                now = time.monotonic()
                for thread, limit in self._armed.items():
                    # No other thread runs between the check of its frame and the raise, because a
                    # thread that has just got the GIL keeps it for 5 ms.
                    if now < limit.due() or is_unsafe(sys._current_frames().get(thread)):
                        continue
                    if (error := limit.expire(now)) is not None:
                        raise_in(thread, error)
                due = min((limit.due() for limit in self._armed.values()), default=NEVER)
                wait = wait_for(due, now)
                self._wakes_at = now + wait
                self._earlier.wait(wait)


def let_waits_end() -> None:
    """Let what :func:`raise_in` raises in the calling thread, the main one, end a sleep and a wait
    for a socket or a lock: a signal calls its handler in the middle of them, which is a step of
    Python code."""
    signal.signal(STOP_SIGNAL, ignore_signal)


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise ``error`` in a thread at its next step of Python code."""
    raised = ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
    if thread == _main and signal.getsignal(STOP_SIGNAL) is ignore_signal:
        signal.pthread_kill(thread, STOP_SIGNAL)


_main = threading.main_thread().ident
"""The same in a fork."""


class _TakenBack(BaseException):
    """What a thread raises in itself in place of an exception that has not arrived."""


def take_back() -> None:
    """Take back what was raised in the calling thread and has not arrived yet.

    Another exception replaces it and is received. Without one, CPython 3.11 would keep the process
    looking for an exception: each call is slower, and one under a profiler never returns.
    """
    try:
        raise_in(threading.get_ident(), _TakenBack)
        while True:
            pass
    except _TakenBack:
        return
