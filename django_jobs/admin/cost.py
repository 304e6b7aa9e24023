"""What the runs of the last hour used, by job type."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _

from ..metrics.cost import TypeCost, take_cost
from ..models import Run
from .base.actions import ModelAdmin
from .base.formatting import NOTHING, duration, list_url

NAME = "django_jobs_run_cost"


def cost_path(page: ModelAdmin) -> Any:
    """The route of the page, below that of the list of runs."""
    return path(
        "cost/", page.admin_site.admin_view(lambda request: _view(page, request)), name=NAME
    )


def cost_url(page: ModelAdmin) -> str:
    """The address of the page."""
    return reverse(f"admin:{NAME}", current_app=page.admin_site.name)


def _view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    if not page.has_view_permission(request):
        raise PermissionDenied
    request.current_app = page.admin_site.name
    cost = take_cost()
    context = {
        **page.admin_site.each_context(request),
        "opts": page.opts,
        "media": page.media,
        "title": _("What job types use"),
        "source": _("The job types that used most in the last %(time)s, in %(runs)s runs.")
        % {
            "time": duration(timedelta(seconds=cost.seconds)),
            "runs": sum(of.runs for of in cost.types),
        },
        "heads": [
            *(_("Job type"), _("Runs"), _("Time"), _("CPU time"), _("Largest memory")),
            *(_("Queries"), _("Time of queries")),
        ],
        "rows": [(of.job_type, _values(of)) for of in cost.types],
        "back": list_url(page.admin_site, Run),
    }
    return TemplateResponse(request, "admin/django_jobs/run/cost.html", context)


def _values(of: TypeCost) -> list[str]:
    return [
        f"{of.runs:,}",
        _seconds(of.seconds),
        _seconds(of.cpu_seconds),
        NOTHING if of.max_rss_kb is None else f"{of.max_rss_kb / 1024:,.0f} MB",
        NOTHING if of.queries is None else f"{of.queries:,}",
        _seconds(of.query_seconds),
    ]


def _seconds(seconds: float | None) -> str:
    return duration(None if seconds is None else timedelta(seconds=seconds))
