"""What a producer asks before it enqueues."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

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
"""How long a process keeps a pressure, and the rates of all queues, which change slowly."""

_recent: dict[tuple[str, Callable[[str], Pressure], str], tuple[float, Any]] = {}
_rates: dict[str, tuple[float, dict[str, float]]] = {}


def queue_pressure(queue: str) -> Pressure:
    """The :class:`Pressure` of a queue, for code that decides whether to enqueue.

    A process keeps the answer for a second, so it costs a statement per queue and second. Raises
    :class:`UnknownQueue`.
    """
    return _cached(_read_queue, queue) or _look(_read_queue, queue)


async def aqueue_pressure(queue: str) -> Pressure:
    """:func:`queue_pressure` for async code."""
    return _cached(_read_queue, queue) or await _look_in_thread(_read_queue, queue)


def resource_pressure(name: str) -> ResourcePressure:
    """The :class:`ResourcePressure` of a resource, as :func:`queue_pressure` of a queue: two
    statements per resource and second. Raises :class:`UnknownResource`."""
    return _cached(read_resource, name) or _look(read_resource, name)


async def aresource_pressure(name: str) -> ResourcePressure:
    """:func:`resource_pressure` for async code."""
    return _cached(read_resource, name) or await _look_in_thread(read_resource, name)


def forget_recent() -> None:
    """Clear the caches of :func:`queue_pressure` and :func:`resource_pressure`."""
    _recent.clear()
    _rates.clear()


def pressure_of(queue: str, found: Backlog) -> Pressure:
    rate = _rate(queue) if found.ready and not found.is_paused else None
    return Pressure(
        level=found.level,
        ready=found.ready,
        oldest_seconds=found.oldest_seconds,
        drain_seconds=drain_seconds(found.ready, rate),
        gated=found.gated,
    )


def _cached(read: Callable[[str], P], name: str) -> P | None:
    if not isinstance(name, str):  # nor is it hashed
        return None
    looked_at, pressure = _recent.get((conf().database, read, name), (-inf, None))
    return pressure if time.monotonic() - looked_at < CACHE_SECONDS else None


def _look(read: Callable[[str], P], name: str) -> P:
    with needing_tables:
        pressure = read(name)
    _recent[conf().database, read, name] = time.monotonic(), pressure
    return pressure


_look_in_thread = sync_to_async(_look, thread_sensitive=True)


def _read_queue(queue: str) -> Pressure:
    found = backlog.read_backlog(queue) if is_queue_name(queue) else None
    if found is None:
        raise unknown_queue(queue, "queue_pressure")
    return pressure_of(queue, found)


def read_resource(name: str) -> ResourcePressure:
    """As :func:`resource_pressure`, and as of now."""
    rows = fetch(HELD, {"name": name, "most": MOST_COUNTED}) if is_queue_name(name) else []
    if not rows:
        raise unknown_resource(name, "resource_pressure")
    limit, breaker, tokens, rate, is_paused, ready, oldest = rows[0]
    gate = Gate("resource", name)
    gated = waiting_at({gate: MOST_COUNTED if limit is None else limit})[gate]
    is_let = rate is not None and not is_paused and breaker == "closed"
    return ResourcePressure(
        level=level_of(gated, limit),
        ready=ready,
        oldest_seconds=oldest,
        drain_seconds=drain_seconds(ready + gated, rate if is_let else None),
        gated=gated,
        breaker=breaker,
        tokens=tokens,
    )


def _rate(queue: str) -> float | None:
    """The attempts of the queue that ended per second."""
    alias = conf().database
    cached = _rates.get(alias)
    if cached is None or time.monotonic() - cached[0] >= RATES_SECONDS:
        cached = _rates[alias] = time.monotonic(), backlog.rates()
    return cached[1].get(queue)
