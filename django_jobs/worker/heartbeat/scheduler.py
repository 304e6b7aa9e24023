"""When the schedules are looked at."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..ipc.scoreboard import Scoreboard
from ..process.poller import LINGER_SECONDS

Look = Callable[[], float]
"""Fires what is due and says in how many seconds to look again, at the latest."""


class Scheduler:
    """Looks when the next known due time comes, when a hint says that a schedule was changed, and
    at every poll. Without a ``look`` there is nothing to do."""

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
        """A schedule was changed. The hint may stand for others that came in its shadow."""
        self._next, self._longest = 0.0, LINGER_SECONDS

    def look_if_due(self) -> None:
        """Raises what the database raises, and is due then in a poll."""
        if self._look is None or self.next_in() > 0:
            return
        longest, self._longest = self._longest, self._poll
        pause = self._poll
        try:
            pause = min(self._look(), longest)
            self._scoreboard.status.schedules_seen_at = time.monotonic()
        finally:
            self._next = time.monotonic() + pause
