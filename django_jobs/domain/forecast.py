"""When a backlog will be gone, from what arrived and what ended lately."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second."""

    arrived: float
    ended: float


def rates_of(ready: int, ready_before: int, ended: int, seconds: float) -> Rates:
    """The rates of the last ``seconds``, in which attempts ended, and from ``ready_before`` on to
    ``ready`` jobs. A job arrived if it is here or has ended, and was not here before."""
    arrived = max(ready - ready_before + ended, 0)
    return Rates(arrived=arrived / seconds, ended=ended / seconds)


def drain_seconds(ready: int, rates: Rates | None) -> float | None:
    """Seconds until none of the ``ready`` jobs and of those that arrive meanwhile is left. None if
    they become more, or the rates are not known."""
    if not ready:
        return 0.0
    if rates is None or rates.ended <= rates.arrived:
        return None
    return ready / (rates.ended - rates.arrived)
