"""What can end a running handler from outside, chosen by its kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...api.job_type import JobType
from ...domain.outcomes import Outcome, TimedOut
from ...lifecycle.claiming import ClaimedJob
from ..ipc.scoreboard import WorkerSlot
from ..timeouts.limits import TimeLimit, TimeoutSource, never
from .attempt import RunAsync, ignore_progress
from .event_loop import HandlerLoop
from .failures import CANCELLED, STOPPED


class Interruption(NamedTuple):
    """What :func:`attempt.make` is given to keep one attempt in its bounds."""

    limit: TimeLimit | None
    on_progress: Callable[[], None]
    run_async: RunAsync


def interruption_of(
    job: ClaimedJob,
    job_type: JobType[..., Any],
    slot: WorkerSlot,
    index: int,
    started: float,
    *,
    timeouts: TimeoutSource,
    loop: HandlerLoop,
    stopping: Callable[[], bool] | None = None,
) -> Interruption:
    """An async handler is stopped by its loop, a plain one by ``timeouts``. What does not heed
    either is killed by the supervisor, which reads the same times from the scoreboard. ``stopping``
    is given for one that runs alone, and says that it was told to stop."""
    silence = job_type.silence_timeout
    on_progress = ignore_progress if silence is None else partial(slot.note_progress, index)
    if job_type.is_async:
        asked = _asked(slot, index, silence, stopping or never)
        return Interruption(None, on_progress, partial(loop.run, asked=asked))
    limit = None
    if job.timeout is not None or silence is not None or stopping is not None:
        limit = TimeLimit(
            timeouts, slot, index, started=started, timeout=job.timeout, silence=silence
        )
    return Interruption(limit, on_progress, loop.run)


def _asked(
    slot: WorkerSlot, index: int, silence: float | None, stopping: Callable[[], bool]
) -> Callable[[], Outcome | None]:
    def asked() -> Outcome | None:
        """How the handler has to end now; None if it may go on."""
        if slot.cancel_asked(index):
            return CANCELLED
        if silence is not None and time.monotonic() >= slot.progress_at(index) + silence:
            return TimedOut(seconds=silence, silent=True)
        return STOPPED if stopping() else None

    return asked
