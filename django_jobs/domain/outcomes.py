"""The outcomes of an attempt, as values. The code that ends an attempt makes one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import ErrorReport
from .workflows import Skipped

NOT_STORED = "its result was not stored: "
"""The reason of a job that succeeded begins with this if its result is a note. No result can be
mistaken for one, and no other success has a reason."""


def why_not_stored(result: Any, reason: str) -> str:
    """Why the result of a job with this reason is a note; empty if it is a result, or there is
    none. A result that only looks like the note is one."""
    is_note = result is not None and reason.startswith(NOT_STORED)
    return reason.removeprefix(NOT_STORED) if is_note else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The handler returned. ``result`` is its return value as JSON text, or None. ``not_stored`` is
    why it is a note instead, if it is."""

    result: str | None = None
    not_stored: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The handler raised.

    ``retry_after`` (seconds) overrides the backoff. ``final`` forbids another attempt. ``budget``
    is the number of failures at which this error makes the job dead. ``queue`` and ``priority`` are
    those of the next attempt; None keeps the job's. ``max_attempts`` replaces that of the job, and
    allows another attempt of a job that is delivered at most once. ``exception``
    is what was raised, for receivers of signals.
    """

    error: ErrorReport
    retry_after: float | None = None
    queue: str | None = None
    priority: int | None = None
    final: bool = False
    budget: int | None = None
    max_attempts: int | None = None
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut:
    """The attempt ran for longer than ``seconds``, its time-out, and was stopped.

    ``silent``: it reported no progress for that time. ``traceback`` shows where the handler was;
    it is empty if the handler was killed. ``exception`` is what the handler raised then, if it did.
    """

    seconds: float
    silent: bool = False
    traceback: str = field(default="", compare=False)
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The process that ran the attempt died, or its lease ran out.

    ``alone``: no other job ran in that process, so only this one can have crashed it.
    """

    reason: str
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snoozed:
    """Is made again in ``seconds``, or sooner by the signal ``awaits``. Counts as no failure."""

    seconds: float
    reason: str = ""
    awaits: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The handler cancelled its job, or an operator did. ``skipped`` is why it counts as
    skipped, if its handler skipped it."""

    reason: str = ""
    skipped: Skipped | None = None


FORCED = Cancelled(reason="stopped by force")
"""Also where the handler caught what was raised in it, and returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The worker has to stop and releases the job. Counts as no failure and no crash.

    ``began`` is False if the handler was never called.
    """

    reason: str = ""
    began: bool = True


Outcome = Succeeded | Failed | TimedOut | Lost | Snoozed | Cancelled | Released
