"""Ticks: the record of each due time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import Backfill, Job, Schedule, Tick
from ..base.filters import CreatedSinceFilter, OutcomeFilter
from ..base.formatting import NOTHING, badge, duration, link, moment, text_column
from ..base.model_admin import ConsoleAdmin, allowed_by, section
from .display import on_clock, zone_of

SHOWN = 20
OF_SCHEDULE = frozenset({"schedule", "schedule__exact", "schedule__id__exact"})
OF_BACKFILL = frozenset({"backfill", "backfill__exact", "backfill__id__exact"})


@admin.register(Tick)
class TickAdmin(ConsoleAdmin):
    """Due times and their outcomes. Read-only."""

    list_display = ("due", "schedule_name", "result", "reason_line", "late", "job_number", "part")
    list_filter = (OutcomeFilter, CreatedSinceFilter)
    list_select_related = ("schedule",)
    lookups_allowed = ConsoleAdmin.lookups_allowed | OF_SCHEDULE | OF_BACKFILL
    fieldsets = (
        section(
            None,
            ("schedule_name", "due", "result", "late"),
            ("job_number", "part", "written", "id"),
            "reason_line",
        ),
    )

    has_view_permission = allowed_by("view_schedule", "change_schedule")

    # Of one schedule, the unique pair answers; it is the only index with its due times.
    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return ("-due_at",) if OF_SCHEDULE & request.GET.keys() else ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).select_related("schedule")
        return rows.defer("schedule__payload")

    @admin.display(description=_("due"))
    def due(self, tick: Any) -> str:
        return on_clock(tick.due_at, zone_of(tick.schedule))

    @admin.display(description=_("schedule"))
    def schedule_name(self, tick: Any) -> str:
        return link(self.admin_site, Schedule, tick.schedule_id, tick.schedule.name)

    @admin.display(description=_("outcome"))
    def result(self, tick: Any) -> str:
        return badge(tick.outcome, tick.get_outcome_display())

    reason_line = text_column("reason", _("reason"))

    @admin.display(description=_("late by"))
    def late(self, tick: Any) -> str:
        return duration(timedelta(seconds=tick.late_seconds))

    @admin.display(description=_("job"))
    def job_number(self, tick: Any) -> str:
        if tick.job_id is None:
            return NOTHING
        return link(self.admin_site, Job, tick.job_id, f"#{tick.job_id}")

    @admin.display(description=_("backfill"))
    def part(self, tick: Any) -> str:
        if tick.backfill_id is None:
            return NOTHING
        return link(self.admin_site, Backfill, tick.backfill_id, f"#{tick.backfill_id}")

    @admin.display(description=_("written"))
    def written(self, tick: Any) -> str:
        return moment(tick.created_at)


def last_ticks(schedule: Schedule) -> list[Tick]:
    """The latest due times of a schedule, newest first."""
    rows = Tick.objects.using(schedule._state.db).filter(schedule=schedule).order_by("-due_at")
    return list(rows[:SHOWN])
