"""What can end a running handler from outside, chosen by its kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...api.job_type import JobType
from ...domain.outcomes import Outcome, TimedOut
from ...lifecycle.claiming import ClaimedJob
from ..ipc.scoreboard import Slot
from ..timeouts.limits import Clock, Limit, never
from .attempt import RunAsync, unheard
from .event_loop import HandlerLoop
from .failures import CANCELLED, STOPPED


class Control(NamedTuple):
    """What :func:`attempt.make` is given to keep one attempt in its bounds."""

    limit: Limit | None
    heard: Callable[[], None]
    run_async: RunAsync


def control(
    job: ClaimedJob,
    job_type: JobType[..., Any],
    slot: Slot,
    index: int,
    started: float,
    *,
    clock: Clock,
    loop: HandlerLoop,
    stopping: Callable[[], bool] | None = None,
) -> Control:
    """An async handler is stopped by its loop, a plain one by ``clock``. What does not heed either
    is killed by the supervisor, which reads the same times from the board. ``stopping`` is given
    for one that runs alone, and says that it was told to stop."""
    silence = job_type.silence_timeout
    heard = unheard if silence is None else partial(slot.heard, index)
    if job_type.is_async:
        asked = _asked(slot, index, silence, stopping or never)
        return Control(None, heard, partial(loop.run, asked=asked))
    limit = None
    if job.timeout is not None or silence is not None or stopping is not None:
        limit = Limit(clock, slot, index, started=started, timeout=job.timeout, silence=silence)
    return Control(limit, heard, loop.run)


def _asked(
    slot: Slot, index: int, silence: float | None, stopping: Callable[[], bool]
) -> Callable[[], Outcome | None]:
    def asked() -> Outcome | None:
        """How the handler has to end now; None if it may go on."""
        if slot.cancel_asked(index):
            return CANCELLED
        if silence is not None and time.monotonic() >= slot.heard_at(index) + silence:
            return TimedOut(seconds=silence, silent=True)
        return STOPPED if stopping() else None

    return asked
