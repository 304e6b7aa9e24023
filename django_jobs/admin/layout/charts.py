"""Charts as the templates in ``charts/`` draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...domain.charts import Bars, Line, line, stacked_bars
from ...separators import number_text

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise


@dataclass(frozen=True, slots=True)
class Sparkline:
    """``charts/sparkline.html``: a line as high as a line of text. ``title`` says it in words."""

    title: _StrOrPromise
    drawn: Line
    state: str = "running"
    """The state whose colour it has."""


@dataclass(frozen=True, slots=True)
class BarSeries:
    """One of the series that stand on one another."""

    name: str
    label: _StrOrPromise
    state: str
    """The state whose colour it has."""


@dataclass(frozen=True, slots=True)
class BarChart:
    """``charts/bars.html``: stacked bars with a legend, and the numbers in a table."""

    title: _StrOrPromise
    head: _StrOrPromise
    """The heading of the table's first column."""
    series: Sequence[BarSeries]
    columns: Sequence[dict[str, Any]]
    """Of each its ``label``, its ``text`` in words, its ``bars`` with the state of each, and the
    ``values`` of its row of the table."""
    axis: Sequence[_StrOrPromise]
    """What stands below, from left to right."""
    top: _StrOrPromise
    """The value of the highest column."""
    drawn: Bars


def sparkline(
    values: Sequence[float | None],
    title: _StrOrPromise,
    *,
    state: str = "running",
    top: float | None = None,
) -> Sparkline:
    """A line of the values, the oldest first; None where a value is unknown."""
    return Sparkline(title, line(values, top=top), state)


def bar_chart(
    columns: Sequence[tuple[str, Mapping[str, float]]],
    series: Sequence[BarSeries],
    *,
    title: _StrOrPromise,
    head: _StrOrPromise,
    axis: Sequence[_StrOrPromise] = (),
    unit: _StrOrPromise = "",
) -> BarChart:
    """A column for each pair of a label and its values by the name of a series."""
    drawn = stacked_bars([values for _, values in columns], [one.name for one in series])
    states = {one.name: one.state for one in series}
    made = []
    for (label, values), bars in zip(columns, drawn.columns, strict=True):
        texts = [number_text(values.get(one.name, 0), ",.0f") for one in series]
        text = ", ".join(f"{one.label} {text}" for one, text in zip(series, texts, strict=True))
        drawn_bars = [(bar, states[bar.name]) for bar in bars]
        made.append({"label": label, "text": text, "bars": drawn_bars, "values": texts})
    return BarChart(
        title, head, series, made, axis, f"{number_text(drawn.top, ',.0f')} {unit}".strip(), drawn
    )
