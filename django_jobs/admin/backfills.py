"""Backfills: how far they are, and an end to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..domain.states import LIVE
from ..models import Backfill, JobStatus, Schedule, Tick
from .actions import answer
from .base import ConsoleAdmin
from .display import NOTHING, badge, link, list_url, moment_and_age
from .schedule_display import on_clock, sees_schedules, zone_of
from .schedule_verbs import CANCEL_BACKFILL

SHOWN = 5
LABELS = dict(JobStatus.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How many of a backfill's jobs stand where."""

    jobs: int
    ended: int
    parts: tuple[str, ...]
    """A badge and a number for each state that there is."""

    @property
    def live(self) -> int:
        """Jobs that have not ended."""
        return self.jobs - self.ended


def progress_of(backfills: Iterable[int]) -> dict[int, Progress]:
    """The progress of each of these. A job that retention has removed has ended."""
    ticks = Tick.objects.using(conf().database).filter(backfill__in=list(backfills))
    found: dict[int, dict[str | None, int]] = {}
    for backfill, status, count in ticks.values_list("backfill", "job__status").annotate(
        count=Count("pk")
    ):
        found.setdefault(backfill, {})[status] = count
    return {backfill: _progress(counts) for backfill, counts in found.items()}


def _progress(counts: dict[str | None, int]) -> Progress:
    parts: list[str] = [
        format_html("{} {}", badge(status, LABELS[status]), f"{counts[status]:,}")
        for status in JobStatus.values
        if status in counts
    ]
    if removed := counts.get(None, 0):
        parts.append(_now("%(count)s removed since") % {"count": f"{removed:,}"})
    jobs = sum(counts.values())
    live = sum(count for status, count in counts.items() if status in LIVE)
    return Progress(jobs=jobs, ended=jobs - live, parts=tuple(parts))


def last_backfills(schedule: Schedule) -> list[tuple[Backfill, Progress | None]]:
    """The latest backfills of a schedule and how far they are."""
    rows = Backfill.objects.using(schedule._state.db).filter(schedule=schedule).order_by("-id")
    found = list(rows[:SHOWN])
    progress = progress_of([row.pk for row in found])
    return [(row, progress.get(row.pk)) for row in found]


@admin.register(Backfill)
class BackfillAdmin(ConsoleAdmin):
    """Ranges of due times that somebody had made up for."""

    list_display = ("number", "schedule_name", "begins", "ends", "jobs", "state", "who", "made")
    list_select_related = ("schedule",)
    list_per_page = 20
    lookups_allowed = ConsoleAdmin.lookups_allowed | {
        *("schedule", "schedule__exact", "schedule__id__exact")
    }
    actions = ("cancel_backfills",)
    verbs = (CANCEL_BACKFILL,)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("schedule_name", "begins", "ends", "state"),
                    ("jobs", "who", "made", "cancelled"),
                    "progress",
                    "ticks",
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        ticks = Tick.objects.using(conf().database).filter(backfill=OuterRef("pk"))
        live = ticks.filter(job__status__in=LIVE)
        rows: QuerySet[Any] = super().get_queryset(request)
        rows = rows.select_related("schedule").defer("schedule__payload")
        rows = rows.annotate(is_live=Exists(live))
        return rows

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return sees_schedules(request.user)

    def has_backfill_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_jobs.backfill_schedule")

    @admin.display(description=_("number"))
    def number(self, backfill: Any) -> str:
        return f"#{backfill.pk}"

    @admin.display(description=_("schedule"))
    def schedule_name(self, backfill: Any) -> str:
        return link(self.admin_site, Schedule, backfill.schedule_id, backfill.schedule.name)

    @admin.display(description=_("from"))
    def begins(self, backfill: Any) -> str:
        return on_clock(backfill.begins_at, zone_of(backfill.schedule))

    @admin.display(description=_("to"))
    def ends(self, backfill: Any) -> str:
        return on_clock(backfill.ends_at, zone_of(backfill.schedule))

    @admin.display(description=_("state"))
    def state(self, backfill: Any) -> str:
        if backfill.cancelled_at is not None:
            return badge("cancelled", _now("cancelled"))
        if backfill.is_live:
            return badge("running", _now("under way"))
        return badge("succeeded", _now("ended"))

    @admin.display(description=_("asked by"))
    def who(self, backfill: Any) -> str:
        return backfill.asked_by or NOTHING

    @admin.display(description=_("made"))
    def made(self, backfill: Any) -> str:
        return moment_and_age(backfill.created_at, backfill.read_at)

    @admin.display(description=_("cancelled"))
    def cancelled(self, backfill: Any) -> str:
        return moment_and_age(backfill.cancelled_at, backfill.read_at)

    @admin.display(description=_("progress"))
    def progress(self, backfill: Any) -> str:
        progress = progress_of([backfill.pk]).get(backfill.pk)
        if progress is None:
            return _now("It made no job.")
        return render_to_string("admin/django_jobs/schedule/progress.html", {"progress": progress})

    @admin.display(description=_("ticks"))
    def ticks(self, backfill: Any) -> str:
        url = f"{list_url(self.admin_site, Tick)}?{urlencode({'backfill__id__exact': backfill.pk})}"
        return format_html('<a href="{}">{}</a>', url, _now("Each due time and its job"))

    @admin.action(permissions=["backfill"], description=_("Cancel"))
    def cancel_backfills(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        return answer(self, request, queryset, CANCEL_BACKFILL)
