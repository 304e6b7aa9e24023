"""Handlers that spawn others."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator

from django_jobs import job

from .long_jobs import this_run


@job
def numbered(number: int) -> int:
    """One of a fan-out."""
    return number


@job
def total() -> dict[str, int]:
    """How many there are, their sum, and the memory that it took to read them."""
    count = total = 0
    before = peak()
    for child in this_run().children():
        count += 1
        total += child.result
    return {"count": count, "sum": total, "kib": peak() - before}


@job
def spawn_through_crashes(count: int) -> dict[str, float]:
    """Spawn children, and kill the process in the middle of the first two attempts. Return the
    memory and the seconds that the last one took."""
    attempt = this_run().attempt

    def payloads() -> Iterator[dict[str, int]]:
        for number in range(count):
            if number == count * attempt // 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"number": number}

    before, began = peak(), time.monotonic()
    this_run().spawn(numbered, payloads() if attempt < 3 else numbers(count), then=total)
    return {"kib": peak() - before, "seconds": round(time.monotonic() - began, 1)}


def peak() -> int:
    """KiB of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def numbers(count: int) -> Iterator[dict[str, int]]:
    """Payloads of ``numbered``."""
    return ({"number": number} for number in range(count))
