"""Numbers and durations that people write: whole ones, rates, priorities and the ranks that they
give, and seconds from the types that callers pass; how far two clocks are apart."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeGuard

LONGEST_TIMEOUT = 366 * 86_400.0
LONGEST_AGE = 100 * 366 * 86_400.0
"""Seconds. Longer ones added to a date may pass the year 9999."""

NEVER = float("inf")
"""Seconds until an event that never comes."""

Duration = float | Decimal | timedelta

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds_of(text: str | float | None) -> float | None:
    """``"90s"``, ``"15m"``, ``"12h"``, ``"7d"``, ``"2w"`` or a number of seconds; None stays None.

    Raises ``ValueError`` for anything else.
    """
    if text is None:
        return None
    if isinstance(text, int | float) and not isinstance(text, bool) and text >= 0:
        return float(text)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", str(text))
    if not found:
        raise ValueError(f"{text!r} is not a duration; write it as 90s, 15m, 12h, 7d or 2w")
    return float(found[1]) * SECONDS[found[2]]


def as_seconds(value: Any) -> float | None:
    """Seconds of a number, a ``Decimal`` or a timedelta; None for NaN and any other value.

    Never raises, because ``value`` comes from the project's code.
    """
    if isinstance(value, bool):
        return None
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except Exception:
        return None
    return seconds if seconds == seconds else None  # NaN is not itself


def without_decimal(value: Any) -> Any:
    """A ``Decimal`` as a float: neither JSON nor the clock takes one. Others as they are."""
    seconds = as_seconds(value) if isinstance(value, Decimal) else None
    return value if seconds is None else seconds


UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"))
"""Microseconds."""


def exactly(seconds: float) -> str:
    """An interval in full: ``1 d 2 h 5 min 0.5 s``."""
    rest, parts = round(seconds * 1_000_000), []
    for size, unit in UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {unit}")
    if rest or not parts:
        parts.append(f"{rest / 1_000_000:g} s")
    return " ".join(parts)


SHOWN_UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))


def duration_text(seconds: float) -> str:
    """A duration for people: ``350 ms``, ``4.2 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    unit, size, smaller, smaller_size = next(row for row in SHOWN_UNITS if whole >= row[1])
    rest = whole % size // smaller_size
    return f"{whole // size:,} {unit}" + (f" {rest} {smaller}" if rest else "")


def clock_skew(before: float, there: float, after: float) -> float:
    """How many seconds the clock here is ahead of the one there, at least; negative if it is
    behind. It was ``before`` and ``after`` here when it was asked for and known that it is
    ``there``, so what the answer took is no difference."""
    return max(before - there, 0.0) + min(after - there, 0.0)


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
    return is_whole(value) and LOWEST_PRIORITY <= value <= HIGHEST_PRIORITY
