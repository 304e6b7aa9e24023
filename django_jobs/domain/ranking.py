"""The rank of a job: its due time in epoch seconds, less its priority times its queue's weight. The
ready job of the lowest rank starts first.

Waiting raises priority: by the default weight a job of priority 0 that has waited for ten minutes
starts before a new one of priority 9.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from .numbers import is_whole

LOWEST_PRIORITY = -100
HIGHEST_PRIORITY = 100

AGEING_WEIGHT = 60.0
"""Seconds of waiting that equal one point of priority, by default. A queue may change it."""

STRICT_WEIGHT = 1e8
"""Seconds: three years a point, so that no wait outweighs a point of priority. At 100 points a
float still resolves today's epoch seconds to within 2e-6."""


def is_priority(value: Any) -> TypeGuard[int]:
    """Whether this is a whole number from -100 to 100."""
    return is_whole(value) and LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY
