"""Tell idle workers that there may be something to do. A hint: polling works without it."""

from __future__ import annotations

import logging
import threading
import time

from django.db import DatabaseError, InterfaceError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from ..conf import conf
from ..models.database import fetch, jobs_connection

CHANNEL = "django_jobs"
CANCELLED = ":cancelled"
QUARANTINED = ":quarantined"
"""In place of the name of a queue, none of which begins so: a running job is to be cancelled; a job
type was quarantined, and ready jobs of it may be left to move."""

THROTTLE_SECONDS = 0.02
"""A NOTIFY takes a lock that all committing notifiers share, so a process sends at most one per
queue in this time. A worker that was woken looks once more after twice this time, so whatever
was written in the shadow of the throttle is found without waiting for the next poll."""

NOTIFY = "SELECT pg_notify(%s, %s)"

logger = logging.getLogger("django_jobs")
_last_sent: dict[str, float] = {}
_lock = threading.Lock()


def notify_after_commit(queue: str) -> None:
    """Wake the workers of ``queue`` once the caller's transaction has committed.

    In manual transaction management ``on_commit`` is refused, or waits for the return to
    autocommit. There the NOTIFY is part of the transaction: PostgreSQL sends it, once, when it
    commits.
    """
    if _is_manual(jobs_connection()):
        fetch(NOTIFY, [CHANNEL, queue])
    else:
        transaction.on_commit(lambda: notify(queue), using=conf().database, robust=True)


def _is_manual(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        return not connection.commit_on_exit
    return not connection.get_autocommit()


def notify(queue: str) -> None:
    """Wake the workers of ``queue`` now. A failure is logged and harms nobody."""
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
