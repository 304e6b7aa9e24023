"""Where the attempts of a job are on a line of time, as shares of its width."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from .states import RunState

LEAST = 0.4
"""Percent. What took less time is drawn this wide, to be seen at all."""

INTERRUPTED = (RunState.RELEASED, RunState.LOST)
"""An attempt that ends so leaves the job its due time: the next one is due at its end."""


def wait_of(due: datetime, claimed: datetime, earlier_end: datetime | None) -> timedelta:
    """How long an attempt was due before it was claimed. ``earlier_end`` is the end of the one
    before it, if that was interrupted."""
    return claimed - (due if earlier_end is None else max(due, earlier_end))


def gate_time_of(due: datetime, ready: datetime | None, earlier_end: datetime | None) -> timedelta:
    """The part of that wait until its gates let the attempt go; none without gates."""
    return timedelta() if ready is None else max(wait_of(due, ready, earlier_end), timedelta())


class Stretch(NamedTuple):
    """An attempt: when it was due, claimed and ended, in epoch seconds. None is not yet."""

    due: float
    claimed: float | None = None
    ended: float | None = None


class Bar(NamedTuple):
    """A part of an attempt: ``start`` and ``width`` in percent, ``seconds`` as long as it took."""

    kind: Literal["pause", "wait", "run"]
    start: float
    width: float
    seconds: float


def bars_of(stretches: Sequence[Stretch], begin: float, end: float) -> list[list[Bar]]:
    """The bars of each attempt, from ``begin`` to ``end``: the pause before it was due, its wait
    for a worker, its run."""
    rows, previous = [], begin
    for one in stretches:
        # A released job keeps its due time, which was before the attempt that was released.
        due = max(one.due, previous)
        claimed = end if one.claimed is None else max(one.claimed, due)
        ended = end if one.ended is None else max(one.ended, claimed)
        parts: list[tuple[Literal["pause", "wait", "run"], float, float]] = [
            ("pause", previous, due),
            ("wait", due, claimed),
        ]
        if one.claimed is not None:
            parts.append(("run", claimed, ended))
        bars = [_bar(kind, since, until, begin, end) for kind, since, until in parts]
        rows.append([bar for bar in bars if bar.seconds > 0 or bar.kind == "run"])
        previous = ended
    return rows


def _bar(
    kind: Literal["pause", "wait", "run"], since: float, until: float, begin: float, end: float
) -> Bar:
    whole = max(end - begin, 1e-6)
    since, until = min(max(since, begin), end), min(max(until, begin), end)
    width = max((until - since) / whole * 100, LEAST)
    start = min((since - begin) / whole * 100, 100 - width)
    return Bar(kind, start, width, until - since)
