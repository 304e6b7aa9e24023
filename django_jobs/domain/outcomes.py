"""What may become of one attempt, as values. Whoever ends the attempt makes one of these."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import ErrorReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The handler returned. ``result`` is its return value as JSON text, or None."""

    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The handler raised. ``retry_after`` (seconds) overrides the backoff; ``final`` forbids a
    further attempt; ``budget`` is how many failures a job may have by one with this error."""

    error: ErrorReport
    retry_after: float | None = None
    final: bool = False
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The attempt ran longer than its time-out (seconds) and was stopped; or was ``silent``: it
    reported no progress for so long. ``traceback`` tells where, if its handler was not killed."""

    seconds: float
    silent: bool = False
    traceback: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The process that ran the attempt died, or its lease ran out. ``alone`` says that nothing
    else ran in that process, so that nobody else can have killed it."""

    reason: str
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snoozed:
    """The handler asked to be called again in so many seconds. Not a failure."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The handler ended its job, or an operator's cancel reached it."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The worker was told to stop and gives the job back. Nobody's fault, so nothing is counted.
    ``began`` is False where the handler was never called."""

    reason: str = ""
    began: bool = True


Outcome = Succeeded | Failed | TimedOut | Lost | Snoozed | Cancelled | Released
