"""The jobs whose end a caller waits for with ``Job.wait()``, in any process."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..domain.states import FINAL
from ..lifecycle.notifying import AWAITED, notify_ends, read_id
from ..lifecycle.settling import Settled

REMEMBER_SECONDS = 10.0
"""Those who wait ask again every second."""
MOST = 10_000


class AwaitedEnds:
    """Filled by the thread that listens, read by the settler. Falsy if nobody waits."""

    def __init__(self) -> None:
        self._asked: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def note(self, hint: str) -> None:
        """Remember the job of this hint for a while."""
        job_id = read_id(hint.removeprefix(AWAITED))
        if job_id is None:
            return
        if len(self._asked) >= MOST:
            self._forget()
        if len(self._asked) < MOST:
            self._asked[job_id] = time.monotonic()

    def notify(self, settled: Iterable[Settled]) -> None:
        """Say which of the awaited jobs have ended with these."""
        ended = [
            one.ending.job.id
            for one in settled
            if one.decision is not None
            and one.decision.status in FINAL
            and self._asked.pop(one.ending.job.id, None) is not None
        ]
        if ended:
            notify_ends(ended)
        self._forget()

    def _forget(self) -> None:
        before = time.monotonic() - REMEMBER_SECONDS
        for job_id, asked_at in list(self._asked.items()):
            if asked_at < before:
                self._asked.pop(job_id, None)
