"""Wake idle workers by NOTIFY. It is a hint: polling works without it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper

from ..domain.gates import LoneGate
from ..logs import log_event
from ..models.database import fetch, jobs_connection
from ..signals import emit

CHANNEL = "django_jobs"
CANCELLED = ":cancelled"
INSPECT = ":inspect"
QUARANTINED = ":quarantined"
OPERATIONS = ":operations"
SCHEDULES = ":schedules"
GATES = ":gates"
BLOCKED = ":blocked:"
AWAITED = ":awaited:"
"""Sent in place of a queue's name, which never begins with a colon. ``CANCELLED``: the cancel of a
running job was requested. ``INSPECT``: a person asks what a running job is doing. ``QUARANTINED``:
a job type was quarantined, and ready jobs of it may be left to block. ``OPERATIONS``: an operation
on all jobs that match begins. ``SCHEDULES``: schedules were changed. ``GATES``: a resource or a
tenant was changed, and jobs of any queue may have room. ``BLOCKED``, before the name of a queue: a
job came that waits at gates, so that a worker looks at these first; :func:`blocked_hint` says if it
has one gate alone. ``AWAITED``, before the id of a job: a caller waits for its end."""

_BLOCKED_BY: dict[LoneGate | None, str] = {
    None: BLOCKED,
    **{gate: f":blocked-by-{gate}:" for gate in LoneGate},
}


def blocked_hint(queue: str, gate: LoneGate | None) -> str:
    """The hint that a job of ``queue`` waits at gates; ``gate`` is its only one, if it has one."""
    return _BLOCKED_BY[gate] + queue


def read_blocked(hint: str) -> tuple[str, LoneGate | None] | None:
    """The queue and the gate of such a hint; None for another one."""
    for gate, prefix in _BLOCKED_BY.items():
        if hint.startswith(prefix):
            return hint.removeprefix(prefix), gate
    return None


LONGEST_ID = 19
"""Digits."""


def read_id(word: str) -> int | None:
    """The id of a job in a hint; None for anything else. Any session may send a NOTIFY, and Python
    raises an exception for a number of some thousand digits."""
    return int(word) if word.isdecimal() and len(word) <= LONGEST_ID else None


ENDS_CHANNEL = "django_jobs_ends"
"""Workers say here which awaited jobs have ended: ids with commas. They do not listen to it."""
MOST_IDS = 300
"""A notification has less than 8,000 bytes, and an id at most 20."""

THROTTLE_SECONDS = 0.02
"""A process sends at most one NOTIFY per queue in this many seconds, because NOTIFY takes a lock
that all committing notifiers share. A worker that was woken looks again after twice this time, so
it finds jobs whose NOTIFY was throttled without waiting for the next poll."""

NOTIFY = "SELECT pg_notify(%s, %s)"
# For a transaction of its own, which then waits for no disk: a hint may be lost.
NOTIFY_ALONE = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
_last_sent: dict[str, float] = {}
_lock = threading.Lock()


class RunsAtOnce(Protocol):
    """What runs jobs in the process that enqueues them."""

    def __call__(self, hint: str, connection: BaseDatabaseWrapper) -> None:
        """A queue has jobs."""

    def holding(self) -> AbstractContextManager[None]:
        """Run no job in the block, but after it."""


run_at_once: RunsAtOnce | None = None
"""Called in place of a NOTIFY where jobs run at once: see :mod:`django_jobs.testing.draining`."""


def notify_after_commit(queue: str, connection: BaseDatabaseWrapper | None = None) -> None:
    """Wake the workers of ``queue`` once the caller's transaction has committed. ``connection``
    saves looking it up.

    In manual transaction management Django refuses ``on_commit``, or defers it until autocommit is
    restored. There the NOTIFY is part of the transaction, and PostgreSQL sends it once, at the
    commit.
    """
    connection = connection or jobs_connection()
    if run_at_once is not None:
        run_at_once(queue, connection)
        return
    if _is_manual(connection):
        fetch(NOTIFY, [CHANNEL, queue])
    else:
        connection.on_commit(lambda: notify(queue), robust=True)


def _is_manual(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        return not connection.commit_on_exit
    return not connection.get_autocommit()


def notify(queue: str) -> None:
    """Wake the workers of ``queue`` now. A database error is logged and not raised."""
    now = time.monotonic()
    with _lock:
        if now - _last_sent.get(queue, float("-inf")) < THROTTLE_SECONDS:
            return
        _last_sent[queue] = now
    _send(CHANNEL, queue)


def emit_after_commit(event: str, level: int, /, **fields: Any) -> None:
    """:func:`~django_jobs.signals.emit` once the caller's transaction has committed."""
    jobs_connection().on_commit(partial(emit, event, level, **fields), robust=True)


def ask_for_end(job_id: int) -> None:
    """Ask all workers to say when this job has ended."""
    _send(CHANNEL, f"{AWAITED}{job_id}")


def notify_ends(job_ids: Sequence[int]) -> None:
    """Say to those who asked that these jobs have ended."""
    for start in range(0, len(job_ids), MOST_IDS):
        _send(ENDS_CHANNEL, ",".join(map(str, job_ids[start : start + MOST_IDS])))


def _send(channel: str, payload: str) -> None:
    try:
        connection = jobs_connection()
        statement = NOTIFY if connection.in_atomic_block else NOTIFY_ALONE
        with connection.cursor() as cursor:
            cursor.execute(statement, [channel, payload])
    except (DatabaseError, InterfaceError) as error:
        fields = {"hint": payload, "error": type(error).__name__}
        log_event("wake_failed", logging.INFO, fields)
