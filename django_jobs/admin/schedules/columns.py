"""What the pages of schedules and of their ticks and backfills show."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...models import Schedule, TickOutcome
from ...models.database import database_time
from ...separators import number_text
from ..base.actions import ModelAdmin
from ..base.formatting import (
    NOTHING,
    ago,
    badge,
    column,
    moment_column,
    moment_in_zone,
    one_line,
    preformatted,
    text_column,
    with_breaks,
    with_reason,
)
from ..base.json_display import coding_of, document, hidden, texts
from ..base.model_admin import ConsoleAdmin, allowed_by
from .display import in_words, is_in_code, next_due, preview, state_badge, why_not

OUTCOMES = {**dict(TickOutcome.choices), TickOutcome.SKIPPED_OVERLAP: _("skipped: overlap")}
"""Short, for the cells of lists."""
PLACE = re.compile(r"^(?:\w+\.)+\w+: ")
"""The class of an error. The list omits it."""

OCCURRENCE, RUN_WITH = "django_jobs_schedule_occurrence", "django_jobs_schedule_run"
BACKFILL = "django_jobs_schedule_backfill"
OF_SCHEDULE = frozenset({"schedule", "schedule__exact", "schedule__id__exact"})


class OfSchedule(ConsoleAdmin):
    """A page of rows that belong to a schedule."""

    list_select_related = ("schedule",)
    unread = ("schedule__payload",)
    lookups_allowed = ConsoleAdmin.lookups_allowed | OF_SCHEDULE

    has_view_permission = allowed_by("view_schedule", "change_schedule")

    schedule_name = column(
        _("schedule"),
        lambda row: row.visible.link(Schedule, row.schedule_id, one_line(row.schedule.name)),
    )


class ScheduleColumns(ModelAdmin):
    runs = text_column("job_type", pgettext_lazy("what a schedule runs", "runs"))

    @admin.display(description=pgettext_lazy("what a schedule runs", "runs"), ordering="job_type")
    def runs_of(self, schedule: Any) -> str:
        if not schedule.declared:
            return one_line(schedule.job_type, breaks=True)
        quiet = gettext("from %(owner)s") % {"owner": self.owner(schedule)}
        return _with_quiet(schedule.job_type, quiet, with_breaks(schedule.job_type))

    @admin.display(description=_("when"), ordering="pk")
    def when(self, schedule: Any) -> str:
        words = in_words(schedule.cron, schedule.every)
        return _with_quiet(words, schedule.timezone) if schedule.cron else one_line(words)

    @admin.display(description=_("created in"))
    def owner(self, schedule: Any) -> str:
        if is_in_code(schedule):
            return gettext("code")
        return (
            gettext("code that no longer declares it")
            if schedule.declared
            else gettext("the admin")
        )

    @admin.display(description=_("state"), ordering="pk")
    def state(self, schedule: Any) -> str:
        status = state_badge(schedule, schedule.read_at)
        return with_reason(status, PLACE.sub("", why_not(schedule)))

    coming = column(
        _("next due"), lambda schedule: next_due(schedule, schedule.read_at), ordering="next_due_at"
    )

    @admin.display(description=_("last tick"), ordering="last_tick_at")
    def last_tick(self, schedule: Any) -> str:
        if schedule.last_tick_at is None:
            return NOTHING
        outcome = badge(schedule.last_outcome, OUTCOMES.get(schedule.last_outcome, ""))
        return format_html("{} {}", outcome, ago(schedule.last_tick_at, schedule.read_at))

    state_text = column(_("state"), lambda schedule: state_badge(schedule, schedule.read_at))
    why_text = column(_("why it does not fire"), lambda schedule: preformatted(why_not(schedule)))
    paused_text = moment_column("paused_at", _("paused"))
    until_text = moment_column("paused_until", _("paused until"))

    @admin.display(description=_("last due"))
    def last_due_text(self, schedule: Any) -> str:
        if schedule.last_due_at is None:
            return NOTHING
        local = moment_in_zone(schedule.last_due_at, schedule.zone)
        return format_html("{} ({})", local, ago(schedule.last_due_at, schedule.read_at))

    created_text = moment_column("created_at", _("created"))

    @admin.display(description=_("jobs"))
    def made_text(self, schedule: Any) -> str:
        text = ngettext(
            "made %(made)s of %(most)s job, %(left)s left",
            "made %(made)s of %(most)s jobs, %(left)s left",
            schedule.max_jobs or 0,
        )
        numbers = {"made": schedule.jobs_made, "most": schedule.max_jobs or 0}
        numbers["left"] = schedule.jobs_left or 0
        return text % {name: number_text(number) for name, number in numbers.items()}

    @admin.display(description=_("arguments"))
    def arguments_text(self, schedule: Any) -> str:
        coding = coding_of(schedule.job_type)
        arguments = document("", *texts(schedule, ["payload"])["payload"], coding)
        return preformatted(arguments.text) if arguments.text else arguments.note

    arguments_hidden = column(_("arguments"), lambda schedule: hidden("").note)
    no_arguments = column(
        _("arguments"), lambda schedule: gettext("This job type takes no arguments.")
    )

    @admin.display(description=_("next times"))
    def preview_text(self, schedule: Any) -> str:
        now = getattr(schedule, "read_at", None) or database_time()
        blank = schedule.pk is None and not schedule.cron and schedule.every is None
        context = {"preview": None if blank else preview(schedule.rule, now, schedule.jobs_left)}
        return render_to_string("admin/django_jobs/schedule/preview.html", context)


def _with_quiet(text: str, quiet: str, shown: str = "") -> str:
    return format_html(
        '<span title="{0}, {1}">{2} <span class="jobs-quiet">{1}</span></span>',
        *(text, quiet, shown or text),
    )


def readonly_reason(schedule: Schedule) -> str:
    """Why a schedule's fields cannot be changed here; empty if they can."""
    if is_in_code(schedule):
        return gettext(
            "This schedule is declared in code and can be changed only there. Here it can be "
            "paused, resumed, run now and backfilled, and its due times skipped and moved."
        )
    if schedule.declared:
        return gettext(
            "This schedule was declared in code that no longer declares it. To change it, "
            "duplicate it."
        )
    job_type = registry.find(schedule.job_type)
    if job_type is None:
        return gettext("Read-only: no handler is registered for its job type.")
    if not job_type.schedulable:
        return gettext("Read-only: its job type is not declared with schedulable=True.")
    try:
        return (
            ""
            if isinstance(schedule.payload, dict)
            else gettext("Read-only: its payload is not a JSON object.")
        )
    except (ValueError, RecursionError):
        return gettext("Read-only: its payload cannot be read.")
