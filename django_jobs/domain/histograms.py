"""Histograms of seconds, with the buckets of Prometheus: each counts what is at most its bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

BOUNDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""Seconds. The last bucket, which has no bound, is for what took longer."""

BUCKETS = len(BOUNDS) + 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many times lie in each bucket, the last above all bounds, and their sum in seconds."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their mean in seconds; None without any."""
        return self.seconds / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """The seconds that ``share`` of the times, such as 0.95, do not exceed; None without any.

        Estimated within a bucket as Prometheus' ``histogram_quantile`` does: by a straight line.
        Above the last bound it is the last bound.
        """
        return percentile(self.counts, share)

    def meant_percentile(self, share: float) -> float | None:
        """The percentile, if there are enough times that one of them lies above it: 2 for the
        median, 20 for 0.95, 100 for 0.99. The median of a single time is that time, and exact.
        None of too few."""
        if self.count == 1 and share == 0.5:
            return self.seconds
        return self.percentile(share) if round(self.count * (1 - share), 6) >= 1 else None

    def __add__(self, other: Histogram) -> Histogram:
        pairs = zip(self.counts, other.counts, strict=True)
        return Histogram(tuple(one + more for one, more in pairs), self.seconds + other.seconds)


def percentile(counts: Sequence[int], share: float) -> float | None:
    sums = list(accumulate(counts))
    if not sums[-1]:
        return None
    wanted = max(share * sums[-1], 1e-9)
    place = bisect_left(sums, wanted)
    if place == len(BOUNDS):
        return BOUNDS[-1]
    low = BOUNDS[place - 1] if place else 0.0
    above = (sums[place] - wanted) / counts[place]
    return BOUNDS[place] - (BOUNDS[place] - low) * above
