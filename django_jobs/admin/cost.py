"""What the runs of the last hour used, by job type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Run
from ..separators import number_text
from .base.actions import ModelAdmin
from .base.formatting import NOTHING, duration, list_url
from .layout.console_page import console_page

if TYPE_CHECKING:
    from ..metrics.forecast import Cost, TypeCost

HINTS = {
    "cpu": gettext_lazy("CPU times are not measured: turn on RUN_COST."),
    "queries": gettext_lazy("Queries are not counted: turn on COUNT_QUERIES."),
}
"""How to fill the columns that are left out because they are empty."""


def _seconds(seconds: float) -> str:
    return duration(timedelta(seconds=seconds))


def _megabytes(kilobytes: int) -> str:
    return f"{number_text(kilobytes / 1024, ',.0f')} MB"


def _percent(share: float) -> str:
    return number_text(share, ".0%")


class Measure(NamedTuple):
    """A column: its heading, the value of a job type, and how that is shown."""

    label: str
    of: Callable[[TypeCost], Any]
    show: Callable[[Any], str]


def _measures(whole: float) -> dict[str, Measure]:
    """The columns, given the seconds of all job types."""
    return {
        "runs": Measure(_("Runs"), attrgetter("runs"), number_text),
        "time": Measure(_("Time"), attrgetter("seconds"), _seconds),
        "share": Measure(_("Share"), lambda of: of.seconds / whole if whole else None, _percent),
        "mean": Measure(_("Mean"), lambda of: of.seconds / of.runs, _seconds),
        "p50": Measure("p50", attrgetter("p50_seconds"), _seconds),
        "p95": Measure("p95", attrgetter("p95_seconds"), _seconds),
        "max": Measure(_("Longest"), attrgetter("max_seconds"), _seconds),
        "cpu": Measure(_("CPU time"), attrgetter("cpu_seconds"), _seconds),
        "memory": Measure(_("Largest memory"), attrgetter("max_rss_kb"), _megabytes),
        "queries": Measure(_("Queries"), attrgetter("queries"), number_text),
        "in_queries": Measure(_("Time of queries"), attrgetter("query_seconds"), _seconds),
    }


def cost_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    from ..metrics.forecast import take_cost
    from .layout.tables import Column, Sorting

    cost = take_cost()
    every = _measures(sum(of.seconds for of in cost.types))
    shown = {
        name: one for name, one in every.items() if any(one.of(of) is not None for of in cost.types)
    }
    keys: Mapping[str, Any] = {
        "type": attrgetter("job_type"),
        **{name: one.of for name, one in every.items()},
    }
    sorting = Sorting(request, keys, "-time")
    numbers = {name: Column(one.label, number=True) for name, one in shown.items()}
    return console_page(
        page,
        request,
        "run/cost.html",
        title=_("Cost by job type"),
        source=_source(cost),
        headings=sorting.headings({"type": Column(_("Job type")), **numbers}),
        rows=[
            (of.job_type, [_text(one, of) for one in shown.values()])
            for of in sorting.rows(cost.types)
        ],
        hints=[hint for name, hint in HINTS.items() if name not in shown],
        back=list_url(page.admin_site, Run),
    )


def _text(one: Measure, of: TypeCost) -> str:
    value = one.of(of)
    return NOTHING if value is None else one.show(value)


def _source(cost: Cost) -> str:
    runs = sum(of.runs for of in cost.types)
    values = {"runs": number_text(runs), "time": _seconds(cost.seconds)}
    if not cost.cut:
        return _("All %(runs)s runs that ended in the last hour.") % values
    return _("The newest %(runs)s runs. They ended in the last %(time)s.") % values
