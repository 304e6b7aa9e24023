"""Charts as the templates in ``charts/`` draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from ...domain.charts import line, stacked_bars
from ...separators import number_text

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

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
