"""Repeats the transaction of a handler after a serialization failure or a deadlock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ...domain.outcomes import Snoozed
from ...exceptions import JobsError
from .failures import is_lost_race

R = TypeVar("R")

MOST_TRIES = 10
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Seconds. In a SERIALIZABLE project the settles of other jobs conflict: of 600 jobs of one INSERT
in 16 threads, 6 failed ten times."""

LONGEST_SNOOZE = 60.0


def again_after_lost_races(
    transaction: Callable[[], R],
    *,
    attempt: int,
    ends_at: float,
    should_stop: Callable[[], bool],
    before_next: Callable[[], None],
) -> R | Snoozed:
    """Call ``transaction`` up to ten times, until ``ends_at`` (a time of ``time.monotonic()``), and
    return its result.

    If each call failed to serialize, the job is snoozed, which counts as no failure. An exception
    with which the handler chose the fate of its job is raised.
    """
    longest = FIRST_PAUSE
    tries = 0
    while tries < MOST_TRIES:
        tries += 1
        try:
            return transaction()
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
