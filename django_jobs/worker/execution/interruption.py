"""Chooses how a running handler is interrupted, by its kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ...domain.outcomes import FORCED, Outcome, TimedOut
from ...exceptions import TimeLimitExceeded
from ..context.attempt import Attempt
from ..timeouts.limits import TimeLimit, TimeoutSource, never
from .event_loop import HandlerLoop
from .failures import CANCELLED, STOPPED


def bound(
    attempt: Attempt,
    *,
    timeouts: TimeoutSource,
    loop: HandlerLoop | None = None,
    stopping: Callable[[], bool] | None = None,
) -> None:
    """Limit an attempt that has started.

    Its loop stops an async handler, and ``timeouts`` a plain one. The supervisor reads the same
    times from the scoreboard and kills a handler that ignores them. ``stopping`` is given for an
    isolated attempt, and returns whether it has to stop.
    """
    job_type, timeout = attempt.job_type, attempt.job.timeout
    if job_type is None:
        return
    if job_type.is_async and loop is not None:
        bound_on_loop(attempt, loop, stopping or never)
        return
    silence = _watched_silence(attempt)
    if timeout is not None or silence is not None or stopping is not None:
        attempt.limit = limit_of(attempt, timeouts, timeout, silence)


def limit_of(
    attempt: Attempt,
    timeouts: TimeoutSource,
    timeout: float | None = None,
    silence: float | None = None,
) -> TimeLimit:
    """The limit of a plain handler; without times, only to stop it by force."""
    handler = None if attempt.job_type is None else attempt.job_type.handler
    return TimeLimit(
        timeouts,
        attempt.slot,
        attempt.entry,
        started=attempt.started,
        timeout=timeout,
        silence=silence,
        cancel=attempt.end_statements,
        raises=getattr(handler, "raised_at_timeout", TimeLimitExceeded),
    )


def bound_on_loop(
    attempt: Attempt, loop: HandlerLoop, stopping: Callable[[], bool] = never
) -> None:
    """:func:`bound` for an async handler."""
    asked = _asked(attempt, _watched_silence(attempt), stopping)
    attempt.run_async = partial(loop.run, asked=asked)
    attempt.await_async = partial(loop.bounded, asked=asked)


def _watched_silence(attempt: Attempt) -> float | None:
    """The longest silence, if there is one. Then each report counts."""
    silence = None if attempt.job_type is None else attempt.job_type.silence_timeout
    if silence is not None:
        attempt.on_progress = attempt.entry.note_progress
    return silence


def _asked(
    attempt: Attempt, silence: float | None, stopping: Callable[[], bool]
) -> Callable[[], Outcome | None]:
    def asked() -> Outcome | None:
        """How the handler has to end now, or None."""
        if attempt.entry.forced_at:
            return FORCED
        if attempt.raises_cancel():
            return CANCELLED
        if silence is not None and time.monotonic() >= attempt.entry.progress_at + silence:
            return TimedOut(seconds=silence, silent=True)
        return STOPPED if stopping() else None

    return asked
