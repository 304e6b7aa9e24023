"""A maintenance task, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
    """

    name: str
    every: float
    batch: int
    run_once: Callable[[], int]

    def has_more(self, changed: int) -> bool:
        """Whether a run that changed ``changed`` rows has probably left some."""
        return changed >= self.batch
