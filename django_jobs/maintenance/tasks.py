"""The duties that every worker has."""

from __future__ import annotations

from .quarantine import quarantining_duty
from .reaping import reaping_duty
from .retention import retention_duty
from .task import Duty


def default_duties() -> list[Duty]:
    """All duties, made anew: each remembers for itself where it stopped."""
    return [reaping_duty(), retention_duty(), quarantining_duty()]
