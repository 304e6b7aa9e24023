"""Handlers that spawn others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from django_jobs import job

from .long_jobs import this_run


@job
def numbered(number: int) -> int:
    """One of a fan-out."""
    return number


@job
def total() -> list[int]:
    """How many there are, and their sum."""
    results = [child.result for child in this_run().children()]
    return [len(results), sum(results)]


@job
def spawn_through_crashes(count: int) -> None:
    """Spawn children, and kill the process in the middle of the first two attempts."""
    attempt = this_run().attempt

    def payloads() -> Iterator[dict[str, int]]:
        for number in range(count):
            if number == count * attempt // 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"number": number}

    this_run().spawn(numbered, payloads() if attempt < 3 else numbers(count), then=total)


def numbers(count: int) -> Iterator[dict[str, int]]:
    """Payloads of ``numbered``."""
    return ({"number": number} for number in range(count))
