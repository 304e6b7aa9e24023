"""Decides when to look at the schedules."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..ipc.scoreboard import Scoreboard
from ..poller import LINGER_SECONDS

Look = Callable[[], float]
"""Fires the due schedules, and returns the most seconds until the next look."""


class Scheduler:
    """Looks at the next known due time, after a hint that a schedule was changed, and at every
    poll. Without ``look`` it does nothing."""

    def __init__(self, look: Look | None, scoreboard: Scoreboard, poll: float) -> None:
        self.enabled = look is not None
        self._look = look
        self._scoreboard = scoreboard
        self._poll = self._longest = poll
        self._next = 0.0

    def next_in(self) -> float:
        """Seconds until the next look."""
        return max(self._next - time.monotonic(), 0.0) if self.enabled else float("inf")

    def hint(self) -> None:
        """A schedule was changed. One hint may stand for several, because NOTIFY is throttled."""
        self._next, self._longest = 0.0, LINGER_SECONDS

    def look_if_due(self) -> None:
        """Look if it is due. Raises the database's errors, and is then due in a poll."""
        if self._look is None or self.next_in() > 0:
            return
        longest, self._longest = self._longest, self._poll
        pause = self._poll
        try:
            pause = min(self._look(), longest)
            self._scoreboard.status.schedules_seen_at = time.monotonic()
        finally:
            self._next = time.monotonic() + pause
