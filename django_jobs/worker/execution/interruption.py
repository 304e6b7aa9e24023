"""Chooses how a running handler is interrupted, by its kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ...domain.outcomes import Outcome, TimedOut
from ..context.attempt import Attempt
from ..ipc.scoreboard import StartedJob
from ..timeouts.limits import TimeLimit, TimeoutSource, never
from .event_loop import HandlerLoop
from .failures import CANCELLED, STOPPED


def bound(
    attempt: Attempt,
    *,
    timeouts: TimeoutSource,
    loop: HandlerLoop,
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
    silence = job_type.silence_timeout
    if silence is not None:
        attempt.on_progress = attempt.entry.note_progress
    if job_type.is_async:
        attempt.run_async = partial(
            loop.run, asked=_asked(attempt.entry, silence, stopping or never)
        )
    elif timeout is not None or silence is not None or stopping is not None:
        attempt.limit = TimeLimit(
            timeouts,
            attempt.slot,
            attempt.entry,
            started=attempt.started,
            timeout=timeout,
            silence=silence,
        )


def _asked(
    entry: StartedJob, silence: float | None, stopping: Callable[[], bool]
) -> Callable[[], Outcome | None]:
    def asked() -> Outcome | None:
        """How the handler has to end now, or None."""
        if entry.cancel_asked:
            return CANCELLED
        if silence is not None and time.monotonic() >= entry.progress_at + silence:
            return TimedOut(seconds=silence, silent=True)
        return STOPPED if stopping() else None

    return asked
