"""Pairs of options of ``@job`` of which one never acts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..exceptions import Cancelled, Fate, LeaseLost, TimeLimitExceeded
from ..models.database import DATABASE_ERRORS

if TYPE_CHECKING:
    from .job_type import JobType

SMALLEST_RSS = 40
"""Megabytes. A process with Python and Django alone holds 45 to 60."""
HANDLED_BEFORE = (Fate, Cancelled, LeaseLost, TimeLimitExceeded)
"""Exceptions with a fixed effect on the attempt. The options of a job type cannot change it."""


def contradictions(declared: JobType[..., Any]) -> Iterator[str]:
    """Each option that never acts because of another one, or of what the package needs."""
    timeout, silence, backoff = declared.timeout, declared.silence_timeout, declared.backoff
    if timeout is not None and silence is not None and silence >= timeout:
        yield (
            f"silence_timeout={silence!r} never acts, because timeout={timeout!r} ends the attempt "
            "first: give a shorter silence_timeout"
        )
    if declared.max_rss is not None and declared.max_rss < SMALLEST_RSS:
        yield (
            f"max_rss={declared.max_rss} megabytes is less than Django alone needs: "
            f"give {SMALLEST_RSS} or more"
        )
    if declared.max_age is not None and backoff is not None:
        soonest = backoff.delay(1, spread=lambda: 1.0)
        if soonest >= declared.max_age:
            yield (
                f"max_age={declared.max_age:g} ends before the backoff of {soonest:g} s, so there "
                "is no second attempt: give a longer max_age, or max_attempts=1 instead"
            )
    if declared.delivery == "at_most_once":
        yield from _never_retried(declared)
    for option in ("retry_on", "discard_on", "error_budgets"):
        for kind in getattr(declared, option):
            if issubclass(kind, HANDLED_BEFORE):
                yield f"{kind.__name__} has a fixed meaning that {option} cannot change"
    for option in ("retry_on", "error_budgets"):
        for kind in getattr(declared, option):
            if issubclass(kind, declared.discard_on):
                yield f"{kind.__name__} in {option} never acts, because discard_on includes it"
    for kind in declared.error_budgets if declared.retry_on else ():
        # A lost race and a lost connection are retried even if ``retry_on`` lacks them.
        tried_again = *declared.retry_on, *DATABASE_ERRORS
        if not any(
            issubclass(kind, retried) or issubclass(retried, kind) for retried in tried_again
        ):
            yield (
                f"{kind.__name__} in error_budgets is never retried, because it is not in "
                "retry_on: add it there"
            )


def _never_retried(declared: JobType[..., Any]) -> Iterator[str]:
    for option in ("backoff", "retry_on", "discard_on", "error_budgets"):
        if getattr(declared, option):
            yield f"delivery='at_most_once' never retries, so {option} never acts: leave it out"
    if problem := attempts_problem(declared):
        yield problem


def attempts_problem(chosen: JobType[..., Any]) -> str:
    """Why the ``max_attempts`` of ``@job`` or of ``using()`` never acts; "" if it may."""
    if chosen.delivery != "at_most_once" or (chosen.max_attempts or 1) == 1:
        return ""
    return f"delivery='at_most_once' never retries, so max_attempts is 1, not {chosen.max_attempts}"
