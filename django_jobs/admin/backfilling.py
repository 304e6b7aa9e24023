"""From a range of time to its jobs: ask for it, say how many, make them."""

from __future__ import annotations

from datetime import datetime

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ..exceptions import JobsError
from ..lifecycle import steering
from ..models import Schedule
from ..schedules import request_of
from .actions import ModelAdmin
from .display import change_url
from .schedule_display import on_clock, zone_of

NAMED = 5
"""Due times that are listed at either end."""


class RangeForm(forms.Form):
    """From when to when; on the clock that is current."""

    begin = forms.SplitDateTimeField(label=_("From"), widget=AdminSplitDateTime)
    end = forms.SplitDateTimeField(
        label=_("To"), widget=AdminSplitDateTime, help_text=_("Both are included.")
    )


def backfill_view(page: ModelAdmin, request: HttpRequest, pk: int) -> HttpResponse:
    """The form; the number of jobs of a range; and, once confirmed, the jobs."""
    schedule = page.get_queryset(request).filter(pk=pk).first()
    if schedule is None:
        raise Http404
    if not page.has_view_permission(request, schedule) or not request.user.has_perm(
        "django_jobs.backfill_schedule"
    ):
        raise PermissionDenied
    zone = zone_of(schedule)
    with timezone.override(zone):
        form = RangeForm(request.POST if request.method == "POST" else None)
        due: list[datetime] = []
        if form.is_valid():
            begin, end = form.cleaned_data["begin"], form.cleaned_data["end"]
            try:
                due = steering.backfill_times(schedule, begin, end)
                if request.POST.get("confirmed") == str(len(due)) and due:
                    return _make(page, request, schedule, begin, end)
                if not due:
                    form.add_error(None, _("No due time of this range is without its job."))
            except (JobsError, ValueError, OverflowError) as error:
                due = []
                form.add_error(None, str(error))
        response = _page(page, request, schedule, form, due)
        response.render()
    return response


def _make(
    page: ModelAdmin, request: HttpRequest, schedule: Schedule, begin: datetime, end: datetime
) -> HttpResponse:
    row = steering.backfill(schedule, begin, end, request_of, actor=request.user)
    user = request.user.pk
    assert user is not None
    told = f"backfilled from {begin.isoformat()} to {end.isoformat()}: {row.jobs:,} jobs"
    LogEntry.objects.log_actions(user, [schedule], CHANGE, told, single_object=True)
    text = ngettext("%(count)s job was made.", "%(count)s jobs were made.", row.jobs)
    page.message_user(request, text % {"count": f"{row.jobs:,}"}, messages.SUCCESS)
    return HttpResponseRedirect(change_url(page.admin_site, type(row), row.pk))


def _page(
    page: ModelAdmin,
    request: HttpRequest,
    schedule: Schedule,
    form: forms.Form,
    due: list[datetime],
) -> TemplateResponse:
    zone = zone_of(schedule)
    shown = [on_clock(moment, zone) for moment in due[:NAMED]]
    context = {
        **page.admin_site.each_context(request),
        "title": _now("Backfill"),
        "subtitle": str(schedule),
        "opts": page.opts,
        "media": page.media + form.media,
        "schedule": schedule,
        "zone": str(zone),
        "form": form,
        "count": len(due),
        "first": shown,
        "last": [on_clock(moment, zone) for moment in due[NAMED:][-NAMED:]],
        "unnamed": max(len(due) - 2 * NAMED, 0),
        "back": change_url(page.admin_site, Schedule, schedule.pk),
    }
    request.current_app = page.admin_site.name
    return TemplateResponse(request, "admin/django_jobs/schedule/backfill.html", context)
