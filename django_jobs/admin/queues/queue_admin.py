"""Queues: their state and their settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import IntegerField, OuterRef
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...models import DeadLetter, Job, JobStatus, Queue
from ...models.fields import TimestampSubquery
from ...separators import number_text
from ..base.formatting import (
    MOST_COUNTED,
    NOTHING,
    badge,
    column,
    counted,
    duration,
    level_badge,
    shortened,
    with_reason,
)
from ..base.model_admin import (
    CappedCount,
    ConsoleAdmin,
    allowed_by,
    row_button,
    section,
    unlimited,
)
from ..operator_actions import PAUSE, RESUME
from .form import QueueForm
from .rule_fields import BACKOFF, RETENTION, RULES, RuleFields

if TYPE_CHECKING:
    from ...metrics.slo import SloWindow

UP_TO = "coalesce(django_jobs_queue.max_backlog, 0)", "django_jobs_queue.name"


@admin.register(Queue)
class QueueAdmin(ConsoleAdmin):
    """Queues. Pausing is an action; the other settings are a form."""

    scoped_by: ClassVar[Any] = {"queue": "name"}
    list_words = ("pressure",)
    words = ("gate", "pressure")

    form = QueueForm
    ordering = ("name",)
    list_display = (
        "name",
        "state",
        "ready",
        "level",
        "next_waits",
        "scheduled",
        "running",
        "dead",
        "done",
        "time_to_empty",
        "button",
    )
    empty = _('No queues. manage.py migrate creates those of DJANGO_JOBS["QUEUES"].')
    sortable_by = (
        *("name", "state", "ready", "level", "next_waits", "scheduled", "running", "dead", "done"),
    )
    sorted_here: ClassVar[Any] = {
        "state": lambda queue: queue.shown,
        "level": lambda queue: queue.max_backlog and queue.backlog / queue.max_backlog,
        "dead": lambda queue: queue.numbers and queue.numbers.jobs("dead", queue.name).number,
        "done": lambda queue: (
            queue.numbers and queue.numbers.of_queue("rates", queue.name).get("done")
        ),
    }
    operator_actions = in_rows = (PAUSE, RESUME)
    at_least_one = ("max_concurrency", "max_backlog", "max_attempts")

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {
            "all": ("django_jobs/overview.css", "django_jobs/queue.css")
        }

    def annotations(self) -> dict[str, Any]:
        from ...lifecycle.backlog import ready_up_to
        from ...lifecycle.gate_limits import gated_up_to

        backlog = f"{ready_up_to(*UP_TO)} + {gated_up_to(*UP_TO)}"
        jobs = Job.objects.using(conf().database).filter(queue=OuterRef("name"))
        ready = jobs.filter(status=JobStatus.READY)
        # The job that starts next, not the oldest one: reading it takes one step in the index.
        head = ready.order_by("rank", "id")
        return {
            "ready_count": CappedCount(ready),
            "backlog": RawSQL(backlog, (), output_field=IntegerField()),  # noqa: S611 — a constant
            "scheduled_count": CappedCount(jobs.filter(status=JobStatus.SCHEDULED)),
            "running_count": CappedCount(jobs.filter(status=JobStatus.RUNNING)),
            "head_due_at": TimestampSubquery(head.values("available_at")[:1]),
        }

    def add_numbers(self, request: HttpRequest, rows: list[Any]) -> None:
        from ..overview.numbers import stored_numbers

        numbers = stored_numbers() if request.method == "GET" else None
        for queue in rows:
            queue.numbers = numbers if numbers and queue.name in numbers.queues else None
            queue.shown = self.state(queue)

    # A user with a scope may pause its queues, and see them. No deletion: jobs of a deleted queue
    # would never be claimed.
    has_add_permission = unlimited("add_queue")
    has_change_permission = unlimited("change_queue")
    has_pause_permission = allowed_by("pause_queue")

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        pauses = self.has_pause_permission(request)
        return self.list_display if pauses else self.list_display[:-1]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        computed = "backoff_text", "retention_text", "last_hour", "last_day"
        return computed if obj is None else ("name", *computed)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        stored = {rule: getattr(obj, rule.column, None) for rule in RULES}
        if obj is None or self.has_change_permission(request, obj):
            names = {rule: rule.names(value) for rule, value in stored.items()}
        else:
            names = {rule: (f"{rule.column}_text",) for rule in RULES}
        objective = section(
            *(_("Objective"), "slo_seconds", "slo_since", "slo_target"), *("last_hour", "last_day")
        )
        rare = (
            (section(_("Backoff of job types without one"), *names[BACKOFF]), stored[BACKOFF]),
            (section(_("Retention of its finished jobs"), *names[RETENTION]), stored[RETENTION]),
            (objective, getattr(obj, "slo_seconds", None)),
        )
        for (_title, options), value in rare:
            options["classes"] = () if value else ("collapse",)
        return (
            section(None, "name"),
            section(_("Limits"), "max_concurrency", "max_backlog", "on_full", "priority_weight"),
            section(_("Defaults for its jobs"), "max_attempts", "timeout"),
            *(fieldset for fieldset, _value in rare),
        )

    def live(self, row: Any) -> dict[str, Any]:
        from .live import live

        return live(row, row.visible)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        # Saving the form must not undo a pause that began while it was open.
        columns = form.changed_columns if change else None
        obj.save(using=conf().database, update_fields=columns)

    @admin.display(description=_("state"), ordering="pk")
    def state(self, queue: Any) -> str:
        from ..overview.numbers import queue_state

        if queue.pk is None:
            return NOTHING
        if not queue.paused:
            # The numbers may be older than the end of a pause.
            known = queue.numbers and not queue.numbers.queues[queue.name]["paused"]
            return queue_state(queue.numbers, queue.name) if known else badge("ok", _("active"))
        # Code that gives no reason leaves "paused". The page of the queue has it in a sentence.
        reason = queue.paused_reason if queue.paused_reason != "paused" else ""
        return with_reason(badge("paused", _("paused")), reason)

    ready = column(
        _("ready"), lambda queue: _jobs(queue, "ready", queue.ready_count), "ready_count"
    )
    button = column(
        _("pause or resume"), lambda queue: row_button(RESUME if queue.paused else PAUSE, queue)
    )

    @admin.display(description=_("pressure"), ordering="pk")
    def level(self, queue: Any) -> str:
        if queue.pk is None or queue.max_backlog is None:
            return NOTHING
        from ...domain.pressure import level_of

        return level_badge(level_of(queue.backlog, queue.max_backlog))

    backoff_text = column(_("backoff"), lambda queue: _in_words(BACKOFF, queue))
    retention_text = column(_("retention"), lambda queue: _in_words(RETENTION, queue))
    last_hour = column(_("last hour"), lambda queue: _in_time(queue, "hour"))
    last_day = column(_("last day"), lambda queue: _in_time(queue, "day"))

    # Descending is the longest wait first, and queues without a job are last.
    next_waits = column(
        _("next job waits"),
        lambda row: duration(row.read_at - row.head_due_at) if row.head_due_at else NOTHING,
        "-head_due_at",
    )
    scheduled = column(
        _("scheduled"),
        lambda queue: _jobs(queue, "scheduled", queue.scheduled_count),
        "scheduled_count",
    )

    @admin.display(description=_("running"), ordering="running_count")
    def running(self, queue: Any) -> str:
        limit = "∞" if queue.max_concurrency is None else number_text(queue.max_concurrency)
        text, number = f"{counted(queue.running_count)} / {limit}", queue.running_count
        filters = {"queue": queue.name, "status": "running"}
        return str(queue.visible.list_link(Job, text, **filters)) if number else text

    @admin.display(description=_("dead"), ordering="pk")
    def dead(self, queue: Any) -> str:
        if queue.numbers is None:
            return NOTHING
        count = queue.numbers.jobs("dead", queue.name)
        if not count.number:
            return str(count)
        return str(queue.visible.list_link(DeadLetter, str(count), queue=queue.name))

    @admin.display(description=_("Done / min"), ordering="pk")
    def done(self, queue: Any) -> str:
        from ..overview.numbers import done_per_minute

        return done_per_minute(queue.numbers, queue.name) if queue.numbers else NOTHING

    @admin.display(description=_("empty in"))
    def time_to_empty(self, queue: Any) -> str:
        from ..overview.numbers import empty_in

        if queue.numbers is None:
            return NOTHING
        return empty_in(queue.numbers, queue.name, paused=queue.paused)


def _jobs(queue: Any, status: str, number: int) -> str:
    filters = {"queue": queue.name, "status": status}
    known = queue.numbers and queue.numbers.jobs(status, queue.name)  # as the overview says
    text = str(known if known and min(number, known.number) > MOST_COUNTED else counted(number))
    return str(queue.visible.list_link(Job, text, **filters)) if number else "0"


def _in_words(rule: RuleFields, queue: Any) -> str:
    """A rule for those who may not change it."""
    stored = getattr(queue, rule.column)
    values = rule.values(stored)
    if values is None:
        return shortened(json.dumps(stored), 300)
    labels = QueueForm.base_fields
    return "; ".join(f"{labels[name].label}: {value}" for name, value in values.items()) or NOTHING


def _in_time(queue: Any, window: str) -> str:
    """How many jobs started in time, and how fast the error budget is used up."""
    from ...metrics.slo import take_objectives

    if queue.pk is None or queue.slo_seconds is None:
        return NOTHING
    objective = next((one for one in take_objectives() if one.queue == queue.name), None)
    found: SloWindow | None = getattr(objective, window, None)
    if found is None or found.ratio is None or found.burn_rate is None:
        return NOTHING
    text = _("%(ratio)s of %(runs)s jobs in time, burn rate %(burn_rate)s")
    return text % {
        "ratio": number_text(found.ratio, ".2%"),
        "runs": number_text(found.runs),
        "burn_rate": number_text(found.burn_rate, ".1f"),
    }
