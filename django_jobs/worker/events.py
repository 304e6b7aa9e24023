"""Events of the worker: what log lines and other receivers are made of."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from ..lifecycle.settling import Settled
from ..lifecycle.signalling import announce
from ..signals import worker_event

QUIET_SECONDS = 5.0


def say(event: str, level: int, **fields: Any) -> None:
    """Tell of something that happened to this worker."""
    worker_event.send_robust(event, level=level, fields=fields)


_said: dict[str, float] = {}


def say_rarely(event: str, level: int, **fields: Any) -> None:
    """:func:`say`, at most once in five seconds for each event: a database that is away is the
    same news every time."""
    now = time.monotonic()
    if now - _said.get(event, float("-inf")) > QUIET_SECONDS:
        _said[event] = now
        say(event, level, **fields)


def tell(settled: Iterable[Settled]) -> None:
    """Announce what was written, and log what was refused."""
    for one in settled:
        if one.decision is None:
            job = one.ending.job
            fields = {"job_id": job.id, "attempt": job.attempt, "worker": job.worker}
            say("lease_lost", logging.WARNING, **fields)
    announce(settled)
