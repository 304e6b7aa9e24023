"""Repeats the transaction of a handler after a serialization failure or a deadlock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connections
from psycopg import IsolationLevel

from ...conf import conf
from ...domain.outcomes import Snoozed
from ...exceptions import JobsError
from ...models.database import execute
from .failures import is_lost_race

R = TypeVar("R")

MOST_TRIES = 10
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Seconds."""

LONGEST_SNOOZE = 60.0

READ_SINGLE_ROWS = "SET LOCAL enable_seqscan = off"
"""PostgreSQL scans a small table to find one row, and a SERIALIZABLE transaction that has scanned
the live jobs conflicts with each other one that ends a job. Of 600 jobs of 10 ms in 16 threads 484
were repeated, and 196 were snoozed. By index it reads the row of its own job only: none was."""


def may_not_serialize() -> bool:
    """Whether the project's settings ask for more than READ COMMITTED. The default level of the
    database or the role is not known here."""
    raw = connections[conf().database].connection  # None if the handler has closed it
    return getattr(raw, "isolation_level", None) not in (None, IsolationLevel.READ_COMMITTED)


def read_single_rows() -> None:
    """Have the rest of this transaction find rows by index."""
    execute(READ_SINGLE_ROWS, {})


def again_after_lost_races(
    transaction: Callable[[bool], R],
    *,
    attempt: int,
    ends_at: float,
    should_stop: Callable[[], bool],
    before_next: Callable[[], None],
) -> R | Snoozed:
    """Call ``transaction`` up to ten times, until ``ends_at`` (a time of ``time.monotonic()``), and
    return its result. Its argument is whether an earlier call has lost a race.

    If each call failed to serialize, the job is snoozed, which counts as no failure. An exception
    with which the handler chose the fate of its job is raised.
    """
    longest = FIRST_PAUSE
    tries = 0
    while tries < MOST_TRIES:
        tries += 1
        try:
            return transaction(tries > 1)
        except Exception as error:
            if isinstance(error, JobsError) or not is_lost_race(error):
                raise
        pause = random.uniform(0.0, longest)  # noqa: S311 — jitter
        if should_stop() or time.monotonic() + pause >= ends_at:
            break
        time.sleep(pause)
        longest = min(longest * 2, LONGEST_PAUSE)
        before_next()
    times = "once" if tries == 1 else f"{tries} times"
    return Snoozed(
        seconds=random.uniform(0.5, 1.0) * min(attempt, LONGEST_SNOOZE),  # noqa: S311 — jitter
        reason=f"its transaction was rolled back by conflicts in the database {times}",
    )
