"""Makes an outside call once in all attempts of a job. Later attempts get its answer."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from django.db import OperationalError

from ...domain.payload import key_problem
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.progress import Answer, look_up, store
from ...lifecycle.waits import SIGNAL_KEY, SLEEP_KEY
from ...lifecycle.workflows.spawning import SPAWNED
from ...models.database import ROW_ERRORS, is_of_a_row
from ..connections import retry_while_disconnected
from ..events import emit
from .attempt import Attempt
from .results import encode_answer, note_of

R = TypeVar("R")


ASYNC_CALL = "once() got an async call; write `await run.aonce(key, call)`"

PATIENCE = 10.0
"""Seconds to wait for an unavailable database before the call. After the call there is no limit."""


def once(attempt: Attempt, key: str, call: Callable[[], Any]) -> Any:
    """Return the answer stored under ``key``, or make the call and store its answer.

    Raises ``TypeError`` for an async call, which would not be awaited; nothing is stored then.
    """
    check_key(key)
    check_call(call)
    if inspect.iscoroutinefunction(call):
        raise TypeError(ASYNC_CALL)
    job, background = attempt.job, attempt.reporter.background
    kept = background.wait(background.submit(lambda: _look_up(job, key)))
    if kept is not None:
        return _instead(job, key, kept)
    answer = call()
    if inspect.isawaitable(answer):
        _drop(answer)
        raise TypeError(ASYNC_CALL)
    # Encoded on that thread too, so that a time-out raised here cannot corrupt the stored answer.
    return json.loads(background.wait(_storing(attempt, key, answer)))


async def aonce(attempt: Attempt, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """:func:`once` for a call that is awaited. The answer of a plain call is stored and returned
    too, because the call was made."""
    check_key(key)
    check_call(call)
    job, background = attempt.job, attempt.reporter.background
    kept = await asyncio.wrap_future(background.submit(lambda: _look_up(job, key)))
    if kept is not None:
        return _instead(job, key, kept)
    answer = call()
    if inspect.isawaitable(answer):
        answer = await answer
    # Shielded, because a time-out must not cancel the statement now.
    stored = asyncio.wrap_future(_storing(attempt, key, answer))
    return json.loads(await asyncio.shield(stored))


def check_key(key: str) -> None:
    """Raise ``ValueError`` for an invalid key of a receipt."""
    if problem := key_problem(key, "a key", "key"):
        raise ValueError(f"once(): {problem}")
    if key.startswith((SLEEP_KEY, SIGNAL_KEY)):
        reserved = f"{SLEEP_KEY!r} or {SIGNAL_KEY!r}"
        raise ValueError(f"once(): keys that begin with {reserved} are those of waits")
    if key.startswith(SPAWNED):
        raise ValueError(f"once(): keys that begin with {SPAWNED!r} are those of spawn()")


def check_call(call: Any) -> None:
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
    emit("duplicate_prevented", logging.INFO, **fields, made_by=kept.attempt)
    return json.loads(kept.text)


def _storing(attempt: Attempt, key: str, answer: Any) -> Future[str]:
    job = attempt.job
    return attempt.reporter.background.submit_for_attempt(
        attempt, lambda: _store(job, key, encode_answer(answer, "answer"))
    )


def _look_up(job: ClaimedJob, key: str) -> Answer | None:
    until = time.monotonic() + PATIENCE
    looked_up = retry_while_disconnected(
        lambda: (look_up(job, key),),
        what="look up a receipt",
        give_up=lambda: time.monotonic() >= until,
    )
    if looked_up is None:
        raise OperationalError(f"the receipt {key!r} could not be looked up; the call was not made")
    return looked_up[0]


class _Refused(Exception):
    """The database does not take the answer."""


def _store(job: ClaimedJob, key: str, text: str) -> str:
    """Store the answer; a note in its place if the database refuses it. Raises the refusal if it
    refuses the note as well."""
    try:
        return _store_in_the_end(job, key, text)
    except _Refused as refused:
        refusal = cast(Exception, refused.__cause__)
    try:
        return _store_in_the_end(job, key, note_of(refusal))
    except _Refused:
        raise refusal from None


def _store_in_the_end(job: ClaimedJob, key: str, text: str) -> str:
    """Store the text, however long the database is away."""

    def store_or_refuse() -> str:
        try:
            return store(job, key, text)
        except ROW_ERRORS as refusal:
            if not is_of_a_row(refusal):
                raise
            raise _Refused from refusal  # another try would be refused too

    stored = retry_while_disconnected(store_or_refuse, what="store a receipt")
    assert stored is not None  # it never gives up
    return stored
