"""The views of schedules that Django's admin does not have."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ... import registry
from ...conf import conf
from ...models import Backfill, Schedule, Tick, Worker
from ...models.database import database_time
from ...models.timestamps import TimestampMax
from ...models.worker import ALIVE
from ..access.visible import Visible
from ..base.actions import ModelAdmin
from ..base.formatting import NOTHING, badge, change_url, duration, list_url, moment
from ..base.paginator import CappedCount, counted
from ..layout.console_page import console_page
from .actions import CANCEL_BACKFILL
from .backfills import last_backfills
from .columns import readonly_reason
from .display import on_clock, preview, zone_of
from .form import RuleForm
from .ticks import last_ticks

UNSEEN = timedelta(seconds=60)
"""If no worker has looked at the schedules for this long, the list warns."""


def preview_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The rule of the form in words and its next due times, as JSON. Read-only."""
    try:
        # By POST: the dates that it excludes may be too long for an address.
        form = RuleForm({**request.GET.dict(), **request.POST.dict()})
        answer = asdict(preview(form.rule(), database_time(), form.jobs_left))
    except ValueError as error:
        answer = {"error": str(error)}
    return JsonResponse(answer)


def choose_job_type(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """A page of the schedulable job types, each with a link to its form."""
    job_types = [registry.get(name) for name in registry.names()]
    refused = request.GET.get("job_type", "")
    return console_page(
        page,
        request,
        "schedule/choose.html",
        title=_("Add schedule: what does it run?"),
        choices=[
            {
                "name": job_type.name,
                "url": f"?{urlencode({'job_type': job_type.name})}",
                "about": (inspect.getdoc(job_type.handler) or "").split("\n\n", 1)[0],
                "queue": job_type.queue,
            }
            for job_type in job_types
            if job_type.schedulable
        ],
        not_offered=[one.name for one in job_types if not one.schedulable],
        refused=refused,
        back=list_url(page.admin_site, Schedule),
    )


def list_notes() -> list[str]:
    """Warnings if no live worker looks at the schedules, so that none is fired."""
    alias = conf().database
    if not Schedule.objects.using(alias).armed().exists():
        return []
    alive = Worker.objects.using(alias).filter(status__in=ALIVE, lease_expires_at__gte=Now())
    seen = alive.aggregate(seen=TimestampMax("schedules_seen_at"))["seen"]
    if seen is None:
        return [_("No live worker checks the schedules, so none fires.")]
    age = database_time() - seen
    if age < UNSEEN:
        return []
    return [_("No worker has checked the schedules for %(time)s.") % {"time": duration(age)}]


def page_context(page: Any, request: HttpRequest, schedule: Any) -> dict[str, Any]:
    """The context of a schedule's page in addition to its form."""
    site, visible = page.admin_site, Visible(page.admin_site, request)
    context: dict[str, Any] = {
        "preview_url": reverse("admin:django_jobs_schedule_preview", current_app=site.name)
    }
    if schedule is None:
        return context
    context["preview_url"] += f"?{urlencode({'jobs_made': schedule.jobs_made})}"
    zone = zone_of(schedule)
    mine = {"schedule__id__exact": schedule.pk}
    job_type = registry.find(schedule.job_type)
    if page.has_add_permission(request) and job_type is not None and job_type.schedulable:
        context["duplicate_url"] = page.duplicate_url(schedule)
    if page.has_backfill_permission(request):
        name = "admin:django_jobs_schedule_backfill"
        context["backfill_url"] = reverse(name, args=[schedule.pk], current_app=site.name)
        context["cancel"] = CANCEL_BACKFILL
    return {
        **context,
        "fixed": readonly_reason(schedule),
        "ticks": [
            {
                "due": on_clock(tick.due_at, zone),
                "outcome": badge(tick.outcome, tick.get_outcome_display()),
                "reason": tick.reason,
                "late": duration(timedelta(seconds=tick.late_seconds)),
                "job": visible.job(tick.job_id) if tick.job_id else NOTHING,
            }
            for tick in last_ticks(schedule)
        ],
        "ticks_url": list_url(site, Tick, **mine),
        "backfills": [
            {
                "row": row,
                "url": change_url(site, Backfill, row.pk),
                "begins": on_clock(row.begins_at, zone),
                "ends": on_clock(row.ends_at, zone),
                "progress": progress,
                "cancelled": moment(row.cancelled_at),
                "live": row.cancelled_at is None and progress is not None and progress.live,
            }
            for row, progress in last_backfills(schedule)
        ],
        "backfills_url": list_url(site, Backfill, **mine),
        "backfill_list": list_url(site, Backfill),
    }


def deletion_summary(schedules: Any) -> tuple[list[str], dict[str, Any], set[str], list[str]]:
    """The objects deleted with these schedules, as Django's deletion page expects them."""
    alias = conf().database
    ticks = Tick.objects.using(alias).filter(schedule__in=schedules)
    backfills = Backfill.objects.using(alias).filter(schedule__in=schedules)
    first = Schedule.objects.using(alias).filter(pk=schedules[0].pk)
    counts = first.annotate(ticks_=CappedCount(ticks), backfills_=CappedCount(backfills))
    row: Any = counts.values("ticks_", "backfills_").first() or {}
    names = [str(schedule) for schedule in schedules]
    numbers = {
        Schedule: str(len(names)),
        Tick: counted(row.get("ticks_", 0)),
        Backfill: counted(row.get("backfills_", 0)),
    }
    counts_by_name = {
        str(model._meta.verbose_name_plural): count for model, count in numbers.items()
    }
    return names, counts_by_name, set(), []
