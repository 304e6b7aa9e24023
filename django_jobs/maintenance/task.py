"""What has to be done again and again, in any worker or in all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTask:
    """A recurring piece of work that needs no leader: it takes its rows with SKIP LOCKED.

    ``run_once`` is short, and returns how many rows it changed. ``batch`` or more of them means
    that there is probably more to do, so that it may be called again at once; otherwise it is
    called ``every`` so many seconds. It raises what the database raises.
    """

    name: str
    every: float
    batch: int
    run_once: Callable[[], int]

    def has_more(self, changed: int) -> bool:
        """Whether a run that changed so many rows probably left some."""
        return changed >= self.batch
