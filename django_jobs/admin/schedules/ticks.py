"""Ticks: the record of each due time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...models import Backfill, Schedule, ScheduleException, Tick
from ..base.formatting import (
    NOTHING,
    Visible,
    badge,
    choice_badge,
    column,
    counted,
    duration,
    moment,
    moment_column,
    moment_in_zone,
    one_line,
    text_column,
)
from ..base.model_admin import CappedCount, section
from ..layout.tables import Column, Table
from ..lists.change_list import NewestList, Searched
from ..lists.filters import CreatedSinceFilter, OutcomeFilter
from .columns import OF_SCHEDULE, OUTCOMES, OfSchedule
from .display import reason_of

SHOWN = 20
OF_BACKFILL = frozenset({"backfill", "backfill__exact", "backfill__id__exact"})


class TickList(NewestList):
    """There is no index of outcomes, because each due time would have to write it."""

    def searched(self, request: HttpRequest, chosen: Mapping[str, str]) -> Searched | None:
        if not chosen or OF_BACKFILL & request.GET.keys():  # a backfill has 10,000 at most
            return None
        if names := OF_SCHEDULE & request.GET.keys():
            of_schedule = Q(**{name: request.GET[name] for name in names})
            return Searched(rows=of_schedule, column="due_at", name=_("ticks of the schedule"))
        return Searched(rows=Q(), column="id", name=_("ticks"))


@admin.register(Tick)
class TickAdmin(OfSchedule):
    """Due times and their outcomes. Read-only."""

    list_display = (
        *("due_line", "result_line", "schedule_name", "reason_line", "late", "job_number", "part"),
    )
    list_class = TickList
    sortable_by = ("due_line",)
    list_filter = (OutcomeFilter, CreatedSinceFilter)
    exported = (
        *("id", "schedule_id", "schedule__name", "due_at", "outcome", "reason", "late_seconds"),
        *("job_id", "backfill_id", "created_at"),
    )
    empty = _("No ticks yet. A worker writes one for each due time of a schedule.")
    lookups_allowed = OfSchedule.lookups_allowed | OF_BACKFILL
    fieldsets = (
        section(
            None,
            ("schedule_name", "due", "result", "late"),
            ("job_number", "part", "written", "id"),
            "reason_text",
        ),
    )

    # Of one schedule, the unique pair answers; it is the only index with its due times.
    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return ("-due_at",) if OF_SCHEDULE & request.GET.keys() else ("-id",)

    due = column(_("due"), lambda tick: moment_in_zone(tick.due_at, tick.schedule.zone))
    due_line = moment_column("due_at", _("due"), lambda at, now: moment_in_zone(at))
    result_line = column(
        _("outcome"), lambda tick: badge(tick.outcome, OUTCOMES.get(tick.outcome, tick.outcome))
    )
    result = column(_("outcome"), lambda tick: choice_badge(tick, "outcome"))
    reason_text = text_column("reason", _("reason"), lambda text: reason_of(text) or NOTHING)
    reason_line = text_column("reason", _("reason"), lambda text: one_line(reason_of(text)))
    late = column(_("late by"), lambda tick: duration(timedelta(seconds=tick.late_seconds)))

    job_number = column(
        _("job"), lambda tick: tick.visible.job(tick.job_id) if tick.job_id else NOTHING
    )
    part = column(
        _("backfill"),
        lambda tick: (
            tick.visible.link(Backfill, tick.backfill_id, f"#{tick.backfill_id}")
            if tick.backfill_id
            else NOTHING
        ),
    )
    written = column(_("written"), lambda tick: moment(tick.created_at))


def last_ticks(schedule: Schedule, visible: Visible) -> Table:
    """The latest due times of a schedule, newest first."""
    zone = schedule.zone
    ticks = Tick.objects.using(schedule._state.db).filter(schedule=schedule).order_by("-due_at")
    return Table(
        _("Last ticks"),
        (
            *(Column(_("Due")), Column(_("Outcome")), Column(_("Late by"), number=True)),
            *(Column(_("Job"), number=True), Column(_("Reason"), cells="jobs-reason")),
        ),
        [
            (
                moment_in_zone(tick.due_at, zone),
                choice_badge(tick, "outcome"),
                duration(timedelta(seconds=tick.late_seconds)),
                visible.job(tick.job_id) if tick.job_id else NOTHING,
                reason_of(tick.reason),
            )
            for tick in ticks[:SHOWN]
        ],
        _("It has not been due yet."),
        (_("All ticks of this schedule"), visible.list_url(Tick, schedule__id__exact=schedule.pk)),
        css="jobs-timeline jobs-ticks",
        heading=None,
        id="jobs-ticks",
    )


def deletion_summary(schedules: Any) -> tuple[list[str], dict[str, Any], set[str], list[str]]:
    """The objects deleted with these schedules, as Django's deletion page expects them."""
    alias = conf().database
    ticks = Tick.objects.using(alias).filter(schedule__in=schedules)
    backfills = Backfill.objects.using(alias).filter(schedule__in=schedules)
    exceptions = ScheduleException.objects.using(alias).filter(schedule__in=schedules)
    first = Schedule.objects.using(alias).filter(pk=schedules[0].pk)
    counts = first.annotate(
        ticks_=CappedCount(ticks),
        backfills_=CappedCount(backfills),
        exceptions_=CappedCount(exceptions),
    )
    row: Any = counts.values("ticks_", "backfills_", "exceptions_").first() or {}
    names = [str(schedule) for schedule in schedules]
    numbers = {
        Schedule: str(len(names)),
        Tick: counted(row.get("ticks_", 0)),
        Backfill: counted(row.get("backfills_", 0)),
        ScheduleException: counted(row.get("exceptions_", 0)),
    }
    counts_by_name = {
        str(model._meta.verbose_name_plural): count for model, count in numbers.items()
    }
    return names, counts_by_name, set(), []
