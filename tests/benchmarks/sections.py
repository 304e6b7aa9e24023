"""The sections of the benchmark. Each returns figures with their raw partners.

A section takes how often to measure and a scale; 1 is the full size.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from .measuring import Figure

Section = Callable[[int, float], list[Figure]]

SECTIONS: dict[str, str] = {
    "drain": "draining.one_process",
    "drain_two": "draining.two_processes",
    "peers": "peers.pgqueuer",
    "others": "comparing.others",
    "enqueue": "enqueueing.in_transactions",
    "enqueue_cpu": "enqueueing.processor_time",
    "enqueue_many": "enqueueing.in_bulk",
    "pickup": "latency.pickup",
    "due": "latency.due",
    "schedules": "scheduling.schedules",
    "sizes": "sizes.beside_many_rows",
    "snapshot": "sizes.under_a_held_snapshot",
    "notify": "enqueueing.by_many_clients",
    "idle": "idling.idle",
    "slow": "mixing.slow_jobs",
    "awaiting": "mixing.async_handlers",
    "gates": "gating.gates",
    "workflows": "flowing.workflows",
    "fairness": "sharing.fairness",
    "rate": "sharing.rate",
    "orm": "mixing.orm_handlers",
    "observed": "draining.observed",
    "month": "month.month",
    "doctor": "examining.examinations",
    "pages": "console.pages",
    "consoles": "console.drain",
}
"""Names and functions, in the order they are run. The functions need Django, the names do not."""

OF_THE_ADMIN = {"month", "pages", "consoles"}
"""Sections that need the admin. Run only if they are named, as ``doctor``: most need gigabytes."""
IF_NAMED = {*OF_THE_ADMIN, "doctor"}
ALL = [name for name in SECTIONS if name not in IF_NAMED]


def measure(name: str, times: int, scale: float) -> list[Figure]:
    """The figures of a section."""
    module, function = SECTIONS[name].split(".")
    section: Section = getattr(import_module(f".{module}", __package__), function)
    return section(times, scale)
