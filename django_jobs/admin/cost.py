"""What the runs of the last hour used, by job type."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from ..models import Run
from ..separators import number_text
from .base.actions import ModelAdmin
from .base.formatting import NOTHING, duration, list_url
from .layout.console_page import console_page, console_path

if TYPE_CHECKING:
    from ..metrics.cost import TypeCost

NAME = "django_jobs_run_cost"


def cost_path(page: ModelAdmin) -> Any:
    """The route of the page, below that of the list of runs."""
    return console_path(page, "cost/", _view, NAME, page.has_view_permission)


def cost_url(page: ModelAdmin) -> str:
    return reverse(f"admin:{NAME}", current_app=page.admin_site.name)


def _view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    from ..metrics.cost import take_cost

    cost = take_cost()
    source = _("The job types that used most in the last %(time)s, in %(runs)s runs.") % {
        "time": duration(timedelta(seconds=cost.seconds)),
        "runs": sum(of.runs for of in cost.types),
    }
    return console_page(
        page,
        request,
        "run/cost.html",
        title=_("Cost by job type"),
        source=source,
        heads=[
            *(_("Job type"), _("Runs"), _("Time"), _("CPU time"), _("Largest memory")),
            *(_("Queries"), _("Time of queries")),
        ],
        rows=[(of.job_type, _values(of)) for of in cost.types],
        back=list_url(page.admin_site, Run),
    )


def _values(of: TypeCost) -> list[str]:
    return [
        number_text(of.runs),
        _seconds(of.seconds),
        _seconds(of.cpu_seconds),
        NOTHING if of.max_rss_kb is None else f"{number_text(of.max_rss_kb / 1024, ',.0f')} MB",
        NOTHING if of.queries is None else number_text(of.queries),
        _seconds(of.query_seconds),
    ]


def _seconds(seconds: float | None) -> str:
    return duration(None if seconds is None else timedelta(seconds=seconds))
