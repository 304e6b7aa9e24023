"""Makes a transaction once more that lost a race in the database: a serialization failure or a
deadlock, in which PostgreSQL rolls one of two back and expects it to come again."""

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
"""Seconds. Where the project is SERIALIZABLE, the settles of neighbours conflict: of 600 jobs of
one INSERT in 16 threads, 6 lost ten times."""

LONGEST_SNOOZE = 60.0


def again_after_lost_races(
    transaction: Callable[[], R],
    *,
    attempt: int,
    ends_at: float,
    should_stop: Callable[[], bool],
    before_next: Callable[[], None],
) -> R | Snoozed:
    """What ``transaction`` returns, made up to ten times, while there is time until ``ends_at`` (of
    ``time.monotonic()``). Where it lost each time, the job is to come back later: that is no
    failure. What a handler chose itself is raised."""
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
