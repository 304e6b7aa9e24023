"""Decides what becomes of a job after an attempt: a pure function of facts on the job's row."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, assert_never

from .backoff import Backoff
from .errors import ErrorReport
from .outcomes import (
    NOT_STORED,
    Cancelled,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from .states import CRASHED, JobState, RunState
from .workflows import Skipped

LONGEST_RETRY_AFTER = 24 * 3600.0
"""Seconds. A longer Retry-After of a server or delay of a handler is cut to a day, so that a wrong
header cannot postpone a job for years. A snooze may take a year."""
LONGEST_SNOOZE = 366 * 24 * 3600.0

AT_MOST_ONCE = "its delivery is at_most_once"
TOO_LATE = "it would exceed its max_age before the next attempt"
WINDOW_OVER = "its next attempt would begin after its retry_for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a running job when its attempt ends.

    ``expires_at`` is in epoch seconds of the database's clock, like ``now`` in :func:`decide`.
    So is ``retry_until``, after which no retry begins; a snooze has no part in it.
    ``timeout`` is in seconds. ``down`` is a resource of the job whose breaker is not closed;
    usually empty.
    """

    failures: int
    crashes: int
    max_attempts: int
    max_crashes: int
    backoff: dict[str, Any] | None = None
    expires_at: float | None = None
    retry_until: float | None = None
    cancel_requested: bool = False
    at_most_once: bool = False
    timeout: float | None = None
    down: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The new state of a job and its run, to be written by the lifecycle.

    ``delay`` is in seconds from now; None keeps the job's due time. ``queue`` and ``priority`` are
    changed if they are not None. ``reason`` explains to the operator why the job ended; it may be
    empty. ``awaits`` is the signal for which a job waits: if it has arrived by the time this is
    written, the job may start at once. ``skipped`` is why a step of a workflow counts as skipped.
    """

    status: JobState
    run: RunState
    failures: int
    crashes: int
    delay: float | None = None
    queue: str | None = None
    priority: int | None = None
    reason: str = ""
    error: ErrorReport | None = None
    result: str | None = None
    awaits: str | None = None
    skipped: Skipped | None = None


def decide(
    facts: Facts, outcome: Outcome, now: float, spread: Callable[[], float] = random.random
) -> Decision:
    """Decide what becomes of a running job with these ``facts`` after ``outcome``.

    Every outcome has a decision. ``crashes`` counts consecutive crashes: a run that succeeded,
    failed, timed out or snoozed sets it to 0. ``now`` is in epoch seconds of the database's clock.
    ``spread`` draws the jitter, a number from 0 to 1.
    """
    match outcome:
        case Succeeded(result=result, not_stored=why):
            return Decision(
                status=JobState.SUCCEEDED,
                run=RunState.SUCCEEDED,
                failures=facts.failures,
                crashes=0,
                result=result,
                reason=f"{NOT_STORED}{why}" if why else "",
            )
        case Failed():
            return _after_failure(facts, RunState.FAILED, outcome, now, spread)
        case TimedOut(seconds=seconds, silent=silent, traceback=traceback):
            # As declared: a supervisor that kills it has the time-out from two readings of a clock,
            # between which it may have stood still.
            declared = seconds if silent or facts.timeout is None else facts.timeout
            rule = "reported no progress for" if silent else "exceeded its time-out of"
            text = f"{rule} {declared:.10g} s"
            failed = Failed(error=ErrorReport.plain("TimedOut", text, traceback))
            return _after_failure(facts, RunState.TIMED_OUT, failed, now, spread)
        case Lost():
            return _after_loss(facts, outcome, now)
        case Snoozed():
            return _after_snooze(facts, outcome, now)
        case Cancelled(reason=reason, skipped=skipped):
            ended = _ended(facts, JobState.CANCELLED, RunState.CANCELLED, reason or "cancelled")
            return replace(ended, skipped=skipped)
        case Released(reason=reason, began=began):
            if facts.cancel_requested:
                return _ended(facts, JobState.CANCELLED, RunState.RELEASED, "cancelled")
            if facts.at_most_once and began:
                why = f"{AT_MOST_ONCE}, and it was interrupted: {reason or 'its worker stopped'}"
                return _ended(facts, JobState.DEAD, RunState.RELEASED, why)
            return Decision(
                status=JobState.READY,
                run=RunState.RELEASED,
                failures=facts.failures,
                crashes=facts.crashes,
                error=ErrorReport.plain("Released", reason) if reason else None,
            )
        case _:
            assert_never(outcome)


def passed_over(decision: Decision) -> Decision:
    """The same for a step that would be dead, and is optional."""
    reason = f"skipped: it is optional; {decision.reason}"
    return replace(decision, status=JobState.CANCELLED, skipped=Skipped.PASSED, reason=reason)


def _bounded(seconds: float, longest: float) -> float:
    return min(max(seconds, 0.0), longest) if seconds == seconds else longest  # NaN is not itself


def _ended(facts: Facts, status: JobState, run: RunState, reason: str) -> Decision:
    return Decision(
        status=status, run=run, failures=facts.failures, crashes=facts.crashes, reason=reason
    )


def _after_failure(
    facts: Facts, run: RunState, failed: Failed, now: float, spread: Callable[[], float]
) -> Decision:
    error = failed.error
    failures = facts.failures + 1
    within_budget = failed.budget is None or failures < failed.budget
    decision = partial(Decision, run=run, failures=failures, crashes=0, error=error)
    if facts.cancel_requested:
        return decision(status=JobState.CANCELLED, reason="cancelled while running")
    if failed.final:
        return decision(status=JobState.DEAD, reason=f"not retried: {error.summary}")
    if facts.at_most_once and failed.max_attempts is None:
        return decision(
            status=JobState.DEAD, reason=f"{AT_MOST_ONCE}, and it failed: {error.summary}"
        )
    if facts.down:
        # Behind the jobs that wait already: or one that fails for another cause would be the
        # first to try each time, and the breaker would never close.
        return decision(
            status=JobState.BLOCKED,
            delay=0.0,
            failures=facts.failures,
            error=error.noted(f"not counted: the breaker of {facts.down} is not closed"),
        )
    most = facts.max_attempts if failed.max_attempts is None else failed.max_attempts
    if failures >= most:
        times = "its only attempt" if failures == most == 1 else f"{failures} of {most} times"
        return decision(status=JobState.DEAD, reason=f"failed {times}")
    if not within_budget:
        budget = f"failed {failures} times, and the error budget of {error.type} is {failed.budget}"
        return decision(status=JobState.DEAD, reason=budget)
    if failed.retry_after is not None:
        by_handler = failed.max_attempts is not None
        delay = _bounded(failed.retry_after, LONGEST_SNOOZE if by_handler else LONGEST_RETRY_AFTER)
    else:
        delay = Backoff.from_json(facts.backoff).delay(failures, spread)
    if facts.expires_at is not None and now + delay >= facts.expires_at:
        return decision(status=JobState.DEAD, reason=TOO_LATE)
    if facts.retry_until is not None and now + delay > facts.retry_until:
        return decision(status=JobState.DEAD, reason=WINDOW_OVER)
    return decision(
        status=JobState.SCHEDULED, delay=delay, queue=failed.queue, priority=failed.priority
    )


def _after_loss(facts: Facts, lost: Lost, now: float) -> Decision:
    crashes, reason = facts.crashes + 1, lost.reason
    error = ErrorReport.plain(CRASHED if lost.alone else "WorkerLost", reason)
    decision = partial(
        Decision, run=RunState.LOST, failures=facts.failures, crashes=crashes, error=error
    )
    if facts.cancel_requested:
        return decision(status=JobState.CANCELLED, reason="cancelled while running")
    if crashes >= facts.max_crashes:
        times = "once" if crashes == 1 else f"{crashes} times"
        return decision(status=JobState.DEAD, reason=f"crashed {times}: {reason}")
    if facts.at_most_once:
        return decision(
            status=JobState.DEAD, reason=f"{AT_MOST_ONCE}, and its outcome is unknown: {reason}"
        )
    if facts.retry_until is not None and now > facts.retry_until:
        return decision(status=JobState.DEAD, reason=WINDOW_OVER)
    return decision(status=JobState.READY)


def _after_snooze(facts: Facts, snoozed: Snoozed, now: float) -> Decision:
    delay = _bounded(snoozed.seconds, LONGEST_SNOOZE)
    left = inf if facts.expires_at is None else facts.expires_at - now
    error = ErrorReport.plain("Snoozed", snoozed.reason) if snoozed.reason else None
    decision = partial(
        Decision, run=RunState.SNOOZED, failures=facts.failures, crashes=0, error=error
    )
    if facts.cancel_requested:
        return decision(status=JobState.CANCELLED, reason="cancelled while running")
    if snoozed.awaits is not None and left > 0:
        # Until its max_age at most, because the signal may arrive before.
        return decision(status=JobState.WAITING, delay=min(delay, left), awaits=snoozed.awaits)
    if delay >= left:
        return decision(status=JobState.DEAD, reason=TOO_LATE)
    return decision(status=JobState.SCHEDULED, delay=delay)
