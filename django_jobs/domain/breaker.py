"""When the circuit breaker of a resource opens and closes: a pure function of counts and times.

The rule of Azure's Circuit Breaker pattern: half open, the first failure opens it again, and as
many successes as it lets try at once close it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .outcomes import Failed, Outcome, Succeeded, TimedOut

PROBES = 3
"""Jobs that a half open breaker lets try at once, and successes that close it."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A breaker and what it has seen.

    It opens at ``most`` failures within ``window`` seconds; never, if that is None. ``seconds`` is
    the time since its last change. ``failures`` and ``successes`` are of attempts that were claimed
    since then; while it is closed, ``failures`` are those in the window.
    """

    state: BreakerState
    most: int | None
    window: float
    open_for: float
    seconds: float
    failures: int = 0
    successes: int = 0


def change(breaker: Breaker) -> tuple[BreakerState, str] | None:
    """The next state of a breaker and the reason for it; None if it stays as it is."""
    match breaker.state:
        case BreakerState.CLOSED if breaker.most is not None and breaker.failures >= breaker.most:
            return BreakerState.OPEN, f"{breaker.failures} failures in {breaker.window:g} s"
        case BreakerState.OPEN if breaker.seconds >= breaker.open_for:
            return BreakerState.HALF_OPEN, f"it was open for {breaker.open_for:g} s"
        case BreakerState.HALF_OPEN if breaker.failures:
            return BreakerState.OPEN, "a job failed while it was half open"
        case BreakerState.HALF_OPEN if breaker.successes >= PROBES:
            return BreakerState.CLOSED, f"{breaker.successes} jobs succeeded while it was half open"
    return None


def is_failure(outcome: Outcome) -> bool:
    """Whether an attempt with this outcome failed for a cause that another attempt may not meet,
    such as a dependency that is down. A ``Discard`` says that it is the job's."""
    return isinstance(outcome, TimedOut) or (isinstance(outcome, Failed) and not outcome.final)


def says_something(outcome: Outcome) -> bool:
    """Whether an attempt with this outcome says how its resources are: it succeeded or failed."""
    return isinstance(outcome, Succeeded) or is_failure(outcome)
