"""Backfills: their progress, and the action that cancels them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime
from django.db.models import Count, Exists, OuterRef
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.states import LIVE
from ...exceptions import JobsError
from ...models import Backfill, JobStatus, Schedule, Tick
from ...separators import number_text
from ..base.actions import ModelAdmin, log_change
from ..base.formatting import (
    Visible,
    ago,
    badge,
    change_url,
    column,
    moment,
    moment_column,
    moment_in_zone,
    refusal_text,
    text_column,
)
from ..base.model_admin import allowed_by, section
from ..layout.console_page import console_page, list_crumb
from ..layout.tables import Column, Table, action_form, unseen
from .actions import CANCEL_BACKFILL
from .columns import OfSchedule

SHOWN = 5
LABELS = dict(JobStatus.choices)


def progress_of(backfills: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The progress of each backfill by id, with a badge and a number for each status that occurs.
    Jobs that retention deleted count as ended."""
    ticks = Tick.objects.using(conf().database).filter(backfill__in=list(backfills))
    counts_of: dict[int, dict[str | None, int]] = {}
    for backfill, status, count in ticks.values_list("backfill", "job__status").annotate(
        count=Count("pk")
    ):
        counts_of.setdefault(backfill, {})[status] = count
    return {backfill: _progress(counts) for backfill, counts in counts_of.items()}


def _progress(counts: dict[str | None, int]) -> dict[str, Any]:
    parts: list[str] = [
        format_html("{} {}", badge(status, LABELS[status]), number_text(counts[status]))
        for status in JobStatus.values
        if status in counts
    ]
    if removed := counts.get(None, 0):
        parts.append(gettext("%(count)s deleted") % {"count": number_text(removed)})
    jobs = sum(counts.values())
    live = sum(count for status, count in counts.items() if status in LIVE)
    return {"jobs": jobs, "ended": jobs - live, "live": live, "parts": parts}


def last_backfills(schedule: Schedule, visible: Visible, may_cancel: bool) -> Table:
    rows = Backfill.objects.using(schedule._state.db).filter(schedule=schedule).order_by("-id")
    backfills, zone, url = list(rows[:SHOWN]), schedule.zone, visible.list_url(Backfill)
    progress_by_id = progress_of([backfill.pk for backfill in backfills])
    shown = []
    for row in backfills:
        progress, end = progress_by_id.get(row.pk), ""
        if row.cancelled_at is not None:
            end = format_html("{} {}", _("cancelled"), moment(row.cancelled_at))
        elif may_cancel and progress is not None and progress["live"]:
            action, label = CANCEL_BACKFILL.action, CANCEL_BACKFILL.label
            end = action_form(visible.request, url, action, label, row.pk, from_page="1")
        shown.append(
            (
                visible.link(Backfill, row.pk, f"#{row.pk}"),
                moment_in_zone(row.begins_at, zone),
                moment_in_zone(row.ends_at, zone),
                row.requested_by,
                "" if progress is None else _progress_html(progress),
                end,
            )
        )
    labels = _("Number"), _("From"), _("To"), _("Requested by"), _("Progress")
    columns = [*map(Column, labels), Column(unseen(_("Cancel")))]
    mine = visible.list_url(Backfill, schedule__id__exact=schedule.pk)
    more = (_("All backfills of this schedule"), mine)
    return Table(_("Last backfills"), columns, shown, more=more, id="jobs-backfills")


def _progress_html(progress: dict[str, Any]) -> str:
    return render_to_string("admin/django_jobs/schedule/progress.html", {"progress": progress})


@admin.register(Backfill)
class BackfillAdmin(OfSchedule):
    list_display = (
        "number",
        "schedule_name",
        "state",
        "begins",
        "ends",
        "job_count",
        "who",
        "made_ago",
    )
    list_per_page = 20
    empty = _(
        "No backfills. The page of a schedule has the button that makes jobs for past due times."
    )
    operator_actions = (CANCEL_BACKFILL,)
    fieldsets = (
        section(
            None,
            ("schedule_name", "begins", "ends", "state"),
            ("job_count", "who", "made", "cancelled"),
            "progress",
            "ticks",
        ),
    )

    def annotations(self) -> dict[str, Any]:
        ticks = Tick.objects.using(conf().database).filter(backfill=OuterRef("pk"))
        return {"is_live": Exists(ticks.filter(job__status__in=LIVE))}

    has_backfill_permission = allowed_by("backfill_schedule")

    number = column(_("number"), lambda backfill: f"#{backfill.pk}")
    begins = column(
        _("from"), lambda backfill: moment_in_zone(backfill.begins_at, backfill.schedule.zone)
    )
    ends = column(
        _("to"), lambda backfill: moment_in_zone(backfill.ends_at, backfill.schedule.zone)
    )

    @admin.display(description=_("state"))
    def state(self, backfill: Any) -> str:
        if backfill.cancelled_at is not None:
            return badge("cancelled", gettext("cancelled"))
        if backfill.is_live:
            return badge("running", gettext("running"))
        return badge("succeeded", gettext("ended"))

    who = text_column("requested_by", _("requested by"))
    made_ago = moment_column("created_at", _("made"), ago)
    made = moment_column("created_at", _("made"))
    cancelled = moment_column("cancelled_at", _("cancelled"))

    @admin.display(description=_("progress"))
    def progress(self, backfill: Any) -> str:
        progress = progress_of([backfill.pk]).get(backfill.pk)
        return _progress_html(progress) if progress else gettext("This backfill made no jobs.")

    ticks = column(
        _("ticks"),
        lambda backfill: backfill.visible.list_link(
            Tick, _("All due times and their jobs"), backfill__id__exact=backfill.pk
        ),
    )


NAMED = 5
"""Due times to list at each end of the range."""


class RangeForm(forms.Form):
    begin = forms.SplitDateTimeField(label=_("From"), widget=AdminSplitDateTime)
    end = forms.SplitDateTimeField(
        label=_("To"), widget=AdminSplitDateTime, help_text=_("Both are included.")
    )


def backfill_view(page: ModelAdmin, request: HttpRequest, pk: int) -> HttpResponse:
    """Show the form, then the number of jobs of the range; once confirmed, make them."""
    from ...lifecycle.operations.schedules import backfill_times

    schedule = get_object_or_404(page.get_queryset(request), pk=pk)
    zone = schedule.zone
    with timezone.override(zone):
        form = RangeForm(request.POST if request.method == "POST" else None)
        due: list[datetime] = []
        if form.is_valid():
            begin, end = form.cleaned_data["begin"], form.cleaned_data["end"]
            try:
                due = backfill_times(schedule, begin, end)
                if request.POST.get("confirmed") == str(len(due)) and due:
                    return _make(page, request, schedule, begin, end)
                if not due:
                    form.add_error(None, _("Every due time in this range already has a job."))
            except (JobsError, ValueError, OverflowError) as error:
                due = []
                form.add_error(None, refusal_text(error))
        response = _page(page, request, schedule, form, due)
        response.render()
    return response


def _make(
    page: ModelAdmin, request: HttpRequest, schedule: Schedule, begin: datetime, end: datetime
) -> HttpResponse:
    from ...api.schedules import request_of
    from ...domain.policies import zone_text
    from ...lifecycle.operations.schedules import backfill

    row = backfill(schedule, begin, end, request_of, actor=request.user)
    span = " to ".join(zone_text(at, schedule.zone) for at in (begin, end))
    message = f"backfilled from {span}: {row.job_count:,} jobs"
    log_change(request, schedule, message)
    text = ngettext("%(count)s job was made.", "%(count)s jobs were made.", row.job_count)
    page.message_user(request, text % {"count": number_text(row.job_count)}, messages.SUCCESS)
    return HttpResponseRedirect(change_url(page.admin_site, type(row), row.pk))


def _page(
    page: ModelAdmin,
    request: HttpRequest,
    schedule: Schedule,
    form: forms.Form,
    due: list[datetime],
) -> TemplateResponse:
    zone = schedule.zone
    first = [moment_in_zone(moment, zone) for moment in due[:NAMED]]
    back = change_url(page.admin_site, Schedule, schedule.pk)
    return console_page(
        page,
        request,
        "schedule/backfill.html",
        title=gettext("Backfill"),
        media=form.media,
        parents=[list_crumb(page), (str(schedule), back)],
        subtitle=str(schedule),
        schedule=schedule,
        zone=str(zone),
        form=form,
        count=len(due),
        first=first,
        last=[moment_in_zone(moment, zone) for moment in due[NAMED:][-NAMED:]],
        unnamed=max(len(due) - 2 * NAMED, 0),
        back=back,
    )
