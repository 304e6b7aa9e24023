"""What an attempt does not repeat: calls whose answers are kept, sleeps and waits."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from typing import Any, Literal, TypeVar

from django.db import OperationalError

from ...domain.numbers import LONGEST_AGE, Duration, as_seconds
from ...domain.outcomes import Snoozed
from ...domain.payload import key_problem
from ...exceptions import SignalTimeout
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.progress import (
    Answer,
    EffectBusy,
    free_effect,
    hold,
    look_up,
    store,
    store_effect,
)
from ...lifecycle.waits import SIGNAL_KEY, SLEEP_KEY, Wait, begin_sleep, begin_wait
from ...lifecycle.workflows.spawning import SPAWNED
from ...models.database import ROW_ERRORS, is_of_a_row
from ..connections import retry_while_disconnected
from ..events import emit
from ..statement_timeout import StatementTimedOut, StatementTimeout
from .attempt import Attempt, Suspended
from .progress import PATIENCE, encode_answer, note_of

R = TypeVar("R")

LOCKED_SECONDS = 1.0
"""Seconds between two tries if another session has locked the job."""


def begin(attempt: Attempt, work: Callable[[], R]) -> R:
    """Do the work in the background thread. Between two tries, while another session has locked the
    job, that serves other handlers."""
    background, after = attempt.reporter.background, 0.0
    while True:
        try:
            return background.wait(background.submit(work, after=after))
        except StatementTimedOut:
            after = LOCKED_SECONDS


async def abegin(attempt: Attempt, work: Callable[[], R]) -> R:
    background, after = attempt.reporter.background, 0.0
    while True:
        try:
            return await asyncio.wrap_future(background.submit(work, after=after))
        except StatementTimedOut:
            after = LOCKED_SECONDS


def sleeping(attempt: Attempt, key: str, duration: Duration) -> Callable[[], float]:
    """Returns how long the sleep under ``key`` still takes."""
    if problem := key_problem(key, "a key", "key"):
        raise ValueError(f"sleep(): {problem}")
    seconds = _checked_seconds(duration, "sleep()")
    _check_that_there_is_another(attempt, "sleep()")
    return lambda: _wait_found(attempt, lambda: begin_sleep(attempt.job, key, seconds))


def pass_sleep(left: float) -> None:
    """Pass if the sleep is over; otherwise end the attempt until then."""
    if left > 0:
        raise Suspended(Snoozed(seconds=left))


def waiting(attempt: Attempt, name: str, timeout: Duration | None) -> Callable[[], Wait]:
    """Returns the wait for the signal ``name``."""
    if problem := key_problem(name, "the name of a signal", "name"):
        raise ValueError(f"wait_for(): {problem}")
    seconds = None if timeout is None else _checked_seconds(timeout, "wait_for()")
    _check_that_there_is_another(attempt, "wait_for()")

    def look() -> Wait:
        wait = begin_wait(attempt.job, name, seconds)
        if wait.data is None and not wait.is_over and wait.left is not None and wait.left <= 0:
            return begin_wait(attempt.job, name, seconds)  # which notes that it is over
        return wait

    return lambda: _wait_found(attempt, look)


def pass_wait(name: str, wait: Wait) -> Any:
    """The data of the signal; if it has not arrived, end the attempt until then."""
    if wait.data is not None:
        return json.loads(wait.data[0])
    if wait.is_over:
        raise SignalTimeout(name)
    raise Suspended(Snoozed(seconds=inf if wait.left is None else wait.left, awaits=name))


def _checked_seconds(duration: Duration, method: str) -> float:
    seconds = as_seconds(duration)
    if seconds is None:
        raise ValueError(f"{method} takes a timedelta or a number of seconds, not {duration!r}")
    return min(max(seconds, 0.0), LONGEST_AGE)


def _check_that_there_is_another(attempt: Attempt, method: str) -> None:
    if attempt.job.at_most_once:
        raise ValueError(
            f"{method} ends the attempt, and a job that is delivered at most once has no other"
        )


def _wait_found(attempt: Attempt, look: Callable[[], R]) -> R:
    deadline = attempt.reporter.background.deadline
    return _found(look, "look up a wait", "the database was away for too long", deadline)


def _found(
    look: Callable[[], R], what: str, problem: str, deadline: StatementTimeout | None = None
) -> R:
    """What ``look`` finds. Harmless to repeat, also if an answer was lost. Raises an error with the
    ``problem`` if the database is away for longer than :data:`PATIENCE`."""
    until = time.monotonic() + PATIENCE
    found = retry_while_disconnected(lambda: (look(),), what=what, until=until, deadline=deadline)
    if found is None:
        raise OperationalError(problem)
    return found[0]


Scope = Literal["job", "effect"]
KEEP = timedelta(days=90)
EFFECT_KEY = "effect:"
"""What the keys of receipts begin with that a job has of an effect."""
BUSY_SECONDS = 5.0
"""Until the next attempt of a job that found another one making the call."""

ASYNC_CALL = "once() got an async call; write `await run.aonce(key, call)`"


def once(attempt: Attempt, key: str, call: Callable[[], Any], keep: float | None) -> Any:
    """Return the answer stored under ``key``, or make the call and store its answer. ``keep`` is
    from :func:`kept_for`.

    Raises ``TypeError`` for an async call, which would not be awaited; nothing is stored then.
    """
    _check_call(call)
    if inspect.iscoroutinefunction(call):
        raise TypeError(ASYNC_CALL)
    job, background = attempt.job, attempt.reporter.background
    kept = background.wait(background.submit(lambda: _look_up(job, key, keep)))
    if kept is not None:
        return _instead(job, key, kept)
    with _freeing(attempt, key, keep):
        answer = call()
        if inspect.isawaitable(answer):
            _drop(answer)
            raise TypeError(ASYNC_CALL)
    # Encoded on that thread too, so that a time-out raised here cannot corrupt the stored answer.
    return json.loads(background.wait(_storing(attempt, key, answer, keep)))


async def aonce(
    attempt: Attempt, key: str, call: Callable[[], Awaitable[Any]], keep: float | None
) -> Any:
    """:func:`once` for a call that is awaited. The answer of a plain call is stored and returned
    too, because the call was made."""
    _check_call(call)
    job, background = attempt.job, attempt.reporter.background
    kept = await asyncio.wrap_future(background.submit(lambda: _look_up(job, key, keep)))
    if kept is not None:
        return _instead(job, key, kept)
    with _freeing(attempt, key, keep):
        answer = call()
        if inspect.isawaitable(answer):
            answer = await answer
    # Shielded, because a time-out must not cancel the statement now.
    stored = asyncio.wrap_future(_storing(attempt, key, answer, keep))
    return json.loads(await asyncio.shield(stored))


def kept_for(attempt: Attempt, key: str, scope: Scope, keep: Duration) -> float | None:
    """The seconds for which the answer of an effect is kept; None for a call of the job alone.
    Raises ``ValueError`` for an invalid key, scope or time, and for an effect of a job that has
    no other attempt."""
    if problem := key_problem(key, "a key", "key"):
        raise ValueError(f"once(): {problem}")
    if scope == "effect":
        _check_that_there_is_another(attempt, 'once(scope="effect")')
        return _checked_seconds(keep, "once(keep=)")
    if scope != "job":
        raise ValueError(f"once(): scope is 'job' or 'effect', not {scope!r}")
    if key.startswith((SLEEP_KEY, SIGNAL_KEY)):
        reserved = f"{SLEEP_KEY!r} or {SIGNAL_KEY!r}"
        raise ValueError(f"once(): keys that begin with {reserved} are those of waits")
    if key.startswith(SPAWNED):
        raise ValueError(f"once(): keys that begin with {SPAWNED!r} are those of spawn()")
    if key.startswith(EFFECT_KEY):
        raise ValueError(f'once(): keys that begin with {EFFECT_KEY!r} are those of scope="effect"')
    return None


def _check_call(call: Any) -> None:
    """Raise ``TypeError`` for anything that cannot be called, such as the result of a call."""
    if not callable(call):
        _drop(call)
        raise TypeError(
            "once() takes a key and a function that makes the call, "
            f"such as lambda: client.charge(order), not a {type(call).__name__}"
        )


def _drop(awaitable: Any) -> None:
    """Close an awaitable that will not be awaited, so that Python does not warn about it."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    elif isinstance(awaitable, asyncio.Future):  # a task would still make the call
        awaitable.cancel()


def _instead(job: ClaimedJob, key: str, kept: Answer) -> Any:
    fields = {"job_id": job.id, "job_type": job.job_type, "attempt": job.attempt, "key": key}
    emit("duplicate_prevented", logging.INFO, **fields, made_by=kept.attempt, made_by_job=kept.job)
    return json.loads(kept.text)


@contextmanager
def _freeing(attempt: Attempt, key: str, keep: float | None) -> Iterator[None]:
    """If the call raises, let others make it before this attempt has ended."""
    try:
        yield
    except BaseException:
        if keep is not None:
            attempt.submitted.append(
                attempt.reporter.background.submit(
                    lambda: retry_while_disconnected(
                        lambda: free_effect(attempt.job, key),
                        what="free an effect",
                        give_up=lambda: True,  # the end of the attempt frees it too
                    )
                )
            )
        raise


def _storing(attempt: Attempt, key: str, answer: Any, keep: float | None) -> Future[str]:
    job = attempt.job

    def write(text: str) -> str:
        if keep is None:
            return store(job, key, text)
        return store(job, EFFECT_KEY + key, store_effect(job, key, keep, text))

    return attempt.reporter.background.submit_for_attempt(
        attempt, lambda: _store(write, encode_answer(answer, "answer"))
    )


def _answer(job: ClaimedJob, key: str, keep: float | None) -> Answer | None:
    """What is stored. Of an effect the job gets a receipt, which it has for as long as its row."""
    if keep is None:
        return look_up(job, key)
    kept = look_up(job, EFFECT_KEY + key)
    if kept is None:
        try:
            kept = hold(job, key, keep)
        except EffectBusy:
            reason = f"another job makes the call {key!r}"
            raise Suspended(Snoozed(seconds=BUSY_SECONDS, reason=reason)) from None
        if kept is not None:
            store(job, EFFECT_KEY + key, kept.text, prevented=1)
    return kept


def _look_up(job: ClaimedJob, key: str, keep: float | None) -> Answer | None:
    problem = f"the receipt {key!r} could not be looked up; the call was not made"
    return _found(lambda: _answer(job, key, keep), "look up a receipt", problem)


def _store(write: Callable[[str], str], text: str) -> str:
    """Store the answer, or a note if the database refuses it. Raises if it refuses both."""
    stored = _written(write, text)
    if isinstance(stored, Exception):
        refusal, stored = stored, _written(write, note_of(stored))
        if isinstance(stored, Exception):
            raise refusal
    return stored


def _written(write: Callable[[str], str], text: str) -> str | Exception:
    """Write the text, however long the database is away. Returns the error if it refuses it, as it
    would at another try."""

    def write_or_note() -> str | Exception:
        try:
            return write(text)
        except ROW_ERRORS as refusal:
            if not is_of_a_row(refusal):
                raise
            return refusal

    stored = retry_while_disconnected(write_or_note, what="store a receipt")
    assert stored is not None  # it never gives up
    return stored
