"""Charts as the templates in ``charts/`` draw them, and their geometry: series as the coordinates
of lines, areas and stacked bars. These are text with a decimal point, as in SVG. The origin is at
the top left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from ...separators import number_text

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise


EDGE = 1.0
"""What a line keeps free above and below, so that its stroke is not cut."""
THINNEST = 1.0
"""The height of a part that is not zero: one failure among thousands is seen."""
BARS_WIDTH, BARS_HEIGHT, GAP = 1200, 150, 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """The paths of a line and of the area below it. An unknown value is a gap in both."""

    width: int
    height: int
    line: str
    area: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the series ``name``."""

    name: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A column of bars for each point, each from the bottom to the top."""

    width: int
    height: int
    top: float
    columns: list[list[Bar]]


def line(values: Sequence[float | None], *, width: int = 120, height: int = 24) -> Line:
    """A line from the left edge to the right one. The largest value is at the upper edge."""
    highest = max((value for value in values if value is not None), default=0.0)
    step = width / max(len(values) - 1, 1)
    room = height - 2 * EDGE
    paths, areas = [], []
    for first, stretch in _stretches(values):
        points = [
            (_text((first + index) * step), _text(EDGE + room * (1 - _share(value, highest))))
            for index, value in enumerate(stretch)
        ]
        path = "L".join(f"{x} {y}" for x, y in points)
        paths.append(f"M{path}" if len(points) > 1 else f"M{path}h0")
        if len(points) > 1:
            areas.append(f"M{points[0][0]} {height}L{path}L{points[-1][0]} {height}z")
    return Line(width, height, "".join(paths), "".join(areas))


def stacked_bars(columns: Sequence[Mapping[str, float]], order: Sequence[str]) -> Bars:
    """A column for each mapping: the values of ``order`` on one another, the first at the bottom.

    The largest column has the whole height.
    """
    top = max((sum(column.get(name, 0) for name in order) for column in columns), default=0)
    slot = BARS_WIDTH / max(len(columns), 1)
    drawn = []
    for index, column in enumerate(columns):
        sizes = _sizes([column.get(name, 0) for name in order], top, BARS_HEIGHT)
        bottom, bars = float(BARS_HEIGHT), []
        for name, size in zip(order, sizes, strict=True):
            if size:
                bottom -= size
                x, thick = index * slot + GAP / 2, max(slot - GAP, slot / 2)
                bars.append(Bar(name, _text(x), _text(bottom), _text(thick), _text(size)))
        drawn.append(bars)
    return Bars(BARS_WIDTH, BARS_HEIGHT, top, drawn)


def _stretches(values: Sequence[float | None]) -> list[tuple[int, list[float]]]:
    """The known values that follow one another, with the index of the first."""
    found: list[tuple[int, list[float]]] = []
    previous: float | None = None
    for index, value in enumerate(values):
        if value is not None:
            if previous is None:
                found.append((index, []))
            found[-1][1].append(value)
        previous = value
    return found


def _sizes(values: Sequence[float], top: float, height: float) -> list[float]:
    """Heights, none thinner than can be seen; the largest gives what the others take too much."""
    sizes = [max(_share(value, top) * height, THINNEST) if value > 0 else 0.0 for value in values]
    excess = sum(sizes) - height
    if excess > 0:
        sizes[sizes.index(max(sizes))] -= excess
    return sizes


def _share(value: float, of: float) -> float:
    return min(max(value / of, 0.0), 1.0) if of > 0 else 0.0


def _text(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


Chart = dict[str, Any]


def sparkline(
    values: Sequence[float | None], title: _StrOrPromise, state: str = "running"
) -> Chart:
    """A line of the values as high as a line of text, the oldest first; None where a value is
    unknown. ``title`` says it in words. It has the colour of ``state``."""
    return {"title": title, "drawn": line(values), "state": state}


def attempts_chart(minutes: Sequence[Mapping[str, int]], title: str) -> Chart:
    """Attempts by outcome, for each of the last minutes: stacked bars with a legend, and the
    numbers in a table."""
    series = {
        "succeeded": ("succeeded", _("succeeded")),
        "others": ("cancelled", _("snoozed, cancelled or released")),
        "failed": ("failed", _("failed, timed out or lost")),
    }
    drawn, columns = stacked_bars(minutes, list(series)), []
    for number, bars in enumerate(drawn.columns, 1):
        ago = len(minutes) - number
        label = _("%(minutes)s min ago") % {"minutes": ago} if ago else _("this minute")
        values = [number_text(minutes[-ago - 1].get(name, 0), ",.0f") for name in series]
        outcomes = (outcome for _state, outcome in series.values())
        text = ", ".join(map(" ".join, zip(outcomes, values, strict=True)))
        shown = [(bar, series[bar.name][0]) for bar in bars]
        columns.append({"label": label, "text": text, "bars": shown, "values": values})
    top = _("a minute at most")
    chart = {"title": title, "drawn": drawn, "top": f"{number_text(drawn.top, ',.0f')} {top}"}
    return {**chart, "series": series.values(), "columns": columns}
