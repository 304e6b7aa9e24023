"""Wake idle workers by NOTIFY. It is a hint: polling works without it."""

from __future__ import annotations

import logging
import threading
import time

from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper

from ..models.database import fetch, jobs_connection

CHANNEL = "django_jobs"
CANCELLED = ":cancelled"
QUARANTINED = ":quarantined"
SCHEDULES = ":schedules"
GATES = ":gates"
BLOCKED = ":blocked:"
BLOCKED_BY_KEY = ":keyed:"
"""Sent in place of a queue's name, which never begins with a colon. ``CANCELLED``: the cancel of a
running job was requested. ``QUARANTINED``: a job type was quarantined, and ready jobs of it may be
left to block. ``SCHEDULES``: schedules were changed. ``GATES``: a resource or a tenant was changed,
and jobs of any queue may have room. ``BLOCKED``, before the name of a queue: a job came that waits
at gates, so that a worker looks at these first. ``BLOCKED_BY_KEY``: the same, and a key is its only
gate."""

THROTTLE_SECONDS = 0.02
"""A process sends at most one NOTIFY per queue in this many seconds, because NOTIFY takes a lock
that all committing notifiers share. A worker that was woken looks again after twice this time, so
it finds jobs whose NOTIFY was throttled without waiting for the next poll."""

NOTIFY = "SELECT pg_notify(%s, %s)"

logger = logging.getLogger("django_jobs")
_last_sent: dict[str, float] = {}
_lock = threading.Lock()


def notify_after_commit(queue: str, connection: BaseDatabaseWrapper | None = None) -> None:
    """Wake the workers of ``queue`` once the caller's transaction has committed. ``connection``
    saves looking it up.

    In manual transaction management Django refuses ``on_commit``, or defers it until autocommit is
    restored. There the NOTIFY is part of the transaction, and PostgreSQL sends it once, at the
    commit.
    """
    connection = connection or jobs_connection()
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
        if now - _last_sent.get(queue, -1.0) < THROTTLE_SECONDS:
            return
        _last_sent[queue] = now
    try:
        with jobs_connection().cursor() as cursor:
            cursor.execute(NOTIFY, [CHANNEL, queue])
    except (DatabaseError, InterfaceError) as error:
        logger.info("event=wake_failed queue=%s error=%s", queue, type(error).__name__)
