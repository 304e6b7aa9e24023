"""The rank that orders ready jobs: the lowest starts first."""

from __future__ import annotations

LOWEST_PRIORITY = -100
HIGHEST_PRIORITY = 100

AGEING_WEIGHT = 60.0
"""Seconds of waiting that equal one point of priority, by default. A queue may change it."""

STRICT_WEIGHT = 1e8
"""Seconds: three years a point, so that no wait outweighs a point of priority. At 100 points a
float still resolves today's epoch seconds to within 2e-6."""


def rank(available_at: float, priority: int, weight: float) -> float:
    """``available_at`` (epoch seconds) less ``priority`` points of ``weight`` seconds each.

    Waiting raises priority: by the default weight a job of priority 0 that has waited for ten
    minutes starts before a new one of priority 9.
    """
    return available_at - priority * weight
