"""The views of schedules that Django's admin does not have."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.widgets import AdminSplitDateTime
from django.db.models import Q
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ... import registry
from ...conf import conf
from ...domain.policies import in_utc, zone_text
from ...domain.schedules import INSTANT
from ...exceptions import JobsError
from ...models import Schedule, ScheduleException, Worker
from ...models.database import database_time
from ...models.fields import TimestampMax
from ..base.actions import ModelAdmin, log_change
from ..base.formatting import (
    Visible,
    change_url,
    due_text,
    duration,
    joined,
    list_url,
    moment_in_zone,
    page_url,
    refusal_text,
)
from ..base.json_display import masked
from ..forms.fields import MomentField, reason_field
from ..layout.console_page import console_page, list_crumb
from ..layout.tables import Column, Table, unseen
from .columns import BACKFILL, OCCURRENCE, RUN_WITH, readonly_reason
from .display import preview, what_it_does
from .form import Choices, RuleForm, upgraded_payload
from .ticks import last_ticks

UNSEEN = timedelta(seconds=60)
"""If no worker has looked at the schedules for this long, the list warns."""
COMING = 20
"""Due times that the form of exceptions offers, besides those that have one."""
SHOWN = 20
"""Exceptions on the page of a schedule."""
DOES: Choices = [
    ("skip", gettext_lazy("skipped")),
    ("to", gettext_lazy("moved to the new time")),
    ("payload", gettext_lazy("given other arguments")),
    ("restore", gettext_lazy("as its rule says again")),
]
"""What the form of exceptions can do."""


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
    alive = Worker.objects.using(alias).alive()
    seen = alive.aggregate(seen=TimestampMax("schedules_seen_at"))["seen"]
    if seen is None:
        return [_("No live worker checks the schedules, so none fires.")]
    age = database_time() - seen
    if age < UNSEEN:
        return []
    return [_("No worker has checked the schedules for %(time)s.") % {"time": duration(age)}]


class OccurrenceForm(forms.Form):
    """What one due time is to do. Times are in the current time zone."""

    due = forms.ChoiceField(label=gettext_lazy("Due time"))
    does = forms.ChoiceField(label=gettext_lazy("It is"), choices=DOES, widget=forms.RadioSelect)
    to = MomentField(label=gettext_lazy("New time"), required=False, widget=AdminSplitDateTime)
    payload = forms.JSONField(
        label=gettext_lazy("Arguments"),
        required=False,
        help_text=gettext_lazy("All of them, as JSON."),
    )
    reason = reason_field(gettext_lazy("Its tick shows it."))

    def __init__(self, due: Choices, may_read: bool, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        fields: dict[str, Any] = self.fields
        fields["due"].choices = due
        # A due time that has come meanwhile is no choice any more: the refusal says why.
        fields["due"].valid_value = _is_time
        if self.initial.get("payload") is None:  # it would be shown as null
            self.initial["payload"] = InvalidJSONInput("")
        if not may_read:
            del fields["payload"]
            fields["does"].choices = [choice for choice in DOES if choice[0] != "payload"]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        does, names = given.get("does"), dict(DOES)
        for field in ("to", "payload"):
            if field in self.errors or does is None:
                continue
            if does == field and given.get(field) is None:
                self.add_error(field, _("This field is required."))
            elif does != field and given.get(field) is not None and field in self.changed_data:
                text = _("This is for a due time that is %(choice)s.")
                self.add_error(field, text % {"choice": names[field]})
        return given


def _is_time(text: str) -> bool:
    with suppress(ValueError):
        return parse_datetime(text) is not None
    return False


def occurrence_view(page: Any, request: HttpRequest, pk: int) -> HttpResponse:
    """A form that skips or moves a due time of a schedule, changes its arguments or undoes that."""
    schedule = get_object_or_404(page.get_queryset(request), pk=pk)
    back = change_url(page.admin_site, Schedule, pk)
    begin = _begin(request, schedule.read_at)
    with timezone.override(schedule.zone):
        given = request.POST if request.method == "POST" else None
        may_read = request.user.has_perm("django_jobs.view_job_payload")
        choices, due, note = _coming(schedule, begin, request.GET.get("due", ""))
        initial = _now_of(schedule, due, may_read) if due else {}
        form = OccurrenceForm(choices, may_read, given, initial=initial)
        if form.is_valid():
            try:
                history, done = _carry_out(schedule, form.cleaned_data, request.user)
            except (JobsError, ValueError, OverflowError) as error:
                form.add_error(None, refusal_text(error))
            else:
                log_change(request, schedule, history)
                page.message_user(request, done, messages.SUCCESS)
                return HttpResponseRedirect(back)
        response = console_page(
            page,
            request,
            "schedule/occurrence.html",
            title=_("Skip or move"),
            media=form.media,
            parents=[list_crumb(page), (str(schedule), back)],
            subtitle=str(schedule),
            zone=schedule.timezone,
            form=form,
            note=note,
            back=back,
        )
        response.render()
    return response


def _carry_out(schedule: Schedule, given: dict[str, Any], actor: Any) -> tuple[str, str]:
    """Do what the form was given; return what the history says, and what the user is told."""
    from ...api.occurrences import (
        change_occurrence,
        move_occurrence,
        restore_occurrence,
        skip_occurrence,
    )

    due = parse_datetime(given["due"])
    assert due is not None
    asked: dict[str, Any] = {"actor": actor, "reason": given["reason"]}
    name, zone = schedule.name, schedule.zone
    shown, named = {"time": due_text(due, zone)}, zone_text(due, zone)
    match given["does"]:
        case "skip":
            skip_occurrence(name, due, **asked)
            return f"skipped {named}", _("%(time)s is skipped.") % shown
        case "to":
            move_occurrence(name, due, given["to"], **asked)
            shown["to"] = due_text(given["to"], zone)
            history = f"moved {named} to {zone_text(given['to'], zone)}"
            return history, _("%(time)s is moved to %(to)s.") % shown
        case "payload":
            change_occurrence(name, due, given["payload"], **asked)
            history = f"changed the arguments of {named}"
            return history, _("%(time)s is given other arguments.") % shown
        case _:
            restore_occurrence(name, due, actor=actor)
            return f"restored {named}", _("%(time)s is as its rule says again.") % shown


def _begin(request: HttpRequest, now: datetime) -> datetime:
    """The begin of the day that the address names, by the clock of the page."""
    with suppress(ValueError, OverflowError):
        day = date.fromisoformat(request.GET.get("from", ""))
        midnight = datetime.combine(day, time(), timezone.get_current_timezone())
        return max(midnight.astimezone(UTC) - INSTANT, now)
    return now


def _coming(schedule: Any, begin: datetime, named: str) -> tuple[Choices, datetime | None, str]:
    """The next due times behind ``begin``, and those with an exception that are not among them,
    each by its time according to the rule. Which one is chosen: the ``named`` one, or else the
    first one behind ``begin``; and why the named one is not."""
    now, zone = schedule.read_at, schedule.zone
    found: dict[datetime, str] = {}
    first: list[tuple[datetime, datetime]] = []
    wanted = None
    with suppress(ValueError, OverflowError):
        wanted = parse_datetime(named)
        wanted = wanted and in_utc(wanted if wanted.tzinfo else wanted.replace(tzinfo=zone))
    with suppress(ValueError, OverflowError):  # a broken rule, which the refusal names
        rule = schedule.rule
        for one in rule.occurrences(islice(rule.due_times(begin), COMING)):
            found[one.due] = what_it_does(one.change, zone) if one.change else ""
            first.append((one.at, one.due))
        for change in rule.changes:
            if change.last > now:
                found[change.due] = what_it_does(change, zone)
                if change.due > begin and rule.has(change.due):
                    first.append((change.due, change.due))
        if wanted is not None and wanted > now and rule.has(wanted):
            found.setdefault(wanted, "")
    choices: Choices = []
    for due in sorted(found):
        text = due_text(due, zone)
        choices.append((due.isoformat(), f"{text}: {found[due]}" if found[due] else text))
    if not named:
        return choices, min(first)[1] if first else None, ""
    if wanted in found:
        return choices, wanted, ""
    shown = named[:40] if wanted is None else due_text(wanted, zone)
    note = _("%(time)s is no due time that is to come.") % {"time": shown}
    return [("", "---------"), *choices], None, note


def _now_of(schedule: Any, due: datetime, may_read: bool) -> dict[str, Any]:
    """What a due time does now, as the form shows it."""
    rows = ScheduleException.objects.using(schedule._state.db).filter(schedule=schedule)
    row = rows.filter(due_at=due).defer("payload").first()
    initial: dict[str, Any] = {"due": due.isoformat()}
    if row is not None:
        does = "skip" if row.skipped else "to" if row.moved_to else "payload"
        initial |= {"does": does, "to": row.moved_to, "reason": row.reason}
    job_type = registry.find(schedule.job_type)
    if may_read and job_type is not None:
        with suppress(ValueError, RecursionError):  # JSON that Python cannot read
            own = schedule if row is None or row.payload is None else row
            payload = upgraded_payload(job_type, own)
            if masked(payload) == payload:  # else a secret would be shown
                initial["payload"] = payload
    return initial


def exceptions_of(schedule: Any, may_move: bool, visible: Visible) -> Table:
    """The newest exceptions of a schedule, as its page shows them."""
    now, zone = schedule.read_at, schedule.zone
    url = page_url(visible.site, OCCURRENCE, schedule.pk)
    strays = set()
    with suppress(ValueError, OverflowError):  # a rule that a worker will refuse
        strays = {change.due for change in schedule.rule.strays(now)}
    rows = ScheduleException.objects.using(schedule._state.db).filter(schedule=schedule)
    rows = rows.defer("payload").annotate(has_payload=Q(payload__isnull=False))
    shown = []
    for row in rows.order_by("-due_at")[:SHOWN]:
        does = [_("skipped")] if row.skipped else []
        if row.moved_to:
            does.append(format_html("{} {}", _("moved to"), moment_in_zone(row.moved_to, zone)))
        does += [_("with other arguments")] if row.has_payload else []
        if row.due_at in strays:
            stray = _("no longer a due time: does nothing")
            does.append(format_html('<span class="jobs-change">{}</span>', stray))
        query = urlencode({"due": row.due_at.isoformat()})
        comes = may_move and max(row.due_at, row.moved_to or row.due_at) > now
        change = format_html('<a href="{}?{}">{}</a>', url, query, _("Change")) if comes else ""
        due = moment_in_zone(row.due_at, zone)
        shown.append((due, joined(" ", does), row.requested_by, row.reason, change))
    labels = _("Due"), _("It is"), _("Requested by"), _("Reason"), unseen(_("Change"))
    columns = list(map(Column, labels))
    return Table(_("Exceptions"), columns, shown, heading=None, id="jobs-exceptions")


def page_context(page: Any, request: HttpRequest, schedule: Any) -> dict[str, Any]:
    """The context of a schedule's page in addition to its form."""
    from .backfills import last_backfills

    site = page.admin_site
    context: dict[str, Any] = {"preview_url": page_url(site, "django_jobs_schedule_preview")}
    if schedule is None:
        return context
    context["preview_url"] += f"?{urlencode({'jobs_made': schedule.jobs_made})}"
    job_type = registry.find(schedule.job_type)
    may_move = page.has_move_permission(request)
    may_backfill = page.has_backfill_permission(request)
    tools = []
    if (
        job_type is not None
        and job_type.signature.parameters
        and page.has_run_with_permission(request)
    ):
        tools.append((_("Run now with…"), page_url(site, RUN_WITH, schedule.pk), ""))
    if may_move:
        tools.append((_("Skip or move"), page_url(site, OCCURRENCE, schedule.pk), ""))
    if may_backfill:
        tools.append((_("Backfill"), page_url(site, BACKFILL, schedule.pk), ""))
    if page.has_add_permission(request) and job_type is not None and job_type.schedulable:
        tools.append((_("Duplicate"), page.duplicate_url(schedule), ""))
    return {
        **context,
        "tools": tools,
        "fixed": readonly_reason(schedule),
        "tables": [
            exceptions_of(schedule, may_move, schedule.visible),
            last_ticks(schedule, schedule.visible),
            last_backfills(schedule, schedule.visible, may_backfill),
        ],
    }
