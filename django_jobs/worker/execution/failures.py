"""Converts the exception that ended a handler to an outcome."""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from traceback import walk_tb
from typing import Any, assert_never

import psycopg
from django.core.exceptions import SynchronousOnlyOperation
from django.db import InterfaceError, OperationalError

from ... import exceptions
from ...api.job_type import JobType
from ...domain.errors import ErrorReport, chain, text_of
from ...domain.numbers import as_seconds, is_priority, is_whole
from ...domain.outcomes import FORCED, Cancelled, Failed, Lost, Outcome, Released, Snoozed, TimedOut
from ...exceptions import (
    SNOOZE_WITHOUT_TIME,
    Cancel,
    Discard,
    HookError,
    LeaseLost,
    Retry,
    SignalTimeout,
    Skip,
    Snooze,
)
from ...models.database import CONFLICTS
from ..connections import is_out_of_connections
from ..context.attempt import StopHandler, Suspended
from ..events import report_of
from ..ipc.pipes import AttemptEnd

DECIDING = (
    *(LeaseLost, exceptions.Cancelled, Cancel, Discard, StopHandler),
    *(Retry, Suspended, Snooze),
)
"""What decides the fate of a job, the first one first: what ends the job before what goes on with
it, and what counts as a failure before what does not."""

CANCELS = asyncio.CancelledError, futures.CancelledError
CANCELLED_HERE = "cancelled by its own code, or by code that cancels all tasks of the event loop"

CANCELLED = Cancelled(reason="cancelled while running")
STOPPED = Released(reason="the worker was asked to stop")


def outcome_of_ending(end: AttemptEnd, reason: str, seconds: float) -> Outcome:
    match end:
        case AttemptEnd.LOST:
            return Lost(reason=reason)
        case AttemptEnd.CRASHED:
            return Lost(reason=reason, alone=True)
        case AttemptEnd.TIMED_OUT:
            return TimedOut(seconds=seconds)
        case AttemptEnd.SILENT:
            return TimedOut(seconds=seconds, silent=True)
        case AttemptEnd.CANCELLED:
            return CANCELLED
        case AttemptEnd.FORCED:
            return FORCED
        case AttemptEnd.NEVER_BEGAN:
            return Released(reason=reason, began=False)
        case AttemptEnd.RELEASED:
            return Released(reason=reason)
    assert_never(end)


GONE = {"57P01", "57P02", "57P03"}
"""SQLSTATEs of a server that shuts down, crashed, or does not accept connections yet. Those of
class 08 are errors of the connection."""


LOST = OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError
"""Without an SQLSTATE these are errors of the connection and not of the server."""


def outcome_of_exception(error: BaseException, job_type: JobType[..., Any]) -> Outcome:
    """The outcome of an attempt whose handler raised ``error``. Never raises.

    Exceptions, their attributes and the classes that they are compared with are foreign code. If
    that code fails, the attempt is an ordinary failure with backoff.
    """
    try:
        return (
            _chosen_by(error) or _without_connection(error, job_type) or _failure(error, job_type)
        )
    except StopHandler:  # it arrived here instead of in the handler
        return STOPPED
    except BaseException:
        return Failed(error=report_of(error), exception=error)


def deciding(error: BaseException) -> BaseException | None:
    """What decides the fate of the job: ``error`` itself, or of a group, such as that of an
    ``asyncio.TaskGroup``, what comes first in :data:`DECIDING`, also among failures and in groups
    of the group. Of several sleeps the shortest, otherwise the first one. None if nothing does."""
    found = [
        (place, leaf.outcome.seconds if isinstance(leaf, Suspended) else 0.0, leaf)
        for leaf in _leaves(error)
        for place, kind in enumerate(DECIDING)
        if issubclass(type(leaf), kind)  # isinstance() asks the exception, which may raise
    ]
    return min(found, key=lambda one: one[:2])[-1] if found else None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    left = [error]
    while left:
        one = left.pop()
        if issubclass(type(one), BaseExceptionGroup):
            left += reversed(BaseExceptionGroup.exceptions.__get__(one))  # not what a class made it
        else:
            yield one


def _report_in(error: BaseException, chosen: BaseException) -> ErrorReport:
    """The report of what decides, with the traceback of all that was raised with it."""
    report = report_of(chosen)
    return report if chosen is error else replace(report, traceback=report_of(error).traceback)


def _chosen_by(error: BaseException) -> Outcome | None:
    match chosen := deciding(error):
        case StopHandler():
            return STOPPED
        case Suspended(outcome=outcome):
            return outcome
        case Snooze(seconds=seconds, reason=reason):
            usable = as_seconds(seconds)
            seconds = SNOOZE_WITHOUT_TIME if usable is None else usable
            return Snoozed(seconds=seconds, reason=text_of(reason))
        case Cancel() | exceptions.Cancelled():
            skipped = chosen.skipped if isinstance(chosen, Skip) else None
            return Cancelled(reason=str(chosen), skipped=skipped)
        case Discard():
            return Failed(error=_report_in(error, chosen), exception=error, final=True)
        case Retry(after=after, queue=queue, priority=priority, max_attempts=most):
            return Failed(
                error=_report_in(error, chosen),
                exception=error,
                retry_after=as_seconds(after),
                queue=str(queue) if isinstance(queue, str) else None,
                priority=int(priority) if is_priority(priority) else None,
                max_attempts=int(most) if is_whole(most) else None,
            )
    return None


def _without_connection(error: BaseException, job_type: JobType[..., Any]) -> Snoozed | None:
    """The outcome of a handler that found no free database connection, which is not its fault. An
    at-most-once job may already have done something, so it fails."""
    if job_type.delivery == "at_most_once":
        return None
    if any(isinstance(link, LOST) and is_out_of_connections(link) for link in chain(error)):
        seconds = random.uniform(1.0, 5.0)  # noqa: S311 — jitter
        return Snoozed(seconds=seconds, reason=text_of(error))
    return None


def _failure(error: BaseException, job_type: JobType[..., Any]) -> Failed:
    was_cancelled = job_type.is_async and isinstance(error, CANCELS)
    final = not isinstance(error, HookError) and (
        isinstance(error, job_type.discard_on)
        or _is_hopeless(error, job_type)
        or bool(
            job_type.retry_on
            and not isinstance(error, job_type.retry_on)
            and not was_cancelled
            and not _is_of_the_database(error)
        )
    )
    try:
        retry_after = _delay_asked(error)
    except StopHandler:
        raise
    except BaseException:  # from a property, or a client's class of headers
        retry_after = None
    budgets = [most for kind, most in job_type.error_budgets.items() if isinstance(error, kind)]
    report = report_of(error)
    if was_cancelled:
        report = report.noted(CANCELLED_HERE)
    return Failed(
        error=report,
        exception=error,
        retry_after=retry_after,
        final=final,
        budget=min(budgets, default=None),
    )


def _is_hopeless(error: BaseException, job_type: JobType[..., Any]) -> bool:
    """Whether no other attempt can succeed: a wait for a signal is over, which it stays; or, before
    the code is corrected, the ORM was used in an async handler, or the arguments of the call do not
    fit the handler. A ``TypeError`` from inside the handler may depend on the data. ``retry_on``
    may still name the class."""
    kind = type(error)
    if kind in job_type.retry_on:
        return False
    return kind in (SynchronousOnlyOperation, SignalTimeout) or (
        kind is TypeError and _is_of_the_call(error, job_type.handler)
    )


def _is_of_the_call(error: BaseException, handler: Callable[..., Any]) -> bool:
    """Whether the error was raised by the call of the handler, or of the function that its
    decorators wrap, before its body ran."""
    called = [handler]
    while (inner := getattr(called[-1], "__wrapped__", None)) is not None and len(called) < 10:
        called.append(inner)
    entered = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    return any(
        str(error).startswith(f"{one.__qualname__}()") and one.__code__ not in entered
        for one in called
        if inspect.isfunction(one)
    )


def _is_of_the_database(error: BaseException) -> bool:
    """Whether the error is a deadlock, a serialization failure or a lost connection, which
    ``retry_on`` does not concern. Not an error that the server reports, such as a statement that
    took too long."""
    links = list(chain(error))
    states = [state for link in links if (state := getattr(link, "sqlstate", None))]
    if states:
        return any(state in CONFLICTS or state in GONE or state[:2] == "08" for state in states)
    return isinstance(links[-1], LOST)  # the cause of Django's error, if it has one


def is_lost_race(error: BaseException) -> bool:
    """Whether ``error``, or its cause, is a deadlock or a serialization failure."""
    return any(getattr(link, "sqlstate", None) in CONFLICTS for link in chain(error))


def _delay_asked(error: BaseException) -> float | None:
    """The seconds that the error asks to wait: its ``retry_after``, the Retry-After header of an
    HTTP response (RFC 9110, 10.2.3), or a short pause after a deadlock. None if there is none, or
    for no wait at all: then the remote only allows an immediate retry."""
    if is_lost_race(error):
        return random.uniform(0.05, 1.0)  # noqa: S311 — jitter
    asked = _seconds(getattr(error, "retry_after", None))
    if asked is not None:
        return asked
    for source in (getattr(error, "response", None), error):
        headers = getattr(source, "headers", None)
        if headers is not None and hasattr(headers, "get"):
            asked = _seconds(headers.get("Retry-After"), headers.get("Date"))
            if asked is not None:
                return asked
    return None


def _seconds(asked: Any, sent: Any = None) -> float | None:
    """The seconds of a number, a timedelta, a datetime, or the text of a Retry-After header.

    None for anything else, so that an invalid header leaves the backoff, and for a time that is not
    in the future, so that it does not use up all attempts at once. ``sent`` is the Date header of
    the same response: a datetime is compared with the clock that it comes from.
    """
    if isinstance(asked, str):
        text = asked.strip()
        asked = float(text) if text.isdecimal() and len(text) <= 12 else _moment(text)
    if isinstance(asked, datetime):
        now = _moment(sent) or datetime.now(UTC)
        asked = (asked if asked.tzinfo else asked.replace(tzinfo=UTC)) - now
    seconds = None if asked is None else as_seconds(asked)
    return seconds if seconds is not None and 0 < seconds < math.inf else None


def _moment(text: Any) -> datetime | None:
    """The datetime of a header, or None. A remote may send anything."""
    try:
        moment = parsedate_to_datetime(text)
    except Exception:  # OverflowError too, for a year of twenty digits
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
