"""Encodes the results of handlers and the answers of ``once`` calls."""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ...conf import conf
from ...domain.errors import ErrorReport
from ...domain.outcomes import Succeeded
from ...domain.payload import encode
from ...models.database import in_transaction, jobs_connection
from ..connections import retry_while_disconnected
from ..events import emit
from .progress import PATIENCE

JSON_TYPES = frozenset({dict, list, tuple, str, int, float, bool})


class NeverRan(Exception):
    """The handler returned work that is never run."""


def check_that_it_ran(result: Any) -> None:
    """Raise :class:`NeverRan` for a result whose body has not run: a coroutine or another
    awaitable, or a generator. Another attempt would return the same."""
    if type(result) in JSON_TYPES:
        return
    try:
        problem = _why_it_never_ran(result)
    except Exception:  # a lazy object may raise anything when it is looked at; it is no coroutine
        return
    if problem:
        raise NeverRan(problem)


def _why_it_never_ran(result: Any) -> str:
    """Empty if it has run."""
    name = getattr(result, "__qualname__", "")
    if inspect.isawaitable(result):
        what = f"the coroutine {name}" if inspect.iscoroutine(result) else f"a {_kind(result)}"
        advice = (
            "declare the handler `async def` and await it there; a decorator around an async "
            "handler has to be `async def` itself"
        )
    elif inspect.isgenerator(result):
        what, advice = f"the generator {name}", "go through it in the handler, as by list(...)"
    elif inspect.isasyncgen(result):
        what = f"the async generator {name}"
        advice = "declare the handler `async def` and go through it there by `async for`"
    else:
        return ""
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns that it was never awaited
    return f"it returned {what}, which is never run: {advice}"


def _kind(value: object) -> str:
    return type(value).__qualname__


_unstored: set[str] = set()
"""The job types whose unstorable result was logged."""


def encode_result(result: Any, job_type: str, job_id: int) -> Succeeded:
    """The outcome of a handler that returned ``result``. One that cannot be stored is replaced by a
    note, as by :func:`encode_answer`, and logged once per job type."""
    text, problem = _encoded(result, "result", job_id)
    if problem and job_type not in _unstored:
        _unstored.add(job_type)
        emit("result_not_stored", logging.WARNING, job_type=job_type, reason=problem)
    return Succeeded(result=text, not_stored=problem)


def encode_answer(value: Any, name: str) -> str:
    """``value`` as JSON text. A value that cannot be stored is replaced by a note, because the
    handler has done its work and must not fail."""
    return _encoded(value, name)[0]


def note_of(error: Exception) -> str:
    """The JSON text that replaces a value which cannot be stored because of ``error``."""
    return json.dumps({"not_stored": ErrorReport.of(error).message})


def _encoded(value: Any, name: str, job_id: int | None = None) -> tuple[str, str]:
    """The JSON text, and the reason if it is a note. With a ``job_id`` it may have files."""
    most = conf().max_result_bytes
    try:
        if job_id is not None and conf().storage is not None:
            from ...lifecycle.stored_files import encoded_of

            save = partial(encoded_of, job_id, value, max_bytes=most, name=name)
            return _unless_disconnected(save), ""
        return encode(value, max_bytes=most, name=name), ""
    except Exception as error:  # a dict subclass of the handler may raise anything
        return note_of(error), ErrorReport.of(error).message


def _unless_disconnected(save: Callable[[], str]) -> str:
    """Call ``save``, outside of transactions again and again while the database is away."""
    if in_transaction(jobs_connection()):
        return save()
    until = time.monotonic() + PATIENCE
    return retry_while_disconnected(save, what="result", until=until) or save()
