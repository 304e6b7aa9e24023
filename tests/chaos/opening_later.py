"""The negative control of workflows and operations: steps open after the commit of what ended, and
chunks are counted after the commit of what they changed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from functools import partial

from django.db import transaction

from django_jobs.lifecycle import settling
from django_jobs.lifecycle.opening import open_next
from django_jobs.lifecycle.operations import bulk
from django_jobs.lifecycle.settling import Ending, HandOver, Settled, ended_steps
from django_jobs.models import BulkOperation
from django_jobs.models.database import jobs_connection

PAUSE = 0.1
"""Seconds between the two, so that a short storm comes between them."""
ENDS_BETWEEN = 0.05
"""How often the process ends there by itself: in three storms beside other work, none came between
a settle of steps and their opening."""


def break_settling() -> None:
    """From now on in this process."""
    assert callable(settling._settle_and_open)
    settling._settle_and_open = _settle_then_open


def _settle_then_open(
    endings: Sequence[Ending], now: float | None, hand_over: HandOver
) -> list[Settled]:
    settled = settling._settle_and_record(endings, now, hand_over)
    steps = ended_steps(settled)
    time.sleep(PAUSE)
    if steps and random.random() < ENDS_BETWEEN:
        os.kill(os.getpid(), signal.SIGKILL)
    with transaction.atomic(using=jobs_connection().alias):
        hand_over.queues |= open_next(steps).queues
    hand_over.freed = True
    return settled


def break_chunks() -> None:
    """From now on in this process."""
    store = bulk.store

    def count(operation: BulkOperation) -> None:
        time.sleep(PAUSE)
        store(operation)

    def count_later(operation: BulkOperation) -> None:
        alias = jobs_connection().alias
        transaction.on_commit(partial(count, operation), using=alias, robust=True)

    bulk.store = count_later
