"""Ends the attempt of a handler that sleeps or waits. The next attempt passes that place."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

from django.db import OperationalError

from ...domain.durations import LONGEST_AGE, Duration, as_seconds
from ...domain.outcomes import Snoozed
from ...domain.payload import key_problem
from ...exceptions import SignalTimeout
from ...lifecycle.waits import Wait, begin_sleep, begin_wait
from ..connections import retry_while_disconnected
from ..statement_timeout import StatementTimedOut
from .attempt import Attempt, Suspended
from .progress import PATIENCE

R = TypeVar("R")

LOCKED_SECONDS = 1.0
"""Seconds between two tries if another session has locked the job."""


def sleep(attempt: Attempt, key: str, duration: Duration) -> None:
    """Pass if the sleep under ``key`` is over; otherwise end the attempt until then."""
    _pass_sleep(_begin(attempt, _sleeping(attempt, key, duration)))


async def asleep(attempt: Attempt, key: str, duration: Duration) -> None:
    _pass_sleep(await _abegin(attempt, _sleeping(attempt, key, duration)))


def wait_for(attempt: Attempt, name: str, timeout: Duration | None) -> Any:
    """Return the data of the signal ``name``; if it has not arrived, end the attempt until then."""
    return _pass_wait(name, _begin(attempt, _waiting(attempt, name, timeout)))


async def await_for(attempt: Attempt, name: str, timeout: Duration | None) -> Any:
    return _pass_wait(name, await _abegin(attempt, _waiting(attempt, name, timeout)))


def _begin(attempt: Attempt, work: Callable[[], R]) -> R:
    """Do the work in the background thread. Between two tries, while another session has locked the
    job, that serves other handlers."""
    background, after = attempt.reporter.background, 0.0
    while True:
        try:
            return background.wait(background.submit(work, after=after))
        except StatementTimedOut:
            after = LOCKED_SECONDS


async def _abegin(attempt: Attempt, work: Callable[[], R]) -> R:
    background, after = attempt.reporter.background, 0.0
    while True:
        try:
            return await asyncio.wrap_future(background.submit(work, after=after))
        except StatementTimedOut:
            after = LOCKED_SECONDS


def _sleeping(attempt: Attempt, key: str, duration: Duration) -> Callable[[], float]:
    if problem := key_problem(key, "a key", "key"):
        raise ValueError(f"sleep(): {problem}")
    seconds = checked_seconds(duration, "sleep()")
    check_that_there_is_another(attempt, "sleep()")
    return lambda: _patiently(attempt, lambda: begin_sleep(attempt.job, key, seconds))


def _pass_sleep(left: float) -> None:
    if left > 0:
        raise Suspended(Snoozed(seconds=left))


def _waiting(attempt: Attempt, name: str, timeout: Duration | None) -> Callable[[], Wait]:
    if problem := key_problem(name, "the name of a signal", "name"):
        raise ValueError(f"wait_for(): {problem}")
    seconds = None if timeout is None else checked_seconds(timeout, "wait_for()")
    check_that_there_is_another(attempt, "wait_for()")

    def look() -> Wait:
        wait = begin_wait(attempt.job, name, seconds)
        if wait.data is None and not wait.is_over and wait.left is not None and wait.left <= 0:
            return begin_wait(attempt.job, name, seconds)  # which notes that it is over
        return wait

    return lambda: _patiently(attempt, look)


def _pass_wait(name: str, wait: Wait) -> Any:
    if wait.data is not None:
        return json.loads(wait.data[0])
    if wait.is_over:
        raise SignalTimeout(name)
    raise Suspended(Snoozed(seconds=inf if wait.left is None else wait.left, awaits=name))


def checked_seconds(duration: Duration, method: str) -> float:
    seconds = as_seconds(duration)
    if seconds is None:
        raise ValueError(f"{method} takes a timedelta or a number of seconds, not {duration!r}")
    return min(max(seconds, 0.0), LONGEST_AGE)


def check_that_there_is_another(attempt: Attempt, method: str) -> None:
    if attempt.job.at_most_once:
        raise ValueError(
            f"{method} ends the attempt, and a job that is delivered at most once has no other"
        )


def _patiently(attempt: Attempt, look: Callable[[], R]) -> R:
    """Harmless to repeat, also if an answer was lost."""
    until = time.monotonic() + PATIENCE
    found = retry_while_disconnected(
        lambda: (look(),),
        what="look up a wait",
        give_up=lambda: time.monotonic() >= until,
        deadline=attempt.reporter.background.deadline,
    )
    if found is None:
        raise OperationalError("the database was away for too long")
    return found[0]
