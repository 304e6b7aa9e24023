"""When a worker process polls for work, and what it sees."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...domain.durations import NEVER
from ...lifecycle import promoting
from ...lifecycle.notifying import THROTTLE_SECONDS

FIRST_DUE_PAUSE = 0.002

LINGER_SECONDS = 2 * THROTTLE_SECONDS
"""So long after a hint there is one more look: see ``notifying.THROTTLE_SECONDS``."""


class Poller:
    """Looks at least every ``poll`` seconds, when the next scheduled job it knows of is due, and
    once more after each hint. Times are of ``time.monotonic()``. ``queues`` are those it looks at;
    with ``every`` these become all there are, whenever they change."""

    def __init__(self, queues: Sequence[str], poll: float, *, every: bool = False) -> None:
        self.queues = list(queues)
        self.limited: frozenset[str] = frozenset()
        self.due_at = NEVER
        self._every = every
        self._interval = poll
        self._poll_at = self._again_at = self._polled_at = 0.0
        self._due_pause = FIRST_DUE_PAUSE

    @property
    def next_at(self) -> float:
        """When to poll next."""
        # Compared and not cleared once obeyed: another thread may just be setting it.
        again = self._again_at if self._again_at > self._polled_at else NEVER
        return min(self._poll_at, self.due_at, again)

    def poll_now(self) -> None:
        """The next look is due now."""
        self._poll_at = 0.0

    def poll_again_soon(self) -> None:
        """There was a hint or a job; what came with it may have come in its shadow."""
        self._again_at = max(self._again_at, time.monotonic() + LINGER_SECONDS)

    def poll(self, now: float) -> frozenset[str]:
        """The queues that have something ready. One statement says what there is to do, so that
        an idle worker costs one statement a poll, however many queues it serves."""
        promoted, queues = promoting.promote() if now >= self.due_at else (0, set())
        peek = promoting.peek(self.queues, every=self._every)
        if peek.queues is not None:
            self.queues = peek.queues
            peek = promoting.peek(self.queues)
        self.limited = peek.limited
        self._polled_at, self._poll_at = now, now + self._interval
        due_in = peek.next_due_in
        if due_in is None:
            self.due_at = NEVER
        elif due_in <= 0 and now >= self.due_at and not promoted:
            # It came due between the two statements, or its row is locked.
            self.due_at = now + self._due_pause
            self._due_pause = min(2 * self._due_pause, self._interval)
        else:
            self.due_at = now + max(due_in, 0.0)
            self._due_pause = FIRST_DUE_PAUSE
        return peek.ready | (queues & set(self.queues))
