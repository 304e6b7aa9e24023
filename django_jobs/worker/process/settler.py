"""The thread that writes endings: all that piled up while the last write was under way."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...lifecycle.claiming import ClaimedJob
from ...lifecycle.settling import Ending, Settled
from ...lifecycle.settling_rows import locked_by_others, settle_with_fallback
from ..connections import (
    drop_connection,
    has_news,
    own_connection,
    ping,
    retry_while_disconnected,
)
from ..events import emit_settled, emit_throttled
from ..ipc.scoreboard import WorkerSlot
from ..statement_timeout import StatementTimedOut, StatementTimeout
from .claimed_jobs import ClaimedJobs

BATCH = 500

GATHER = 200
GATHER_SECONDS = 0.01
"""While more jobs wait here, a write waits up to this long for this many endings: a statement costs
half a millisecond of both processors besides its rows. With nothing waiting, an ending is written
at once."""

LOCKED_SECONDS = 1.0
"""How often endings whose rows are locked are tried again, and whether the connection of one
that is idle is still there."""


class Settler:
    """Takes endings from any thread and settles them on its own connection."""

    def __init__(
        self,
        slot: WorkerSlot,
        claimed: ClaimedJobs,
        *,
        settled: Callable[[], None],
        give_up: Callable[[], bool],
        more_waits: Callable[[], bool],
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="django_jobs-settler", daemon=True)
        self.deadline = StatementTimeout(3.0)
        self._at_end = at_end
        self._slot = slot
        self._claimed = claimed
        self._settled = settled
        self._give_up = give_up
        self._pending: deque[tuple[Ending, int]] = deque()
        self._locked: list[tuple[Ending, int]] = []
        self._more_waits = more_waits
        self._something = threading.Event()
        self._enough = threading.Event()
        self._look_at = 0.0
        self._finishing = False

    def add(self, ending: Ending, index: int) -> None:
        """Settle ``ending`` soon; ``index`` is its place on the scoreboard."""
        self._pending.append((ending, index))
        if not self._something.is_set():
            self._something.set()
        if len(self._pending) >= GATHER and not self._enough.is_set():
            self._enough.set()

    def finish(self) -> None:
        """Write what is left, do what is to be done at the end, and end the thread."""
        self._finishing = True
        self._something.set()

    def report(self, one: Settled, index: int) -> None:
        """Note that an attempt is settled, and send its signals."""
        self.let_go(one.ending.job, index)
        emit_settled([one])

    def let_go(self, job: ClaimedJob, index: int | None) -> None:
        """The attempt needs nothing more of this process; ``index`` is its place on the scoreboard,
        None: it was not made."""
        if index is None:
            self._claimed.remove(job)
        else:
            self._slot.free(index)
            self._claimed.end([job])
        self._settled()

    def _run(self) -> None:
        # Before anything is claimed: what runs has to be settled, however few connections there are
        # by then. It is kept.
        wrapper = own_connection(note=self._slot.note_settling)
        while True:
            if has_news(wrapper.connection):
                with suppress(StatementTimedOut):
                    retry_while_disconnected(
                        ping,
                        what="connect to settle",
                        give_up=lambda: self._finishing,
                        deadline=self.deadline,
                    )
            self._something.wait(LOCKED_SECONDS)
            self._something.clear()
            while self._pending:
                if len(self._pending) < GATHER and self._more_waits():
                    self._enough.clear()
                    self._enough.wait(GATHER_SECONDS)
                self._settle_batch()
                self._look_at_locked()
            self._look_at_locked()
            if self._finishing and not self._pending and not self._locked:
                self._at_end()
                drop_connection()
                return

    def _settle_batch(self) -> None:
        count = min(len(self._pending), BATCH)
        batch = [self._pending.popleft() for _ in range(count)]
        try:
            self._write(batch)
        except StatementTimedOut:
            # One of the rows is locked. The others do not wait for it.
            self._write_unlocked(batch)

    def _look_at_locked(self) -> None:
        if self._locked and time.monotonic() >= self._look_at:
            batch, self._locked = self._locked[:BATCH], self._locked[BATCH:]
            self._write_unlocked(batch)

    def _write_unlocked(self, batch: list[tuple[Ending, int]]) -> None:
        """Write those whose rows are not locked, and keep the others for a later try. Each
        alone: a batch may also have been cut short because it is too much for one statement."""
        ids = [ending.job.id for ending, _ in batch]
        left = deque(batch)
        with suppress(StatementTimedOut):  # locked since, or the server is deaf
            found = retry_while_disconnected(
                lambda: locked_by_others(ids),
                what="settle",
                give_up=self._give_up,
                deadline=self.deadline,
            )
            locked = found or set()
            left = deque(sorted(batch, key=lambda one: one[0].job.id in locked))
            while left and left[0][0].job.id not in locked:
                self._write([left[0]])
                left.popleft()
        if left:
            job = left[0][0].job
            emit_throttled("settle_blocked", logging.WARNING, job_id=job.id, jobs=len(left))
            self._locked += left
            self._look_at = time.monotonic() + LOCKED_SECONDS

    def _write(self, batch: Sequence[tuple[Ending, int]]) -> None:
        endings = [ending for ending, _ in batch]
        settled = retry_while_disconnected(
            lambda: settle_with_fallback(endings),
            what="settle",
            give_up=self._give_up,
            deadline=self.deadline,
        )
        for _, index in batch:
            self._slot.free(index)
        self._claimed.end([ending.job for ending in endings])
        self._settled()
        emit_settled(settled or ())
