"""What a worker reports: its events, which become log lines, and the errors of handlers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from ..domain.errors import ErrorReport
from ..lifecycle.job_columns import ClaimedJob
from ..lifecycle.settling import Settled
from ..lifecycle.signalling import send_job_signals
from ..signals import emit as emit

QUIET_SECONDS = 5.0


def emit_left_open(job: ClaimedJob) -> None:
    """Log that a handler ended in a transaction, which is rolled back: a success may have written
    nothing."""
    fields = {"job_id": job.id, "job_type": job.job_type, "attempt": job.attempt}
    emit("transaction_left_open", logging.WARNING, **fields)


_emitted_at: dict[str, float] = {}


def emit_throttled(event: str, level: int, **fields: Any) -> None:
    """:func:`emit`, at most once in five seconds for each event."""
    now = time.monotonic()
    if now - _emitted_at.get(event, float("-inf")) > QUIET_SECONDS:
        _emitted_at[event] = now
        emit(event, level, **fields)


def emit_settled(settled: Iterable[Settled]) -> None:
    """Send the signals of settled attempts, and log those that were refused."""
    for ended in settled:
        if ended.decision is None:
            job = ended.ending.job
            fields = {"job_id": job.id, "attempt": job.attempt, "worker": job.worker}
            emit("lease_lost", logging.WARNING, **fields)
    send_job_signals(settled)


WORKER = os.path.dirname(__file__)

ROOMS = "execution", "handlers", "process", "timeouts"

callers = [os.path.join(WORKER, room, "") for room in ROOMS]
"""The directories with the code between a worker's thread and a handler. Packages that bring
handlers of their own add theirs."""


def report_of(error: BaseException) -> ErrorReport:
    """The report of an error that a handler raised. Its traceback begins with the handler."""
    return ErrorReport.of(error, callers)
