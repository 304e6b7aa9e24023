"""What a producer asks before it enqueues."""

from __future__ import annotations

import time

from asgiref.sync import sync_to_async

from ..conf import conf
from ..domain.pressure import Pressure, drain_seconds
from ..lifecycle import backlog
from ..lifecycle.backlog import Backlog
from ..models.database import needing_tables
from ..models.queue import is_queue_name
from .validation import unknown_queue

CACHE_SECONDS = 1.0
RATES_SECONDS = 10.0
"""How long a process keeps a pressure, and the rates of all queues. Reading these takes longer, and
they change slowly."""

_recent: dict[tuple[str, str], tuple[float, Pressure]] = {}
_rates: dict[str, tuple[float, dict[str, float]]] = {}


def queue_pressure(queue: str) -> Pressure:
    """The :class:`Pressure` of a queue, for code that decides whether to enqueue.

    A process keeps the answer for a second, so it costs a statement per queue and second. Raises
    :class:`UnknownQueue`.
    """
    return _cached(queue) or _read(queue)


async def aqueue_pressure(queue: str) -> Pressure:
    """:func:`queue_pressure` for async code."""
    return _cached(queue) or await _read_in_thread(queue)


def forget_recent() -> None:
    """Clear the caches of :func:`queue_pressure`."""
    _recent.clear()
    _rates.clear()


def pressure_of(queue: str, found: Backlog) -> Pressure:
    """The pressure of a queue with this backlog."""
    rate = _rate(queue) if found.ready and not found.is_paused else None
    return Pressure(
        level=found.level,
        ready=found.ready,
        oldest_seconds=found.oldest_seconds,
        drain_seconds=drain_seconds(found.ready, rate),
        gated=found.gated,
    )


def _cached(queue: str) -> Pressure | None:
    cached = _recent.get((conf().database, queue))
    if cached is None or time.monotonic() - cached[0] >= CACHE_SECONDS:
        return None
    return cached[1]


def _read(queue: str) -> Pressure:
    with needing_tables:
        found = backlog.read_backlog(queue) if is_queue_name(queue) else None
        if found is None:
            raise unknown_queue(queue, "queue_pressure")
        pressure = pressure_of(queue, found)
    _recent[conf().database, queue] = time.monotonic(), pressure
    return pressure


_read_in_thread = sync_to_async(_read, thread_sensitive=True)


def _rate(queue: str) -> float | None:
    """The attempts of the queue that ended per second."""
    alias = conf().database
    cached = _rates.get(alias)
    if cached is None or time.monotonic() - cached[0] >= RATES_SECONDS:
        cached = _rates[alias] = time.monotonic(), backlog.rates()
    return cached[1].get(queue)
