"""Works on a batch of schedules in one transaction. One that fails does not stop the others."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence

from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    transaction,
)

from ..conf import conf
from ..domain.errors import ErrorReport
from ..lifecycle.bulk_insert import RowsDropped
from ..lifecycle.history import WAIT_A_MOMENT
from ..lifecycle.schedules import due as due_schedules
from ..lifecycle.schedules import due as schedule_errors
from ..models import Schedule
from ..models.database import execute, is_blocked
from ..signals import worker_event

PARTING_SECONDS = 1.0
"""How long a batch in which a schedule fails is parted. What is left then is still due."""

Work = Callable[[Sequence[Schedule]], None]


def work_on(take: Callable[[], list[int]], work: Work, left: list[Exception]) -> int:
    """Lock a batch and process it in one transaction; return its size. Adds to ``left`` why some of
    it was left as it is."""
    with transaction.atomic(using=conf().database):
        taken = take()
        if taken:
            execute(WAIT_A_MOMENT, {})
            _do(taken, work, left, time.monotonic() + PARTING_SECONDS)
    return len(taken)


def _do(ids: Sequence[int], work: Work, left: list[Exception], until: float) -> None:
    """Process a batch. If it cannot be read or written as a whole, process its halves, so that a
    schedule that fails alone does not stop the others. It is marked with an error, or ``left`` if
    the cause is another one than its values, such as a lock of another session or a trigger."""
    try:
        with transaction.atomic(using=conf().database):
            work(due_schedules.read(ids))
    except Exception as refusal:
        blocker = None if isinstance(refusal, DataError | IntegrityError) else refusal
        if not isinstance(blocker, Error | RowsDropped):
            blocker = None
        elif _is_of_all(blocker):
            raise
        if blocker is not None and (len(ids) == 1 or time.monotonic() > until):
            left.append(blocker)
        elif len(ids) == 1:
            mark_error(ids[0], ErrorReport.of(refusal).summary)
        else:
            middle = len(ids) // 2
            halves = [ids[:middle], ids[middle:]]
            random.shuffle(halves)  # the time may be too short for both
            for half in halves:
                _do(half, work, left, until)


def _is_of_all(error: Exception) -> bool:
    """Whether an error of the database concerns the session, and not a schedule."""
    unusable = isinstance(error, InterfaceError | OperationalError)
    return unusable and not is_blocked(error)


def mark_error(schedule: int, reason: str) -> None:
    """Stop a schedule with this error, and send the event."""
    name = schedule_errors.mark_error(schedule, reason)
    emit_after_commit("schedule_error", logging.ERROR, name, reason)


def emit_after_commit(event: str, level: int, name: str, reason: str) -> None:
    """Send the event of a schedule once it is committed."""

    def send() -> None:
        fields = {"schedule": name, "reason": reason}
        worker_event.send_robust(event, level=level, fields=fields)

    transaction.on_commit(send, using=conf().database, robust=True)
