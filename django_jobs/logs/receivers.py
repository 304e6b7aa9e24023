"""Logs the signals of the worker: one line per event, with stable keys.

Events without a signal are logged in the same form where they happen, by :func:`log_event`: a
notification that could not be sent, an ``on_commit`` hook that raised, a job that could not be
settled or given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..domain.states import FAILURES, JobState, RunState
from ..signals import attempt_failed, job_dead, job_finished, worker_event
from .context import current, trace_ids
from .formats import EVENT, line

logger = logging.getLogger("django_jobs")

CONNECTED = "django_jobs.logs"
"""The ``dispatch_uid`` of the receivers that log, so that each signal has at most one."""

KEYWORDS = ("queue", "attempt", "status", "outcome", "seconds", "error_code", "error")


reported_by: dict[str, Callable[[Mapping[str, Any]], bool]] = {}
"""By job type: whether what runs it has logged such an end as an error. A service that makes issues
of errors would have two of one failure."""


def connect(level: int | None = None) -> None:
    """Log the events of the worker. ``level`` defaults to that of the logger ``django_jobs``.

    ``job_finished`` gets a receiver only at DEBUG, because it costs time for every job. Connecting
    twice changes nothing.
    """
    attempt_failed.connect(log_attempt, dispatch_uid=CONNECTED)
    job_dead.connect(log_dead, dispatch_uid=CONNECTED)
    worker_event.connect(log_worker_event, dispatch_uid=CONNECTED)
    if (logger.getEffectiveLevel() if level is None else level) <= logging.DEBUG:
        job_finished.connect(log_success, dispatch_uid=CONNECTED)


def disconnect() -> None:
    for signal in (attempt_failed, job_dead, worker_event, job_finished):
        signal.disconnect(dispatch_uid=CONNECTED)


def log_success(sender: str, **fields: Any) -> None:
    """Log ``job_finished`` of a success. :func:`log_attempt` logs the other outcomes."""
    if fields.get("outcome") == RunState.SUCCEEDED:
        _log_job(logging.DEBUG, "job_succeeded", sender, fields)


def log_attempt(sender: str, **fields: Any) -> None:
    """Log ``attempt_failed`` as ``event=job_failed``, ``event=job_snoozed`` and so on."""
    outcome = fields.get("outcome")
    level = level_of(outcome)
    more = ("reason",) if fields.get("status") == JobState.CANCELLED else ()
    _log_job(level, f"job_{outcome}", sender, fields, *more)


def level_of(outcome: Any) -> int:
    return logging.WARNING if outcome in FAILURES else logging.INFO


def log_dead(sender: str, **fields: Any) -> None:
    is_reported = reported_by.get(sender)
    level = logging.WARNING if is_reported and is_reported(fields) else logging.ERROR
    _log_job(level, "job_dead", sender, fields, "reason")


def log_worker_event(sender: str, *, level: int, fields: dict[str, Any], **others: Any) -> None:
    log_event(sender, level, fields)


def log_event(event: str, level: int, fields: dict[str, Any], *, exc_info: bool = False) -> None:
    """Log an event. One of the job whose handler runs here gets the ids of its trace."""
    if logger.isEnabledFor(level):
        if (run := current.get()) is not None and fields.get("job_id") == run.job_id:
            fields = fields | trace_ids(run.traceparent)
        text = line(event, fields)
        logger.log(level, "%s", text, exc_info=exc_info, extra={EVENT: (event, fields)})


def _log_job(level: int, event: str, sender: str, fields: dict[str, Any], *more: str) -> None:
    keys = (*KEYWORDS, *more, "trace_id", "span_id")
    values = {"job_id": fields.get("job_id"), "job_type": sender}
    log_event(event, level, values | {key: fields.get(key) for key in keys})
