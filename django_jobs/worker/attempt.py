"""One attempt, from the held job to its outcome. Knows nothing of threads and queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from .. import registry
from ..conf import conf
from ..domain.errors import ErrorReport
from ..domain.outcomes import Failed, Outcome, Succeeded, TimedOut
from ..domain.payload import encode
from ..exceptions import LeaseLost
from ..job_types import JobType
from ..lifecycle.claiming import HeldJob
from ..lifecycle.settling import NO_RESULT, Ending, Settled, settle
from ..signals import job_started
from .context import RunContext, _current
from .failures import outcome_of

RunAsync = Callable[[Any, float | None], Any]


def make(
    job: HeldJob,
    *,
    should_stop: Callable[[], bool],
    run_async: RunAsync,
    started: float,
) -> Outcome | Settled:
    """Run the handler of ``job`` in a context of its own and say how it ended.

    A handler whose delivery is ``exactly_once`` comes back settled already; :class:`LeaseLost` is
    raised, and its effect rolled back, where the attempt is no longer this worker's. ``started``
    is of ``time.monotonic()``.
    """
    job_type = registry.find(job.job_type)
    if job_type is None:
        return _refused("UnknownJobType", f"no handler is registered for {job.job_type!r}")
    if job.expires_at is not None and job.claimed_at >= job.expires_at:
        return _refused("Expired", "its maximum age was over before this attempt began")
    try:
        payload = _object_in(job.payload)
        job_type.check_payload(payload)
    except Exception as error:
        return _refused("PayloadError", f"the payload does not fit today's handler: {error}")
    try:
        context = _context(job, should_stop)
    except Exception as error:  # a row that was not written by enqueue
        return _refused("UnreadableJob", f"its headers or time-out cannot be used: {error}")
    # A copied context keeps what a handler sets (translation, time zone) from the next one.
    return copy_context().run(_call, job, job_type, payload, context, run_async, started)


def _call(
    job: HeldJob,
    job_type: JobType[..., Any],
    payload: dict[str, Any],
    context: RunContext,
    run_async: RunAsync,
    started: float,
) -> Outcome | Settled:
    _current.set(context)
    try:
        if job_started.receivers and job_started.has_listeners(job.job_type):
            keywords = {"job_id": job.id, "queue": job.queue, "attempt": job.attempt}
            job_started.send_robust(job.job_type, **keywords)
        if job_type.delivery == "exactly_once":
            return _call_in_transaction(job, job_type, payload, started)
        if job_type.is_async:
            result = run_async(job_type.handler(**payload), job.timeout)
        else:
            result = job_type.handler(**payload)
        return _success(result)
    except LeaseLost:
        raise
    except AttemptTimedOut:
        return TimedOut(seconds=job.timeout or 0.0)
    except BaseException as error:  # also SystemExit: a handler must not end its thread
        return outcome_of(error, job_type)


def _call_in_transaction(
    job: HeldJob, job_type: JobType[..., Any], payload: dict[str, Any], started: float
) -> Settled:
    """The handler's writes and the fenced settle, in one transaction. The job's row is locked at
    its end only: held for as long as a handler runs it would block whoever cancels."""
    with transaction.atomic(using=conf().database, durable=True):
        outcome = _success(job_type.handler(**payload))
        (settled,) = settle([Ending(job, outcome, started=started)])
        if settled.decision is None:
            raise LeaseLost(f"job {job.id} attempt {job.attempt} is no longer this worker's")
    return settled


def _success(result: Any) -> Succeeded:
    """What can be stored of ``result``. The effect counts, not the answer: a result that cannot
    be stored is replaced by a note rather than failing a handler that did its work."""
    if result is None:
        return NO_RESULT
    limit = conf().max_result_bytes
    try:
        return Succeeded(result=encode(result, max_bytes=limit, name="result"))
    except Exception as error:  # also what a dict of the handler's own class raises
        return Succeeded(result=json.dumps({"not_stored": ErrorReport.of(error).message}))


def _refused(kind: str, message: str) -> Failed:
    return Failed(error=ErrorReport.plain(kind, message), final=True)


def _object_in(text: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not an object of names and values")
    return value


def _context(job: HeldJob, should_stop: Callable[[], bool]) -> RunContext:
    deadline = None
    if job.timeout is not None:
        deadline = datetime.now(UTC) + timedelta(seconds=job.timeout)
    return RunContext(
        job_id=job.id,
        job_type=job.job_type,
        queue=job.queue,
        attempt=job.attempt,
        idempotency_key=job.idempotency_key,
        deadline=deadline,
        headers=_object_in(job.headers),
        scheduled_for=(
            None if job.scheduled_for is None else datetime.fromtimestamp(job.scheduled_for, UTC)
        ),
        _stop=should_stop,
    )


class AttemptTimedOut(Exception):
    """The attempt's own time-out ran out."""


async def bounded(coroutine: Any, timeout: float | None) -> Any:
    """Await ``coroutine``, at most ``timeout`` seconds; then raise :class:`AttemptTimedOut`."""
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if limit.expired():
            raise AttemptTimedOut from None
        raise
