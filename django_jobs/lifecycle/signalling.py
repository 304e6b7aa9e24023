"""Send Django signals about settled attempts, after the transaction that settled them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from ..domain.states import JobState, RunState
from ..logs import log_event
from ..logs.context import trace_ids
from ..signals import attempt_failed, job_dead, job_finished
from .settling import Settled

WHICH = "job_id", "queue", "attempt", "trace_id", "span_id"
NO_TRACE = {"trace_id": "", "span_id": ""}

_by_job_type: dict[str, Callable[..., None]] = {}


def receive_ends_of(job_type: str, receiver: Callable[..., None]) -> None:
    """Call ``receiver`` with the job type and the keywords of ``job_finished`` for each ended
    attempt of this job type. A receiver of the signal would cost time for every job: Django knows
    senders by their identity, and the name is another object in each row."""
    _by_job_type[job_type] = receiver


def send_job_signals(settled: Iterable[Settled]) -> None:
    """Send ``job_finished``, ``attempt_failed`` and ``job_dead`` for what was written.

    Sends nothing for an attempt that lost its lease: the process that settled it sends its signals.
    """
    for attempt in settled:
        decision, job_type = attempt.decision, attempt.ending.job.job_type
        if decision is None:
            continue
        succeeded = decision.run == RunState.SUCCEEDED
        own = _by_job_type.get(job_type)
        heard = job_finished.receivers and job_finished.has_listeners(job_type)
        if succeeded and own is None and not heard:
            continue
        keywords = _keywords(attempt)
        if own is not None:
            try:
                own(job_type, **keywords)
            except (Exception, SystemExit, KeyboardInterrupt):  # this thread has to go on
                fields = {"job_type": job_type, **{key: keywords[key] for key in WHICH}}
                log_event("receiver_failed", logging.ERROR, fields, exc_info=True)
        job_finished.send_robust(job_type, **keywords)
        if not succeeded:
            attempt_failed.send_robust(job_type, **keywords)
        if decision.status == JobState.DEAD:
            job_dead.send_robust(job_type, **keywords)


def _keywords(attempt: Settled) -> dict[str, Any]:
    ending, decision = attempt.ending, attempt.decision
    assert decision is not None
    return {
        "job_id": ending.job.id,
        "queue": ending.job.queue,
        "attempt": ending.job.attempt,
        "status": str(decision.status),
        "outcome": str(decision.run),
        "seconds": None if ending.started is None else ending.finished - ending.started,
        "error": decision.error.summary.replace("\n", " ") if decision.error else "",
        "error_code": decision.error.code if decision.error else "",
        "reason": decision.reason,
        "traceback": decision.error.traceback if decision.error else "",
        "exception": getattr(ending.outcome, "exception", None),
        **(trace_ids(ending.traceparent) or NO_TRACE),
    }
