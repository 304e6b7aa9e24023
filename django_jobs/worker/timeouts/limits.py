"""Limits the time of a handler: raises an exception in it, so that it can clean up."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

from ...domain.numbers import NEVER
from ...domain.outcomes import FORCED, Outcome, TimedOut
from ...exceptions import Cancelled, TimeLimitExceeded
from ..context.attempt import Attempt, StopHandler
from ..events import report_of
from ..ipc.pipes import ignore_signal
from ..ipc.scoreboard import StartedJob, WorkerSlot

LONGEST_WAIT = 3600.0
"""Seconds until a source is checked again, because timers do not accept the longest time-outs."""

UNSAFE_MODULES = frozenset({"logging", "logging.handlers", "threading", "queue", "inspect"}) | {
    *("importlib._bootstrap", "importlib._bootstrap_external"),
    *("concurrent.futures._base", "concurrent.futures.thread"),
}
"""Modules that take locks of the whole process in Python code. An exception there could leave a
lock held, and all other threads would wait forever. Also ``inspect``, which examines the answer of
a call that must not be repeated."""

WAITS = frozenset({"wait", "join", "_wait_for_tstate_lock"})
"""Functions of ``threading`` that wait, and may be interrupted."""

UNSAFE_WAIT = 0.002
"""Seconds until a handler in such code is checked again. Short, because a thread that writes logs
is nearly always in such code; the wait lets others run."""

STOP_SIGNAL: signal.Signals = getattr(signal, "SIGURG", signal.SIGTERM)
"""Wakes an isolated child that has to stop. It is ignored by default, so it may arrive at any time,
and no service manager sends it to all processes, unlike SIGTERM. The request itself comes
separately, because some runtimes send this signal to themselves. A system without it has no
isolated children."""

RESULT = "result"
PACKAGE = __name__.partition(".")[0]


def never() -> bool:
    return False


class Interrupted(Exception):
    """The handler was stopped from outside. Its attempt ends with ``outcome``, regardless of how
    the handler reacted. The traceback shows where the handler was."""

    def __init__(self, outcome: Outcome, passed: BaseException | None = None) -> None:
        super().__init__(str(outcome))
        if passed is not None and isinstance(outcome, TimedOut):
            traceback = report_of(passed).traceback
            outcome = replace(outcome, traceback=traceback, exception=passed)
        self.outcome = outcome


class TimeoutSource(Protocol):
    """Raises an exception in a handler when its time limit is over."""

    def arm(self, limit: TimeLimit) -> None:
        """Allow an exception to be raised in the calling thread from now on."""

    def disarm(self, limit: TimeLimit) -> None:
        """Ensure that no exception arrives from now on. May be called twice."""


class TimeLimit:
    """The longest time, and the longest silence, of one call of a handler.

    ``ended`` is how the attempt ends once the time is over. It is set before an exception is raised
    in the handler, and never changes. So exactly one exception is raised, and it cannot hit code
    that runs later. ``stop_requested`` is set by a source that was asked to stop the handler. A
    handler that catches the exception and returns has then succeeded. A stop by force is on the
    scoreboard. ``cancel`` ends a statement of the handler, which would not see the exception
    before.
    """

    def __init__(
        self,
        timeouts: TimeoutSource,
        slot: WorkerSlot,
        entry: StartedJob,
        *,
        started: float,
        timeout: float | None,
        silence: float | None = None,
        cancel: Callable[[], object] = never,
        raises: type[BaseException] = TimeLimitExceeded,
    ) -> None:
        self.ended: Outcome | None = None
        self.stop_requested = False
        self._stopped = False
        self._timeouts = timeouts
        self._slot = slot
        self._entry = entry
        self._timeout = timeout
        self._silence = silence
        self._cancel = cancel
        self._raises = raises
        self._deadline = NEVER if timeout is None else started + timeout
        self._kept: dict[str, Any] = {}

    def call(self, handler: Callable[..., Any], payload: dict[str, Any]) -> Any:
        """Call the handler. Raises :class:`Interrupted` if its time was over first."""
        # A defaultdict calls the handler and keeps the result in one step of C. No exception can
        # arrive between the two, so what is kept had returned in time.
        kept: dict[str, Any] = defaultdict(partial(handler, **payload))
        self._kept = kept
        try:
            try:
                self._timeouts.arm(self)
                result = kept[RESULT]
            finally:
                self._timeouts.disarm(self)
        except BaseException as error:
            self.end(error)
            raise
        self.end()
        return result

    def end(self, passed: BaseException | None = None) -> None:
        """End the limit after the call, which raised ``passed``. Raises :class:`Interrupted` if the
        handler was stopped, also if it caught that."""
        try:
            self._timeouts.disarm(self)
        except BaseException as error:
            self._timeouts.disarm(self)  # it arrived in the first call; there is no other
            if self.ended is None:  # that of a drain
                raise
            passed = passed or error
        finally:
            self._entry.end_times()  # the rest has no time limit
        if self.ended is not None:
            raise Interrupted(self.ended, passed) from None

    def begin_again(self) -> None:
        """Prepare another call of the handler: its silence counts from now, not its time-out."""
        self._entry.note_progress()
        deadline = 0.0 if self._timeout is None else self._deadline
        self._entry.bound(deadline, self._silence or 0.0)
        self._slot.watched = True

    def due(self) -> float:
        """When the time is over, without a report until then; never, if it does not matter."""
        if self._kept or self._stopped or self.ended is not None:
            return NEVER
        if self.stop_requested or self._entry.forced_at:
            return 0.0
        if self._silence is None:
            return self._deadline
        return min(self._deadline, self._entry.progress_at + self._silence)

    def expire(self, now: float) -> type[BaseException] | None:
        if now < self.due():
            return None
        self._cancel()
        if self._entry.forced_at:
            self.ended = FORCED
            return Cancelled
        if self.stop_requested:
            self._stopped = True
            return StopHandler
        if now >= self._deadline:
            self.ended = TimedOut(seconds=self._timeout or 0.0)
        else:
            self.ended = TimedOut(seconds=self._silence or 0.0, silent=True)
        return self._raises


class SignalTimeouts:
    """Interrupts the main thread of a process that runs one handler. A signal also ends a sleep,
    and a wait for a socket or a lock. ``stop_requested`` returns whether the handler has to stop;
    None while that is being read, because an exception would tear the message. ``on_each`` is
    called for each signal."""

    def __init__(
        self,
        stop_requested: Callable[[], bool | None] = never,
        on_each: Callable[[], object] = never,
    ) -> None:
        self._stop_requested = stop_requested
        self._on_each = on_each
        self._limit: TimeLimit | None = None
        self._before: dict[signal.Signals, Any] = {}

    def arm(self, limit: TimeLimit) -> None:
        """Interrupt the calling thread when ``limit`` is over, or at :data:`STOP_SIGNAL`."""
        self._limit = limit
        for number in (signal.SIGALRM, STOP_SIGNAL):
            self._before[number] = signal.signal(number, self._on_signal) or signal.SIG_DFL
        limit.stop_requested = bool(self._stop_requested())
        self._set_timer(limit)

    def disarm(self, limit: TimeLimit) -> None:
        """Stop interrupting it, and restore the signal handlers."""
        self._limit = None
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._on_each()
        limit = self._limit
        if limit is None:
            return
        stop_requested = self._stop_requested()
        if stop_requested is None:
            signal.setitimer(signal.ITIMER_REAL, UNSAFE_WAIT)
            return
        limit.stop_requested = limit.stop_requested or stop_requested
        if not is_unsafe(frame) and (error := limit.expire(time.monotonic())) is not None:
            raise error
        self._set_timer(limit)

    def _set_timer(self, limit: TimeLimit) -> None:
        due = limit.due()
        if due < NEVER:
            signal.setitimer(signal.ITIMER_REAL, wait_for(due, time.monotonic()))


def wait_for(due: float, now: float) -> float:
    """Seconds for a source to wait. If the limit is overdue, until unsafe code may have ended."""
    return min(due - now, LONGEST_WAIT) if due > now else UNSAFE_WAIT


def is_unsafe(frame: FrameType | None) -> bool:
    """Whether an exception raised here might affect more than the handler: in code that takes locks
    of the whole process, including this package."""
    if frame is None:
        return True
    module = frame.f_globals.get("__name__", "")
    if module == "threading" and frame.f_code.co_name in WAITS:
        return False
    return module in UNSAFE_MODULES or module.partition(".")[0] == PACKAGE


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
