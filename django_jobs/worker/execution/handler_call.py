"""Calls the handler of an attempt. Independent of threads and queues. Repeats its transaction after
a serialization failure or a deadlock."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

from django.db import connections, transaction
from psycopg import IsolationLevel

from ...api.job_type import JobType
from ...conf import conf
from ...domain.errors import ErrorReport
from ...domain.numbers import NEVER
from ...domain.outcomes import Failed, Outcome, Snoozed, Succeeded
from ...domain.payload import STORED
from ...exceptions import JobsError, LeaseLost, ResultNotStored, Retry
from ...lifecycle.bulk_insert import rows_dropped
from ...lifecycle.claiming import lease_lost
from ...lifecycle.job_columns import ClaimedJob
from ...lifecycle.settling import NO_RESULT, Settled, settle
from ...lifecycle.settling_rows import note_triggers
from ...lifecycle.workflows.results import taken_results
from ...logs import log_event
from ...logs.context import current
from ...models.database import DATABASE_ERRORS, execute
from ...signals import job_started
from ..context.attempt import Attempt, object_in
from ..context.progress import NeverRan, check_that_it_ran, encode_result
from ..context.run_context import RunContext
from ..handlers.cursors import not_counted
from ..timeouts.limits import Interrupted
from .failures import deciding, is_lost_race, outcome_of_exception
from .run_hooks import acall_with_hooks, call_with_hooks, in_context

MOST_TRIES = 10
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Seconds."""

LONGEST_SNOOZE = 60.0

READ_SINGLE_ROWS = "SET LOCAL enable_seqscan = off"
"""PostgreSQL scans a small table to find one row, and a SERIALIZABLE transaction that has scanned
the live jobs conflicts with each other one that ends a job. Of 600 jobs of 10 ms in 16 threads 484
were repeated, and 196 were snoozed. By index it reads the row of its own job only: none was."""


def may_not_serialize() -> bool:
    """Whether the project's settings ask for more than READ COMMITTED. The default level of the
    database or the role is not known here."""
    raw = connections[conf().database].connection  # None if the handler has closed it
    return getattr(raw, "isolation_level", None) not in (None, IsolationLevel.READ_COMMITTED)


class _Forked:
    """Counts the forks of this process and its ancestors. The child counts, because asking the
    system for the process id would take two system calls for every job."""

    depth = 0

    def count(self) -> None:
        self.depth += 1


_forked = _Forked()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.count)


def call(attempt: Attempt) -> Outcome | Settled:
    """Call the handler of ``attempt`` in a new context, and return the outcome.

    An ``exactly_once`` attempt is returned settled. If it no longer belongs to this worker, its
    effect is rolled back and :class:`LeaseLost` is raised.
    """
    payload = _payload_of(attempt)
    if not isinstance(payload, dict):
        return payload
    # The next handler does not see changes in a copied context (translation, time zone).
    return copy_context().run(_call, attempt, payload)


async def acall(attempt: Attempt) -> Outcome:
    """:func:`call` for an async handler, in its own task of the loop. What may use the database
    runs in the handler's thread for blocking calls."""
    job, job_type = attempt.job, attempt.job_type
    assert job_type is not None
    reads = job.workflow_run_id is not None or (conf().storage and STORED in job.payload)
    if reads or job.payload_version != job_type.version:
        assert attempt.in_thread is not None
        payload: dict[str, Any] | Outcome
        try:
            payload = await attempt.in_thread(partial(_payload_of, attempt))
        except RuntimeError as error:  # no thread can be started
            return outcome_of_exception(error, job_type)
    else:
        payload = _payload_of(attempt)
    if not isinstance(payload, dict):
        return payload
    return await _acall(attempt, payload)


def _payload_of(attempt: Attempt) -> dict[str, Any] | Outcome:
    job, job_type = attempt.job, attempt.job_type
    if job_type is None:
        return _refused("UnknownJobType", f"no handler is registered for {job.job_type!r}")
    if limit := job.expired(attempt.started):
        return _refused("Expired", f"its {limit} was over before this attempt started")
    try:
        stored = object_in(job.payload)
        if conf().storage is not None and STORED in job.payload:
            from ...lifecycle.stored_files import loaded

            stored = {name: loaded(value) for name, value in stored.items()}
        payload = job_type.upgraded(stored, job.payload_version)
        if job.workflow_run_id is not None and job_type.takes_more_than(payload):
            payload = payload | taken_results(job)
        job_type.check_payload(payload)
    except (*DATABASE_ERRORS, ResultNotStored, Retry) as error:
        return outcome_of_exception(error, job_type)
    except Exception as error:
        return _refused("PayloadError", f"the payload does not fit the current handler: {error}")
    try:
        attempt.read()
    except Exception as error:  # a row that was not written by enqueue
        return _refused("UnreadableJob", f"its headers or time-out cannot be used: {error}")
    return payload


def _call(attempt: Attempt, payload: dict[str, Any]) -> Outcome | Settled:
    job, job_type = attempt.job, attempt.job_type
    assert job_type is not None
    context = RunContext(attempt)
    current.set(context)
    try:
        if job_started.receivers and job_started.has_listeners(job.job_type):
            job_started.send_robust(job.job_type, **_start_of(job))
        if conf().hooks:
            call = partial(_call_handler, attempt, job_type, payload, context)
            return call_with_hooks(attempt, payload, call)
        return _call_handler(attempt, job_type, payload, context)
    except BaseException as error:  # including SystemExit: a handler must not end its thread
        return _outcome_of(error, job_type)


async def _acall(attempt: Attempt, payload: dict[str, Any]) -> Outcome:
    job_type = attempt.job_type
    assert job_type is not None
    current.set(RunContext(attempt))
    try:
        if job_started.has_listeners(job_type.name):
            await job_started.asend_robust(job_type.name, **_start_of(attempt.job))
        if conf().hooks:
            call = partial(_await_handler, attempt, job_type, payload)
            return await acall_with_hooks(attempt, payload, call)
        return await _await_handler(attempt, job_type, payload)
    except BaseException as error:
        return _outcome_of(error, job_type)


async def _await_handler(
    attempt: Attempt, job_type: JobType[..., Any], payload: dict[str, Any]
) -> Outcome:
    if attempt.job.attempt > 1:  # it cannot be read on the event loop
        assert attempt.in_thread is not None
        await attempt.in_thread(partial(_read_checkpoint, attempt))
    assert attempt.await_async is not None
    coroutine = _begun(attempt, job_type, payload)
    try:
        result = await attempt.await_async(coroutine, attempt.job.timeout)
    finally:
        attempt.end_handler()
    if conf().storage is not None:  # it may be saved, which would block the event loop
        assert attempt.in_thread is not None
        outcome: Outcome = await attempt.in_thread(partial(_success, attempt.job, result))
        return outcome
    return _success(attempt.job, result)


def _read_checkpoint(attempt: Attempt) -> None:
    with not_counted(attempt):
        attempt.reporter.saved_checkpoint(attempt)


def _begun(
    attempt: Attempt, job_type: JobType[..., Any], payload: dict[str, Any]
) -> Coroutine[Any, Any, Any]:
    """The call of an async handler, whose time begins."""
    attempt.begin_handler()
    if conf().hooks:
        return in_context(job_type.handler, payload)
    coroutine: Coroutine[Any, Any, Any] = job_type.handler(**payload)
    return coroutine


def _start_of(job: ClaimedJob) -> dict[str, Any]:
    return {"job_id": job.id, "queue": job.queue, "attempt": job.attempt}


def _outcome_of(error: BaseException, job_type: JobType[..., Any]) -> Outcome:
    """The outcome after this exception. :class:`LeaseLost` is raised again."""
    if type(error) is Interrupted:
        return error.outcome
    if type(error) is NeverRan:
        return _refused("NeverRan", str(error))
    if isinstance(lost := deciding(error), LeaseLost):
        raise lost
    return outcome_of_exception(error, job_type)


def _call_handler(
    attempt: Attempt, job_type: JobType[..., Any], payload: dict[str, Any], context: RunContext
) -> Outcome | Settled:
    job = attempt.job
    if job_type.delivery == "exactly_once":
        return _call_in_transactions(attempt, job_type, payload, context)
    if job_type.is_async:
        if job.attempt > 1:
            _read_checkpoint(attempt)  # it cannot be read on the event loop
        assert attempt.run_async is not None
        coroutine = _begun(attempt, job_type, payload)
        try:
            result = attempt.run_async(coroutine, job.timeout)
        finally:
            attempt.end_handler()
    else:
        result = _result_of(attempt, job_type, payload)
    return _success(job, result)


def _call_in_transactions(
    attempt: Attempt, job_type: JobType[..., Any], payload: dict[str, Any], context: RunContext
) -> Settled | Snoozed:
    """Call the handler in a transaction, up to ten times until its time-out.

    If each call failed to serialize, the job is snoozed, which counts as no failure. An exception
    with which the handler chose the fate of its job is raised.
    """
    job, longest, tries = attempt.job, FIRST_PAUSE, 0
    ends_at = NEVER if job.timeout is None else attempt.started + job.timeout
    while tries < MOST_TRIES:
        tries += 1
        try:
            return _call_in_transaction(attempt, job_type, payload, tries > 1)
        except Exception as error:
            if isinstance(error, JobsError) or not is_lost_race(error):
                raise
        pause = random.uniform(0.0, longest)  # noqa: S311 — jitter
        if attempt.should_stop() or time.monotonic() + pause >= ends_at:
            break
        time.sleep(pause)
        longest = min(longest * 2, LONGEST_PAUSE)
        context._begin_again()
        if attempt.limit is not None:
            attempt.limit.begin_again()
    times = "once" if tries == 1 else f"{tries} times"
    return Snoozed(
        seconds=random.uniform(0.5, 1.0) * min(job.attempt, LONGEST_SNOOZE),  # noqa: S311 — jitter
        reason=f"its transaction was rolled back by conflicts in the database {times}",
    )


def _call_in_transaction(
    attempt: Attempt, job_type: JobType[..., Any], payload: dict[str, Any], is_repeated: bool
) -> Settled:
    """Run the handler's writes and the fenced settle in one transaction. The job's row is locked
    only at the end: otherwise the lock would block a cancel while the handler runs."""
    job = attempt.job
    committed: list[bool] = []
    try:
        with transaction.atomic(using=conf().database, durable=True):
            # The first on_commit hook, because one of the handler may fail.
            transaction.on_commit(lambda: committed.append(True), using=conf().database)
            outcome = _success(job, _result_of(attempt, job_type, payload))
            ending = attempt.ending(outcome)  # its queries are counted until here
            if is_repeated or may_not_serialize():
                execute(READ_SINGLE_ROWS, {})
            (settled,) = settle([ending])
            # This transaction has just begun, so an earlier write is not ours.
            if settled.decision is None and (table := note_triggers()):
                raise rows_dropped(1, table)
            if settled.decision is None or settled.earlier:
                raise lease_lost(job)
    except BaseException:
        if not committed:
            raise
        fields = {"job_id": job.id, "job_type": job.job_type, "attempt": job.attempt}
        log_event("on_commit_failed", logging.ERROR, fields, exc_info=True)
    if not committed:  # Django took the end of our block for the end of an inner one
        raise transaction.TransactionManagementError(
            "the handler entered transaction.atomic() and did not leave it, so nothing that it "
            "wrote was committed; use `with transaction.atomic():`"
        )
    return settled


def _result_of(attempt: Attempt, job_type: JobType[..., Any], payload: dict[str, Any]) -> Any:
    # First noted and then looked, in reverse of the thread that sets a limit to stop it by force.
    attempt.in_call = True
    if attempt.limit is not None:
        attempt.in_call = False
        return attempt.limit.call(partial(_in_one_process, job_type.handler), payload)
    try:
        result = _in_one_process(job_type.handler, **payload)
    except BaseException as error:
        attempt.in_call = False
        if attempt.limit is not None:
            attempt.limit.end(error)
        raise
    attempt.in_call = False
    if attempt.limit is not None:
        attempt.limit.end()
    return result


def _in_one_process(handler: Callable[..., Any], /, **payload: Any) -> Any:
    """End the process if this is a fork of the handler that returned: it has a copy of this
    process's jobs in its memory, and shares its connections."""
    before = _forked.depth
    try:
        return handler(**payload)
    finally:
        if _forked.depth != before:
            os._exit(0)


def _success(job: ClaimedJob, result: Any) -> Succeeded:
    if result is None:
        return NO_RESULT
    check_that_it_ran(result)
    return encode_result(result, job.job_type, job.id)


def _refused(kind: str, message: str) -> Failed:
    return Failed(error=ErrorReport.plain(kind, message), final=True)
