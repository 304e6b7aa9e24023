"""The thread of the heartbeat process that does the standing duties: reaping, retention."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from .connections import (
    DATABASE_ERRORS,
    drop_connection,
    own_connection,
    ping,
    say_rarely,
)
from .options import Options

SHORTEST_GRACE = 2.0
"""Seconds. A heartbeat that failed tries again twice a second."""


class StandingDuty(Protocol):
    """Something that has to be done every so often, by any worker."""

    @property
    def name(self) -> str:
        """For the log."""

    @property
    def every(self) -> float:
        """Seconds between two times."""

    @property
    def run_once(self) -> Callable[[], int]:
        """Does a bounded piece of it and says how many rows it changed."""

    def has_more(self, changed: int) -> bool:
        """Whether that many rows mean that there is more to do."""


def run(duties: Sequence[StandingDuty], options: Options) -> None:
    """The standing duties, on a thread and connection of their own: a slow one delays no beat."""
    own_connection()
    due: dict[str, float] = {}
    connected = False
    while True:
        try:
            if not connected:
                ping()
                connected = True
                # Living workers first get two beats to renew: when the database was away for
                # longer than a lease, or the machine slept, all leases have run out and nobody is
                # lost.
                grace = time.monotonic() + max(2 * options.beat, SHORTEST_GRACE)
                due = {duty.name: max(due.get(duty.name, 0.0), grace) for duty in duties}
            _do_what_is_due(duties, due)
        except DATABASE_ERRORS as error:
            connected = False
            drop_connection()
            say_rarely("duty_failed", logging.WARNING, error=type(error).__name__)
            time.sleep(random.uniform(0.2, 0.5))  # noqa: S311 — jitter
            continue
        until = min(due.values(), default=time.monotonic() + 60)
        # Whoever slept with us has had no time to renew either.
        connected = not _slept_too_long(until - time.monotonic(), options.beat)


def _slept_too_long(seconds: float, patience: float) -> bool:
    """Sleep; whether it took longer by more than ``patience`` seconds, because this process or its
    whole machine stood still. The first shows on the monotonic clock, the second on the other."""
    asked = max(seconds, 0.05)
    steady, wall = time.monotonic(), time.time()
    time.sleep(asked)
    return max(time.monotonic() - steady, time.time() - wall) > asked + patience


def _do_what_is_due(duties: Sequence[StandingDuty], due: dict[str, float]) -> None:
    for duty in duties:
        now = time.monotonic()
        if now < due[duty.name]:
            continue
        due[duty.name] = now + duty.every * random.uniform(0.8, 1.0)  # noqa: S311 — jitter
        try:
            if duty.has_more(duty.run_once()):
                due[duty.name] = 0.0
        except DATABASE_ERRORS:
            raise
        except Exception as error:  # one duty's fault must not end the others
            say_rarely("duty_failed", logging.ERROR, duty=duty.name, error=repr(error))
