"""What an attempt is told that lost its job."""

from __future__ import annotations

from ..exceptions import LeaseLost
from .claiming import HeldJob


def lease_lost(job: HeldJob) -> LeaseLost:
    """The exception for whoever writes about an attempt that is not its worker's any more."""
    return LeaseLost(f"job {job.id} attempt {job.attempt} is no longer this worker's")
