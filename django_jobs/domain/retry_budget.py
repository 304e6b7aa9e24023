"""How many retries of a resource may start: a share of all starts, so that retries cannot crowd
out first attempts when a dependency fails or recovers."""

from __future__ import annotations

from math import floor

WINDOW_SECONDS = 60.0
"""What was started counts for about this long: its weight falls by the factor e in this time."""

ALWAYS = 10
"""Retries in that time that any budget allows, so that a quiet resource can retry at all."""


def retries_allowed(budget: float, starts: float, retries: float) -> int:
    """How many retries may start now, after ``starts`` of which ``retries`` were retries.

    With n more of each, ``retries + n`` must not exceed ``budget * (starts + n)``. The budget is
    below 1.
    """
    within = (budget * starts - retries) / (1 - budget)
    return floor(max(within, ALWAYS - retries, 0.0))
