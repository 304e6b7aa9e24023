"""Decides when a worker process polls for work, and polls."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...domain.durations import NEVER
from ...lifecycle import promoting
from ...lifecycle.notifying import THROTTLE_SECONDS

FIRST_DUE_PAUSE = 0.002

LINGER_SECONDS = 2 * THROTTLE_SECONDS
"""Seconds from a hint to one more poll: see ``notifying.THROTTLE_SECONDS``."""


class Poller:
    """Polls at least every ``poll`` seconds, when the next known scheduled job is due, and twice
    after each hint. Times are of ``time.monotonic()``. ``queues`` are those that it polls; with
    ``every`` they become all existing queues whenever these change."""

    def __init__(self, queues: Sequence[str], poll: float, *, every: bool = False) -> None:
        self.queues = list(queues)
        self.limited: frozenset[str] = frozenset()
        self.unkept: frozenset[str] = frozenset()
        self.due_at = NEVER
        self._every = every
        self._interval = poll
        self._poll_at = self._again_at = self._polled_at = 0.0
        self._due_pause = FIRST_DUE_PAUSE

    @property
    def next_at(self) -> float:
        """The time of the next poll."""
        # Compared and not cleared, because another thread may be setting it.
        again = self._again_at if self._again_at > self._polled_at else NEVER
        return min(self._poll_at, self.due_at, again)

    def poll_now(self) -> None:
        """Make the next poll due now."""
        self._poll_at = 0.0

    def poll_again_soon(self) -> None:
        """Poll again soon after a hint or a job, because NOTIFY is throttled."""
        self._again_at = max(self._again_at, time.monotonic() + LINGER_SECONDS)

    def poll(self, now: float) -> frozenset[str]:
        """The queues that have ready jobs. One statement reads everything, so that an idle worker
        costs one statement per poll for any number of queues."""
        promoted, queues = promoting.promote() if now >= self.due_at else (0, set())
        peek = promoting.peek(self.queues, every=self._every)
        if peek.queues is not None:
            self.queues = peek.queues
            peek = promoting.peek(self.queues)
        self.limited, self.unkept = peek.limited, peek.unkept
        self._polled_at, self._poll_at = now, now + self._interval
        due_in = peek.next_due_in
        if due_in is None:
            self.due_at = NEVER
        elif due_in <= 0 and now >= self.due_at and not promoted:
            # It became due between the two statements, or its row is locked.
            self.due_at = now + self._due_pause
            self._due_pause = min(2 * self._due_pause, self._interval)
        else:
            self.due_at = now + max(due_in, 0.0)
            self._due_pause = FIRST_DUE_PAUSE
        return peek.ready | (queues & set(self.queues))
