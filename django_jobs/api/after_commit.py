"""Enqueues after the commit of data in another database than the jobs'."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from ..models.database import is_of_a_test
from .duplicates import key_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .job_type import JobType


def enqueue_on_commit(job_type: JobType[..., Any], payload: dict[str, Any]) -> None:
    """Validate the request now, with the payload as it is now; insert the job later."""
    text = job_type.encoded_payload(payload)
    key_of(job_type, job_type.gates_of(payload))
    job_type.request()
    call_after_all_commits(lambda: job_type.insert(json.loads(text)))


def call_after_all_commits(work: Callable[[], object]) -> None:
    """Call ``work`` once all transactions have committed that are open in this thread; at once if
    there is none. Never if one of them rolls back. That of a ``TestCase`` does not count.

    Raises ``TransactionManagementError`` if one is managed without ``atomic``: Django does not
    notice its commit.
    """
    open_ones = connections.all(initialized_only=True)
    waiting = {connection.alias for connection in open_ones if _may_roll_back(connection)}

    def committed(alias: str) -> None:
        waiting.discard(alias)
        if not waiting:
            work()

    for alias in list(waiting):
        transaction.on_commit(partial(committed, alias), using=alias)
    if not waiting:
        work()


def _may_roll_back(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block:
        return not is_of_a_test(connection)
    return connection.connection is not None and not connection.autocommit
