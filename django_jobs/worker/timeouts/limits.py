"""The time a handler may take: raised in it when it is over, while it can still clean up."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

from ...domain.durations import NEVER
from ...domain.errors import ErrorReport
from ...domain.outcomes import Outcome, TimedOut
from ...exceptions import TimeLimitExceeded
from ..context.attempt import StopHandler
from ..ipc.scoreboard import StartedJob, WorkerSlot

LONGEST_WAIT = 3600.0
"""Seconds until a clock is asked again; timers do not take all that a time-out may be."""

UNSAFE_MODULES = frozenset({"logging", "logging.handlers", "threading", "queue", "inspect"}) | {
    *("importlib._bootstrap", "importlib._bootstrap_external"),
    *("concurrent.futures._base", "concurrent.futures.thread"),
}
"""Modules that take locks of the whole process in steps of Python. An exception between two of them
would leave one taken, and all other threads waiting for ever. And ``inspect``, which looks at the
answer of a call that must not be made twice."""

WAITS = frozenset({"wait", "join", "_wait_for_tstate_lock"})
"""Functions of ``threading`` that wait for others, and may be interrupted at it."""

UNSAFE_WAIT = 0.002
"""Seconds until a handler that was found in such code is tried again. Short, because a thread that
writes logs is found in them nearly always: there it lets the others run."""

STOP_SIGNAL: signal.Signals = getattr(signal, "SIGURG", signal.SIGTERM)
"""What wakes a child that runs one job when it has to stop. By default it is ignored, so it
may come at any time; no service manager sends it to all processes, as it does SIGTERM. It is
not the word itself: some runtimes send it to themselves. A system without it has no such child."""

RESULT = "result"
PACKAGE = __name__.partition(".")[0]


def never() -> bool:
    """For handlers that are never asked to stop."""
    return False


class Interrupted(Exception):
    """The handler was stopped from outside. Its attempt ends with ``outcome``, no matter what the
    handler did then; what it let pass tells where it was."""

    def __init__(self, outcome: Outcome, passed: BaseException | None = None) -> None:
        super().__init__(str(outcome))
        if passed is not None and isinstance(outcome, TimedOut):
            outcome = replace(outcome, traceback=ErrorReport.of(passed).traceback)
        self.outcome = outcome


class TimeoutSource(Protocol):
    """What rings when the time of a limit is over."""

    def arm(self, limit: TimeLimit) -> None:
        """From now on an exception may be raised in the calling thread."""

    def disarm(self, limit: TimeLimit) -> None:
        """From now on none can arrive. May be called twice."""


class TimeLimit:
    """The time that one call of a handler may take, and be silent.

    ``ended`` says how the attempt ends once the time is over. It is set before anything is raised
    in the handler and never changed; so exactly one exception is raised, and wherever it arrives,
    nothing that comes after can be hit. ``stop_requested`` is set by a clock that was asked to stop
    the handler: what that does then is its own, and one that catches it and returns has succeeded.
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
    ) -> None:
        self.ended: TimedOut | None = None
        self.stop_requested = False
        self._stopped = False
        self._timeouts = timeouts
        self._slot = slot
        self._entry = entry
        self._timeout = timeout
        self._silence = silence
        self._deadline = NEVER if timeout is None else started + timeout
        self._kept: dict[str, Any] = {}

    def call(self, handler: Callable[..., Any], payload: dict[str, Any]) -> Any:
        """What the handler returns. Raises :class:`Interrupted` where its time was over first."""
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
            self._timeouts.disarm(self)  # it may have arrived in the first one; there is no other
            if self.ended is not None:
                raise Interrupted(self.ended, error) from None
            raise
        finally:
            self._entry.end_times()  # what is left is not bounded by them
        if self.ended is not None:  # the handler caught it
            raise Interrupted(self.ended)
        return result

    def begin_again(self) -> None:
        """The handler is about to be called once more: its silence counts from now, and its
        time-out from when it was called first."""
        self._entry.note_progress()
        deadline = 0.0 if self._timeout is None else self._deadline
        self._entry.bound(deadline, self._silence or 0.0)
        self._slot.watched = True

    def due(self) -> float:
        """When the time is over, if nothing is reported until then; never, where it does not
        matter any more."""
        if self._kept or self._stopped or self.ended is not None:
            return NEVER
        if self.stop_requested:
            return 0.0
        if self._silence is None:
            return self._deadline
        return min(self._deadline, self._entry.progress_at + self._silence)

    def expire(self, now: float) -> type[BaseException] | None:
        """What is to be raised in the handler now."""
        if now < self.due():
            return None
        if self.stop_requested:
            self._stopped = True
            return StopHandler
        if now >= self._deadline:
            self.ended = TimedOut(seconds=self._timeout or 0.0)
        else:
            self.ended = TimedOut(seconds=self._silence or 0.0, silent=True)
        return TimeLimitExceeded


class SignalTimeouts:
    """Rings on the main thread of a process that runs one handler: a signal also ends its sleep,
    and its wait for a socket or a lock. ``stop_requested`` says whether it has to stop; None
    while that is being read, when an exception would tear the message."""

    def __init__(self, stop_requested: Callable[[], bool | None] = never) -> None:
        self._stop_requested = stop_requested
        self._limit: TimeLimit | None = None
        self._before: dict[signal.Signals, Any] = {}

    def arm(self, limit: TimeLimit) -> None:
        """Interrupt the calling thread when the time of ``limit`` is over, or at
        :data:`STOP_SIGNAL`."""
        self._limit = limit
        for number in (signal.SIGALRM, STOP_SIGNAL):
            self._before[number] = signal.signal(number, self._on_signal) or signal.SIG_DFL
        limit.stop_requested = bool(self._stop_requested())
        self._set_timer(limit)

    def disarm(self, limit: TimeLimit) -> None:
        """Interrupt it no more, and give the signals back."""
        self._limit = None
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
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
    """Seconds for a clock to wait; where it is overdue, until the handler may be elsewhere."""
    return min(due - now, LONGEST_WAIT) if due > now else UNSAFE_WAIT


def is_unsafe(frame: FrameType | None) -> bool:
    """Whether an exception raised here might harm more than the handler: in code that takes locks
    of the whole process, this package's among it."""
    if frame is None:
        return True
    module = frame.f_globals.get("__name__", "")
    if module == "threading" and frame.f_code.co_name in WAITS:
        return False
    return module in UNSAFE_MODULES or module.partition(".")[0] == PACKAGE
