"""The one number that orders ready jobs: the smaller, the sooner."""

from __future__ import annotations

LOWEST_PRIORITY = -100
HIGHEST_PRIORITY = 100

AGEING_WEIGHT = 60.0
"""Seconds of waiting that one point of priority is worth, unless the queue says otherwise."""

STRICT_WEIGHT = 1e8
"""Three years a point: no wait makes up for a point of priority. A float keeps microseconds at
100 such points above today's epoch seconds to within 2e-6."""


def rank(available_at: float, priority: int, weight: float) -> float:
    """``available_at`` (epoch seconds) less ``priority`` points of ``weight`` seconds each.

    Waiting is priority: with the default weight a job of priority 0 that has waited ten minutes
    goes before a fresh one of priority 9.
    """
    return available_at - priority * weight
