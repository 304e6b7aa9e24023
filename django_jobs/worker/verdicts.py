"""How one process tells another that an attempt ended: a word, a reason, and seconds."""

from __future__ import annotations

from ..domain.outcomes import Cancelled, Lost, Outcome, Released, TimedOut

CANCELLED = Cancelled(reason="cancelled while running")
STOPPED = Released(reason="the worker was told to stop")


def outcome_of(end: str, reason: str, seconds: float) -> Outcome:
    """The outcome of an attempt that ended so."""
    match end:
        case "lost":
            return Lost(reason=reason)
        case "crashed":
            return Lost(reason=reason, alone=True)
        case "timed_out":
            return TimedOut(seconds=seconds)
        case "silent":
            return TimedOut(seconds=seconds, silent=True)
        case "cancelled":
            return CANCELLED
        case "never_began":
            return Released(reason=reason, began=False)
        case _:
            return Released(reason=reason)
