"""A maintenance task, as a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime


class LeasesInDoubt(Exception):
    """A task raises it if leases may have run out although nobody was late to renew them."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the database's clock is {seconds:.1f} s ahead of what was expected")
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTask:
    """Recurring work that any worker may do, or all at once: it locks its rows with SKIP LOCKED.

    ``run_once`` is short, returns how many rows it changed, and raises what the database raises, or
    :class:`LeasesInDoubt`. If it changed ``batch`` rows or more, there is probably more to do and
    it may be called again at once; otherwise it is called every ``every`` seconds.

    ``asks`` is a condition in SQL that is true if there may be something to do. A worker reads
    those of all tasks in one statement, and calls only what has something to do. If it is false,
    ``rested`` is called with the time of the database, and that of ``time.monotonic()`` before it.
    """

    name: str
    every: float
    batch: int
    run_once: Callable[[], int]
    asks: str = ""
    rested: Callable[[datetime, float], None] | None = None

    def has_more(self, changed: int) -> bool:
        """Whether a run that changed ``changed`` rows has probably left some."""
        return changed >= self.batch


class TaskParts:
    """Calls the parts of a task one after the other. After an error the next run begins with what
    comes behind the part that failed, which would keep the others waiting while it fails."""

    def __init__(self) -> None:
        self._first = 0

    def run(self, parts: Sequence[Callable[[], int]]) -> int:
        """Call all parts; return the sum of what they return."""
        changed = 0
        for number in range(self._first, self._first + len(parts)):
            self._first = (number + 1) % len(parts)
            changed += parts[number % len(parts)]()
        self._first = 0
        return changed
