"""What can end a running handler from outside, chosen by its kind."""

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
    """Keep an attempt that has begun in its bounds.

    An async handler is stopped by its loop, a plain one by ``timeouts``. What does not heed either
    is killed by the supervisor, which reads the same times from the scoreboard. ``stopping`` is
    given for one that runs alone, and says that it has to stop.
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
        """How the handler has to end now; None if it may go on."""
        if entry.cancel_asked:
            return CANCELLED
        if silence is not None and time.monotonic() >= entry.progress_at + silence:
            return TimedOut(seconds=silence, silent=True)
        return STOPPED if stopping() else None

    return asked
