"""Adds new runs to the totals: every few seconds, by one worker of the fleet."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ..lifecycle.run_totals import BATCH, Look, fold, look, writers

EVERY_SECONDS = 5.0
OFTEN_ENOUGH = 0.7 * EVERY_SECONDS
"""Seconds for which the others leave new runs alone after one worker has added some."""

PATIENCE_SECONDS = 0.25
"""How long one run waits for those who write runs. The next one waits for the same."""

PAUSE_SECONDS = 0.01
EPOCH = datetime.fromtimestamp(0, UTC)


class Folding:
    """Knows up to which id all runs are committed, or for whom it waits to know that."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self._asked = Look(0, 0, None, EPOCH)
        self._writers: list[str] = []

    def run_once(self) -> int:
        """Add a batch of new runs; return how many ids it had. One cheap statement if there are
        none, or if another worker has just added some."""
        seen = look()
        if not seen.folded < self._asked.last <= seen.last:
            if seen.last <= seen.folded or seen.age < OFTEN_ENOUGH:
                return 0
            self._asked, self._writers = seen, writers()
        if not self._are_committed():
            return 0
        upto = min(self._asked.last, seen.folded + BATCH)
        reached_at = self._asked.now if upto == self._asked.last else seen.reached_at
        return upto - seen.folded if fold(seen, upto, reached_at) else 0

    def _are_committed(self) -> bool:
        """Whether all who wrote runs when the last id was read have ended."""
        deadline = time.monotonic() + self.patience
        while self._writers:
            self._writers = writers(self._writers)
            if self._writers:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(PAUSE_SECONDS)
        return True
