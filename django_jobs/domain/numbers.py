"""Numbers that people write: whole ones, rates, priorities and the ranks that they give."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeGuard

from .durations import seconds_of


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether this is an ``int``. True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


LOWEST_RATE = 0.0001
SHORTEST_PERIOD = 0.001
"""Seconds."""
LONGEST_PERIOD = 366 * 86_400.0


class Rate(NamedTuple):
    """A number of starts in each period."""

    number: float
    seconds: float


def rate_of(text: Any) -> Rate:
    """``"50/s"``, ``"100/m"``, ``"3000/h"`` or ``"10/5s"``: a number, and a period of which a 1 may
    be left out.

    Raises ``ValueError`` for anything else, for a rate of 0 and for a period above 366 days.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\S.*?)\s*", text) if _is_text(text) else None
    if found is None:
        raise ValueError(f"{text!r} is not a rate; write it as 50/s, 100/m, 3000/h or 10/5s")
    number, period = float(found[1]), found[2]
    try:
        seconds = seconds_of(period if period[0].isdigit() else f"1{period}") or 0.0
    except ValueError:
        raise ValueError(
            f"{text!r} is not a rate, because {period!r} is not a period; write it as 50/s, 100/m, "
            "3000/h or 10/5s"
        ) from None
    if not LOWEST_RATE <= number < float("inf"):
        raise ValueError(f"{text!r} lets nothing through: a rate is at least {LOWEST_RATE:g}")
    if not SHORTEST_PERIOD <= seconds <= LONGEST_PERIOD:
        raise ValueError(
            f"{text!r} has a period of {seconds:g} s, not of {SHORTEST_PERIOD:g} s to 366 days"
        )
    return Rate(number, seconds)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 50


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
