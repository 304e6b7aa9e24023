"""Whether anything grew: the median of the last quarter beside that of the second.

The first quarter is for what fills up once: caches, pools, tables up to their retention.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .sampling import Sample


@dataclass(frozen=True, slots=True)
class Bound:
    """How much more the last quarter may have than the second: a share of it, and so much."""

    share: float
    amount: float


BOUNDS = {
    "memory (MB)": Bound(0.10, 5),
    "file descriptors": Bound(0.0, 4),  # an isolated child has some while it runs
    "processes": Bound(0.0, 1),
    "connections": Bound(0.0, 2),
    "table of jobs (MB)": Bound(0.20, 4),
    "table of runs (MB)": Bound(0.20, 4),
    "other tables (MB)": Bound(0.20, 2),  # what became of each due time is kept for 90 days
    "indexes (MB)": Bound(0.25, 4),
    "dead rows": Bound(1.0, 20_000),  # between two vacuums
    "backlog": Bound(0.0, 1_000),  # two seconds of work
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report."""

    name: str
    second: float
    last: float
    highest: float
    bound: float

    @property
    def is_kept(self) -> bool:
        """Whether it stayed below its bound."""
        return self.last <= self.bound


def compare(samples: Sequence[Sample]) -> list[Line]:
    """A line for each of ``BOUNDS``. Needs four samples."""
    quarter = len(samples) // 4
    if not quarter:
        raise ValueError("four samples are needed")
    lines = []
    for name, bound in BOUNDS.items():
        values = [sample[name] for sample in samples]
        second = statistics.median(values[quarter : 2 * quarter])
        last = statistics.median(values[-quarter:])
        most = second * (1 + bound.share) + bound.amount
        lines.append(Line(name, second, last, max(values), most))
    return lines


def markdown(title: str, lines: Sequence[Line]) -> str:
    """A table for people and for files."""
    rows = [
        f"| {line.name} | {line.second:,.1f} | {line.last:,.1f} | {line.bound:,.1f} |"
        f" {line.highest:,.1f} | {'yes' if line.is_kept else '**no**'} |"
        for line in lines
    ]
    head = ["| | second quarter | last quarter | at most | highest | kept |", "|---" * 6 + "|"]
    return "\n".join([f"# {title}", "", *head, *rows, ""])
