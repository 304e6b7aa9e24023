"""The tables of ticks and backfills: the outcomes of due times. And that of exceptions: what single
due times do instead of what the rule says."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, OuterRef, Q, Subquery, Value
from django.db.models.functions import Cast, Coalesce, Greatest, Least, Now
from django.utils.translation import gettext_lazy as _

from ..domain.policies import EPOCH, MOST_MOVED, TickState
from .fields import LOOSE, FloatField, TimestampField, check, index, unique
from .job import Job
from .schedule import Schedule


class Backfill(models.Model):
    """Jobs for a past range of due times, made by an operator. They can be cancelled together."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(
        Schedule, verbose_name=_("schedule"), on_delete=models.CASCADE, related_name="backfills"
    )
    begins_at = TimestampField(_("from"))
    ends_at = TimestampField(_("to"))
    job_count = models.PositiveIntegerField(_("jobs"), default=0)
    requested_by = models.CharField(_("requested by"), max_length=200, blank=True, default="")
    cancelled_at = TimestampField(_("cancelled at"), null=True, blank=True)
    created_at = TimestampField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("backfill")
        verbose_name_plural = _("backfills")
        default_permissions = ()
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.schedule} #{self.pk}"


class TickOutcome(models.TextChoices):
    FIRED = TickState.FIRED.value, _("fired")
    SKIPPED_OVERLAP = TickState.SKIPPED_OVERLAP.value, _("skipped: the last job was not done")
    SKIPPED_LATE = TickState.SKIPPED_LATE.value, _("skipped: too late")
    SKIPPED = TickState.SKIPPED.value, _("skipped: by request")
    SUPPRESSED = TickState.SUPPRESSED.value, _("suppressed")


class Tick(models.Model):
    """One due time of a schedule and its outcome, written in the transaction of its job. Only a
    backfill changes it: it replaces a tick that made no job."""

    id = models.BigAutoField(primary_key=True)
    # The unique pair below is the index.
    schedule = models.ForeignKey(
        Schedule, models.CASCADE, "ticks", verbose_name=_("schedule"), db_index=False
    )
    due_at = TimestampField(_("due at"))
    outcome = models.CharField(_("outcome"), max_length=15, choices=TickOutcome)
    reason = models.CharField(_("reason"), max_length=300, blank=True, default="")
    # The job may be deleted long before the tick, by its own retention.
    job = models.ForeignKey(
        Job, models.DO_NOTHING, "ticks", verbose_name=_("job"), null=True, **LOOSE
    )
    late_seconds = FloatField(_("late by"), help_text=_("Seconds."))
    # The partial one below: few ticks have one.
    backfill = models.ForeignKey(
        Backfill, models.CASCADE, "ticks", verbose_name=_("backfill"), null=True, db_index=False
    )
    created_at = TimestampField(_("created at"))

    class Meta:
        verbose_name = _("tick")
        verbose_name_plural = _("ticks")
        default_permissions = ()
        ordering = ("-due_at",)
        indexes = (index("django_jobs_tick_backfill", "backfill", backfill__isnull=False),)
        constraints = (
            unique("django_jobs_tick_due", "schedule due_at"),
            check("django_jobs_tick_outcome", outcome__in=[state.value for state in TickState]),
        )

    def __str__(self) -> str:
        return f"{self.due_at:%Y-%m-%d %H:%M:%S} {self.get_outcome_display()}"


def last_of_schedule(alias: str) -> models.QuerySet[Tick]:
    """The ticks of a schedule of the outer query, of which the first is the last that was written.
    A due time that was moved to an earlier one has its tick before it has come. So only the last
    one that had come is looked up in the index of due times, with those behind it."""
    ticks = Tick.objects.using(alias)
    come = ticks.filter(schedule=OuterRef(OuterRef("pk")), due_at__lte=F("created_at"))
    last = Subquery(come.order_by("-due_at").values("due_at")[:1])
    since = Coalesce(last, Value(EPOCH), output_field=TimestampField())
    behind = ticks.filter(schedule=OuterRef("pk"), due_at__gte=since)
    return behind.order_by("-created_at", "-due_at")


class ScheduleException(models.Model):
    """What one due time of a schedule does instead: it is skipped, or is moved, has another
    payload, or both. Write it with the functions of ``django_jobs``, which wake workers."""

    id = models.BigAutoField(primary_key=True)
    # The unique pair below is the index.
    schedule = models.ForeignKey(
        Schedule, models.CASCADE, "exceptions", verbose_name=_("schedule"), db_index=False
    )
    due_at = TimestampField(_("due at"), help_text=_("The due time by the rule."))
    skipped = models.BooleanField(_("skipped"), default=False)
    moved_to = TimestampField(_("moved to"), null=True, blank=True)
    payload = models.JSONField(
        _("payload"), null=True, blank=True, help_text=_("Arguments by name.")
    )
    payload_version = models.PositiveSmallIntegerField(_("payload version"), default=1)
    requested_by = models.CharField(_("requested by"), max_length=200, blank=True, default="")
    reason = models.CharField(_("reason"), max_length=300, blank=True, default="")
    created_at = TimestampField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("exception")
        verbose_name_plural = _("exceptions")
        default_permissions = ()
        ordering = ("due_at",)
        constraints = (
            unique("django_jobs_scheduleexception_due", "schedule due_at"),
            check(
                "django_jobs_scheduleexception_action",
                Q(skipped=True, moved_to__isnull=True, payload__isnull=True)
                | Q(skipped=False) & (Q(moved_to__isnull=False) | Q(payload__isnull=False)),
            ),
            check(
                "django_jobs_scheduleexception_moved",
                Q(moved_to__isnull=True) | ~Q(moved_to=F("due_at")),
            ),
        )

    def __str__(self) -> str:
        return f"{self.schedule} {self.due_at:%Y-%m-%d %H:%M:%S}"


class _AsJson(Subquery):
    """The rows of a subquery as the text of a JSON list, or NULL without any. As text, so that a
    row that Python cannot read does not fail the whole query."""

    template = "(SELECT json_agg(one)::text FROM (%(subquery)s) AS one)"
    output_field = models.TextField()


def with_changes(*, payloads: bool = True) -> dict[str, Any]:
    """The annotation of ``Schedule.changes_json``; without ``payloads``, whether there is one."""
    # From the time from which a worker may plan, which is not later than the next due time.
    since = models.ExpressionWrapper(
        Least(OuterRef("next_due_at"), Now()) - MOST_MOVED, output_field=models.DateTimeField()
    )
    rows = ScheduleException.objects.filter(schedule=OuterRef("pk"))
    coming = rows.alias(until=Greatest("due_at", "moved_to")).filter(until__gte=since)
    columns = ("skipped", "moved_to", "payload_version", "reason")
    payload: Any = Cast("payload", models.TextField())
    if not payloads:
        payload = models.Case(models.When(payload__isnull=False, then=models.Value("")))
    named = coming.values(*columns, payload_json=payload, due=F("due_at"), by=F("requested_by"))
    return {"changes_json": _AsJson(named.order_by("due_at"))}
