"""Decides when a worker process looks for work: polls, and admits jobs that wait at gates."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from django.db import DataError, IntegrityError, NotSupportedError, ProgrammingError

from ..domain.admission import FairShares
from ..domain.errors import ErrorReport
from ..domain.gates import LoneGate
from ..domain.numbers import NEVER
from ..lifecycle import promoting
from ..lifecycle.gates.admission import Admission, admit
from ..lifecycle.gates.arrivals import admit_arrivals
from ..lifecycle.notifying import THROTTLE_SECONDS
from ..lifecycle.settling import HandOver
from ..models.database import DATABASE_ERRORS
from .events import emit_throttled
from .statement_timeout import took_too_long

FIRST_DUE_PAUSE = 0.002

LINGER_SECONDS = 2 * THROTTLE_SECONDS
"""Seconds from a hint to one more poll: see ``notifying.THROTTLE_SECONDS``."""


RECENT_SECONDS = 0.01
"""Seconds after a poll for which a process that runs jobs does not poll again without a reason."""

LONG_SECONDS = 0.02
REST = 9
"""A look at all lines that admitted nothing and took longer than this many seconds is followed by a
rest of this many times its duration, so that ten thousand keys without a free slot take a tenth of
the time."""

REFUSALS = (ProgrammingError, DataError, IntegrityError, NotSupportedError)
"""The errors of an admission itself: a right is missing, or a row holds what it cannot read."""
FAILED_SECONDS = 1.0
"""Seconds until the next try after one of them, and at least until that after a lock was in the way
of one that passes over resources which are locked."""

BUSY_SECONDS = 0.002
"""Seconds until the next try if another process was admitting."""

FULL_SECONDS = 0.02
"""Seconds until the next look if what is ready takes all room or all tokens. A claim of this
process is followed by a look at once; others may claim it too."""


class Poller:
    """Polls at least every ``poll`` seconds, when the next known scheduled job is due, and twice
    after each hint. Times are of ``time.monotonic()``. ``queues`` are those that it polls; with
    ``every`` they become all existing queues whenever these change."""

    def __init__(self, queues: Sequence[str], poll: float, *, every: bool = False) -> None:
        self.queues = list(queues)
        self.limited: frozenset[str] = frozenset()
        self.unkept: frozenset[str] = frozenset()
        self.gated = self.promoted = False
        self.due_at = NEVER
        self._every = every
        self._interval = poll
        self._poll_at = self._again_at = self._polled_at = 0.0
        self._due_pause = FIRST_DUE_PAUSE

    @property
    def next_at(self) -> float:
        # Compared and not cleared, because another thread may be setting it.
        again = self._again_at if self._again_at > self._polled_at else NEVER
        return min(self._poll_at, self.due_at, again)

    def polled_recently(self, now: float) -> bool:
        return now - self._polled_at < RECENT_SECONDS

    def poll_now(self) -> None:
        self._poll_at = 0.0

    def poll_again_soon(self) -> None:
        """Poll again soon after a hint or a job, because NOTIFY is throttled."""
        self._again_at = max(self._again_at, time.monotonic() + LINGER_SECONDS)

    def poll(self, now: float) -> frozenset[str]:
        """The queues that have ready jobs. One statement reads everything, so that an idle worker
        costs one statement per poll for any number of queues."""
        promoted, queues = promoting.promote() if now >= self.due_at else (0, set())
        self.promoted = promoted > 0
        peek = promoting.peek(self.queues, every=self._every)
        if peek.queues is not None:
            self.queues = peek.queues
            peek = promoting.peek(self.queues)
        self.limited, self.unkept, self.gated = peek.limited, peek.unkept, peek.gated
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


class Admitter:
    """Looks at all lines every ``interval`` seconds, twice after a hint, and while jobs wait only
    for room in this process. Times are of ``time.monotonic()``.

    With more lines than one look reads, the next round begins behind those that were given
    something last: begun with the first each time, it would give them every slot that they share
    with others. Tenants take turns by their shares, so where some wait it begins with the first.
    """

    def __init__(
        self, interval: float, cut_short: Callable[[BaseException], bool] = took_too_long
    ) -> None:
        self.next_at = NEVER
        """The time of the next admission."""
        self.is_done = True
        """Whether the last look at all lines admitted nothing, and no tokens are expected."""
        self._interval = interval
        self._look_at = self._again_at = self._looked_at = 0.0
        self._shares = FairShares()
        self._after = self._began_at = self._given_up_to = ""
        self._goes_on = False
        self._metered = self._admitted = self._waits_for_claims = False
        self._arrived: LoneGate | None = None
        self._conflicts = False
        self._spent = 0.0
        self._rests_until = self._blocked_until = 0.0
        self._wary = False
        self._cut_short = cut_short
        self._handed = HandOver()
        self._ahead = 0
        self._lock = threading.Lock()

    def hand_over(self, handed: HandOver) -> None:
        """Note what a settle did. Called by another thread."""
        with self._lock:
            self._handed.queues |= handed.queues
            self._handed.freed |= handed.freed

    def take_queues(self) -> set[str]:
        """The queues in which settles have made jobs ready since the last call."""
        if not self._handed.queues:
            return set()
        with self._lock:
            queues, self._handed.queues = self._handed.queues, set()
        return queues

    def note_claimed(self, jobs: int, *, is_full: bool) -> None:
        """Note what a round claimed. It leaves the next ones what was admitted beyond it, unless it
        found fewer jobs than it had room for."""
        self._ahead = max(self._ahead - jobs, 0) if is_full else 0
        if jobs and self._waits_for_claims:
            self._waits_for_claims, self.next_at = False, 0.0

    def look_soon(self) -> None:
        """Look at the lines after the next poll, because a job may have come, and after the poll
        that lingers, because NOTIFY is throttled. Called by any thread."""
        self._again_at = time.monotonic() + LINGER_SECONDS
        self._look_at = 0.0

    def look_now(self, gate: LoneGate | None) -> None:
        """Look at the lines at once: a blocked job has come. If it waits for one ``gate`` alone,
        one round trip may be enough, unless all lines are to be looked at anyway. Called by any
        thread. An admission under way may overwrite the time; the poll that lingers then looks."""
        self.look_soon()
        self._conflicts = self._conflicts or gate is None
        if self.next_at > time.monotonic():
            self._arrived, self.next_at = gate, 0.0

    def begin(self, gated: bool) -> None:
        """Note the result of a poll: whether jobs wait at gates."""
        now = time.monotonic()
        # Compared and not cleared, because another thread may be setting it.
        again = self._again_at if self._again_at > self._looked_at else NEVER
        if gated and now >= min(self._look_at, again):
            self._looked_at, self._look_at = now, now + self._interval
            self.next_at = max(now, self._rests_until)
            self.is_done = False
        elif not gated:
            self.next_at, self._goes_on = NEVER, False
            self._after = self._began_at = self._given_up_to = ""
            self._metered = self._handed.freed = False
            self.is_done = True

    def admit(self, room: Mapping[str, int]) -> set[str]:
        """Admit jobs if it is time to; ``room`` is by queue. Returns queues with new ready jobs."""
        started = time.monotonic()
        if started < self._blocked_until:
            self.next_at = self._blocked_until
            return set()
        if self._handed.freed:
            self._handed.freed = False
            self._arrived, self.next_at = None, 0.0
        if started < self.next_at or self._ahead >= max(room.values(), default=0):
            return set()
        try:
            gate, self._arrived = self._arrived, None
            if gate is not None:
                self.next_at = NEVER  # before: a hint that comes now counts
                came = admit_arrivals(gate, room)
                if came.rest:
                    self.next_at = started
                if came.queues or not came.rest:
                    return came.queues
            self._conflicts = self._conflicts and self._goes_on
            found = admit(room, self._shares, after=self._after, wary=self._wary)
        except REFUSALS as refusal:
            self._note_failed(refusal)
            return set()
        except DATABASE_ERRORS as error:
            self._note_blocked(error, started)
            return set()
        now = time.monotonic()
        if not found.ours:
            self.next_at = now + BUSY_SECONDS
            return set()
        self._wary = found.locked
        self._metered = found.metered or (self._metered and self._goes_on)
        self._spent += now - started
        self._admitted |= bool(found.queues)
        self._ahead += found.metered_jobs
        self._go_on(found)
        self._waits_for_claims = found.full and not self._goes_on
        if self._waits_for_claims:
            self.next_at = now + FULL_SECONDS
        elif self._goes_on or (self._metered and not found.closed):
            self.next_at = now
        else:
            self.next_at = NEVER if found.tokens_in is None else now + found.tokens_in
        if not self._goes_on:
            self.is_done = not self._admitted and found.tokens_in is None
            if self._spent > LONG_SECONDS and not self._admitted:
                self._rests_until = now + REST * self._spent
            self._spent, self._admitted = 0.0, False
        return found.queues

    def _go_on(self, found: Admission) -> None:
        """Choose where the next look begins, and whether it belongs to this round."""
        if found.queues:
            self._given_up_to = found.last
        self._after, self._goes_on = found.last, found.last != ""
        if self._goes_on:
            return
        if self._began_at and not self._admitted:
            self._began_at, self._goes_on = "", True  # the lines before where it began
            return
        if self._metered or not self._admitted:
            self._given_up_to = ""
        self._after = self._began_at = self._given_up_to

    def resolve_conflicts(self) -> None:
        """Look at the lines of a process without room, if jobs have come that may do more than wait
        for their key: they may be discarded, or stop the one that runs."""
        started = time.monotonic()
        if not self._conflicts or started < max(self._rests_until, self._blocked_until):
            return
        self._conflicts, after = False, None
        try:
            while after != "":
                found = admit({}, self._shares, after=after or "", wary=self._wary)
                after = found.last
                self._conflicts = self._conflicts or not found.ours
        except REFUSALS as refusal:
            self._note_failed(refusal)
        except DATABASE_ERRORS as error:
            self._note_blocked(error, started)
            self._conflicts = True
        spent = time.monotonic() - started
        if spent > LONG_SECONDS:
            self._rests_until = started + (1 + REST) * spent

    def _note_failed(self, refusal: Exception) -> None:
        """Jobs without gates are claimed even so."""
        error = ErrorReport.of(refusal).summary
        emit_throttled("admission_failed", logging.ERROR, error=error)
        self.next_at, self.is_done = time.monotonic() + FAILED_SECONDS, True

    def _note_blocked(self, error: Exception, started: float) -> None:
        """Another session holds a lock. Jobs without gates are claimed even so."""
        if not self._cut_short(error):
            raise error
        emit_throttled("admission_blocked", logging.WARNING, error=ErrorReport.of(error).summary)
        now = time.monotonic()
        if self._wary:
            self._blocked_until = now + max(now - started, FAILED_SECONDS)
        self.next_at, self._wary, self.is_done = max(now, self._blocked_until), True, False
