"""Which job a log line is of."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..worker.context.run_context import RunContext

current: ContextVar[RunContext | None] = ContextVar("django_jobs_run", default=None)
"""The attempt whose handler runs in this context."""

JOB_KEYS = ("job_id", "job_type", "queue", "attempt", "trace_id", "span_id")


def trace_ids(traceparent: str) -> dict[str, str]:
    if not traceparent:
        return {}
    _, trace_id, span_id, _ = traceparent.split("-")
    return {"trace_id": trace_id, "span_id": span_id}


def current_job() -> dict[str, Any]:
    """The values of :data:`JOB_KEYS` of the handler that runs in this context; the ids of a trace
    only where there is one. Empty outside of a handler."""
    if (run := current.get()) is None:
        return {}
    job = {"job_id": run.job_id, "job_type": run.job_type, "queue": run.queue}
    return {**job, "attempt": run.attempt, **trace_ids(run.traceparent)}


def job_of(record: logging.LogRecord) -> dict[str, Any]:
    """The same of the handler that logged the record: of the filter's context, or of this one."""
    if not hasattr(record, "job_id"):
        return current_job()
    values = {key: getattr(record, key, "") for key in JOB_KEYS}
    return {key: value for key, value in values.items() if value != ""}


class JobContextFilter(logging.Filter):
    """Adds :data:`JOB_KEYS` to each record, such as those of a project's own loggers. Outside of a
    handler, and without a trace, they are empty. Removes no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = current_job()
        for key in JOB_KEYS:
            if not hasattr(record, key):
                setattr(record, key, job.get(key, ""))
        return True
