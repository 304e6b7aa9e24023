"""What a producer asks before it enqueues."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

from asgiref.sync import sync_to_async

from ..conf import conf
from ..domain.pressure import Pressure, ResourcePressure, drain_seconds, level_of
from ..lifecycle import backlog
from ..lifecycle.backlog import MOST_COUNTED, Backlog
from ..lifecycle.gate_limits import Gate, waiting_at
from ..lifecycle.gates.supply import HELD
from ..models.database import fetch, needing_tables
from ..models.queue import is_queue_name
from .gating import unknown_resource
from .validation import unknown_queue

P = TypeVar("P", bound=Pressure)

CACHE_SECONDS = 1.0
RATES_SECONDS = 10.0
"""How long a process keeps a pressure, and the rates of all queues. Reading these takes longer, and
they change slowly."""

_recent: dict[tuple[str, str], tuple[float, Pressure]] = {}
_recent_resources: dict[tuple[str, str], tuple[float, ResourcePressure]] = {}
_rates: dict[str, tuple[float, dict[str, float]]] = {}


def queue_pressure(queue: str) -> Pressure:
    """The :class:`Pressure` of a queue, for code that decides whether to enqueue.

    A process keeps the answer for a second, so it costs a statement per queue and second. Raises
    :class:`UnknownQueue`.
    """
    return _cached(queue, _recent) or _read(queue)


async def aqueue_pressure(queue: str) -> Pressure:
    """:func:`queue_pressure` for async code."""
    return _cached(queue, _recent) or await _read_in_thread(queue)


def resource_pressure(name: str) -> ResourcePressure:
    """The :class:`ResourcePressure` of a resource, as :func:`queue_pressure` of a queue: two
    statements per resource and second. Raises :class:`UnknownResource`."""
    return _cached(name, _recent_resources) or _read_resource(name)


async def aresource_pressure(name: str) -> ResourcePressure:
    """:func:`resource_pressure` for async code."""
    return _cached(name, _recent_resources) or await _read_resource_in_thread(name)


def forget_recent() -> None:
    """Clear the caches of :func:`queue_pressure` and :func:`resource_pressure`."""
    _recent.clear()
    _recent_resources.clear()
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


def _cached(name: str, recent: Mapping[tuple[str, str], tuple[float, P]]) -> P | None:
    cached = recent.get((conf().database, name))
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


def _read_resource(name: str) -> ResourcePressure:
    with needing_tables:
        rows = fetch(HELD, {"name": name, "most": MOST_COUNTED}) if is_queue_name(name) else []
        if not rows:
            raise unknown_resource(name, "resource_pressure")
        limit, breaker, tokens, rate, is_paused, ready, oldest = rows[0]
        gate = Gate("resource", name)
        gated = waiting_at({gate: MOST_COUNTED if limit is None else limit})[gate]
    is_let = rate is not None and not is_paused and breaker == "closed"
    waits = ready + gated
    pressure = ResourcePressure(
        level=level_of(gated, limit),
        ready=ready,
        oldest_seconds=oldest,
        drain_seconds=drain_seconds(waits, rate if is_let else None),
        gated=gated,
        breaker=breaker,
        tokens=tokens,
    )
    _recent_resources[conf().database, name] = time.monotonic(), pressure
    return pressure


_read_resource_in_thread = sync_to_async(_read_resource, thread_sensitive=True)


def _rate(queue: str) -> float | None:
    """The attempts of the queue that ended per second."""
    alias = conf().database
    cached = _rates.get(alias)
    if cached is None or time.monotonic() - cached[0] >= RATES_SECONDS:
        cached = _rates[alias] = time.monotonic(), backlog.rates()
    return cached[1].get(queue)
