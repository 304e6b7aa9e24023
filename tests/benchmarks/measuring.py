"""What a section returns, how often it is run, and what is shown meanwhile."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Figure:
    """One line of the report: the product's figures beside the raw limit's, of the same run.

    ``better`` says which way is better, ``"more"`` (a rate) or ``"less"`` (a time). ``bar`` is
    what the project promises for the figure itself, for the reader; those of the ratios are in
    :mod:`.bars`.
    """

    name: str
    unit: str
    values: list[float]
    raw: list[float] = field(default_factory=list)
    raw_name: str = ""
    better: str = "more"
    bar: str = ""

    @property
    def median(self) -> float:
        """Of the product's figures."""
        return statistics.median(self.values)

    @property
    def ratio(self) -> float | None:
        """Median to median of the raw figures."""
        raw = statistics.median(self.raw) if self.raw else 0.0
        return self.median / raw if raw else None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "name": self.name,
            "unit": self.unit,
            "values": self.values,
            "raw": self.raw,
            "raw_name": self.raw_name,
            "median": self.median,
            "ratio": self.ratio,
            "better": self.better,
            "bar": self.bar,
        }


class Progress:
    """A bar on a terminal; lines are written around it. Without tqdm there are the lines only."""

    def __init__(self) -> None:
        self._bar: Any = None

    def sections(self, names: list[str]) -> Iterator[str]:
        """The names one after the other, the bar with them."""
        try:
            from tqdm import tqdm
        except ImportError:
            yield from names
            return
        with tqdm(total=len(names), unit="section", disable=None) as self._bar:
            for name in names:
                self._bar.set_description(name)
                yield name
                self._bar.update()
        self._bar = None

    def step(self, text: str) -> None:
        """Where in its section it is."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def emit(self, text: str) -> None:
        """A line that stays."""
        if self._bar is None:
            sys.stdout.write(f"{text}\n")
        else:
            self._bar.write(text)
        sys.stdout.flush()


progress = Progress()


def turns(times: int) -> Iterator[int]:
    """``range(times)``, shown in the bar."""
    for number in range(times):
        progress.step(f"{number + 1} of {times}")
        yield number


def repeat(times: int, *measures: Callable[[], T]) -> list[list[T]]:
    """Run the measures in turns, ``times`` times each, so that a busy moment of the machine falls
    on all of them."""
    found: list[list[T]] = [[] for _ in measures]
    for number in range(times):
        for index, measure in enumerate(measures):
            progress.step(f"{number + 1} of {times}, {index + 1} of {len(measures)}")
            found[index].append(measure())
    return found


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
