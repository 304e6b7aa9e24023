"""How far two clocks are from each other, by one question and its answer."""

from __future__ import annotations


def clock_skew(before: float, there: float, after: float) -> float:
    """How many seconds the clock here is ahead of the one there, at least; negative if it is
    behind. It was ``before`` and ``after`` here when it was asked for and known that it is
    ``there``, so what the answer took is no difference."""
    return max(before - there, 0.0) + min(after - there, 0.0)
