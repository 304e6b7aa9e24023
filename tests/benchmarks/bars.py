"""The bars of ``docs/performance.md`` that are ratios, and how far a figure may fall behind.

``goal`` is what the project promises. ``limit`` is where ``--bars`` fails: what was measured at
this small size, less the noise of several runs. So a drain of 1.2 that falls to 0.8 is seen though
its goal is 0.4, and one that misses its goal cannot get worse unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from .measuring import Figure
from .sections import measure


@dataclass(frozen=True, slots=True)
class Bar:
    """The ratio of the figure of ``section`` whose name contains ``name``, as does its row of the
    page."""

    section: str
    name: str
    goal: float
    limit: float

    def is_missed(self, figure: Figure) -> bool:
        """Whether the figure is beyond the limit."""
        ratio = ratio_of(figure)
        return ratio < self.limit if figure.better == "more" else ratio > self.limit

    def verdict(self, figure: Figure) -> str:
        """The line of the report."""
        return (
            f"{figure.name}: {ratio_of(figure):.2f} of {figure.raw_name} "
            f"(n={len(figure.values)}), bar {self.limit:g}, goal {self.goal:g}: "
            f"{'missed' if self.is_missed(figure) else 'ok'}"
        )


def ratio_of(figure: Figure) -> float:
    """The median of the ratios of the turns. What else the machine does changes from turn to turn,
    and less within one: of a load of 3 to 15, the ratio of the medians made 2.8 where it is 1.1."""
    return median(one / raw for one, raw in zip(figure.values, figure.raw, strict=True))


SIZES = {
    "drain": 0.3,
    "drain_two": 0.3,
    "peers": 0.3,
    "enqueue": 0.25,
    "enqueue_many": 0.5,
    "pickup": 0.1,
    "sizes": 0.2,
    "snapshot": 0.3,
    "notify": 0.25,
    "slow": 0.2,
    "awaiting": 0.2,
    "gates": 0.25,
    "workflows": 0.25,
    "fairness": 0.05,
    "observed": 0.3,
    "consoles": 0.5,
}
"""The scale of each section."""

BARS = (
    Bar("drain", ", one process", 0.4, 0.75),
    Bar("drain_two", "two processes, to one", 1.3, 0.9),
    Bar("peers", "to PgQueuer 1.6, handlers in threads", 1.2, 1.5),
    Bar("peers", "to PgQueuer 1.6, async handlers", 1.0, 1.1),
    Bar("enqueue", "one transaction each", 0.8, 0.5),
    Bar("enqueue_many", "from a list", 0.4, 0.45),
    Bar("enqueue_many", "each with a key", 0.4, 0.4),
    Bar("pickup", "a free key, to a plain one", 1.5, 2),
    Bar("pickup", "a free resource, to a plain one", 1.5, 2),
    Bar("pickup", "a tenant, to a plain one", 1.5, 2),
    Bar("sizes", "in the backlog", 0.9, 0.6),
    Bar("sizes", "scheduled", 0.9, 0.7),
    Bar("sizes", "finished", 0.9, 0.7),
    Bar("sizes", "blocked", 0.9, 0.7),
    Bar("snapshot", "a held snapshot, a worker", 0.9, 0.7),
    Bar("snapshot", "a held snapshot, claims of 100,", 0.9, 0.65),
    Bar("snapshot", "a held snapshot, claims of 10,", 0.9, 0.7),
    Bar("notify", "by 64 clients", 2, 2),
    Bar("slow", "two workers of 4 threads", 1.1, 1.1),
    Bar("awaiting", "in one process", 2, 1.3),
    Bar("gates", "20,000 keys of 1", 0.5, 0.4),
    Bar("gates", "1,000 keys of 2", 0.6, 0.42),
    Bar("gates", "10 keys of 50", 0.65, 0.4),
    Bar("gates", "one resource of 100", 0.7, 0.2),
    Bar("gates", "1,000 tenants", 0.65, 0.33),
    Bar("workflows", "fan-in into one", 0.85, 0.6),
    Bar("workflows", "chains of three", 0.55, 0.42),
    Bar("workflows", "diamonds", 0.45, 0.42),
    Bar("workflows", "a step of a chain", 2, 2),
    Bar("fairness", "jobs of another", 2, 1.5),
    Bar("observed", "RUN_LOGS", 0.95, 0.85),
    Bar("consoles", "consoles", 0.97, 0.85),
)


def bar_of(section: str, figure: Figure) -> Bar | None:
    """The bar of a figure, if it has one."""
    for bar in BARS:
        if bar.section == section and bar.name in figure.name:
            return bar
    return None


def measure_bars(section: str, times: int, scale: float) -> list[Figure]:
    """The figures of a section that have a bar, at its small size. If one misses it, all are
    measured once more: a busy moment of the machine is then outvoted in twice as many turns."""
    figures = measure(section, times, scale * SIZES[section])
    found = by_bar(section, figures)
    if any(bar.is_missed(figure) for bar, figure in found.items()):
        again = measure(section, times, scale * SIZES[section])
        for figure, other in zip(figures, again, strict=True):
            figure.values = figure.values + other.values  # one list may be of several figures
            figure.raw = figure.raw + other.raw
    return list(found.values())


def by_bar(section: str, figures: list[Figure]) -> dict[Bar, Figure]:
    """The figures that have a bar. Raises ``RuntimeError`` if a bar of the section has none."""
    found = {bar: figure for figure in figures if (bar := bar_of(section, figure))}
    # Without PgQueuer there are no figures at all.
    if without := [bar for bar in BARS if bar.section == section and figures and bar not in found]:
        raise RuntimeError(f"no figure has the bar of {without}")
    return found
