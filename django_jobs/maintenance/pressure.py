"""Sends a signal when the pressure of a queue reaches another level."""

from __future__ import annotations

import logging

from ..api.pressure import pressure_of
from ..lifecycle.backlog import limited_queues, set_level
from ..signals import queue_pressure_changed, worker_event


def watch_pressure() -> int:
    """Compare the level of each queue that has a ``max_backlog`` with that of the last look, by any
    worker, and send ``queue_pressure_changed`` for each other one; return how many."""
    changed = 0
    for queue, previous, found in limited_queues():
        level = found.level
        if level == previous or not set_level(queue, previous, level):
            continue
        changed += 1
        pressure = pressure_of(queue, found)
        fields = {
            "queue": queue,
            "pressure": level,
            "previous": previous,
            "ready": pressure.ready,
            "gated": pressure.gated,
            "oldest_seconds": pressure.oldest_seconds,
            "drain_seconds": pressure.drain_seconds,
        }
        severity = logging.INFO if level == "ok" else logging.WARNING
        worker_event.send_robust("queue_pressure_changed", level=severity, fields=fields)
        queue_pressure_changed.send_robust(
            queue, queue=queue, level=level, previous=previous, pressure=pressure
        )
    return changed
