"""The tables of ticks and backfills: the outcomes of due times."""

from __future__ import annotations

from django.db import models
from django.db.models import F, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..domain.schedules import EPOCH, TickState
from .job import Job
from .schedule import Schedule
from .timestamps import FloatField, TimestampField


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
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.schedule} #{self.pk}"


class TickOutcome(models.TextChoices):
    """The outcome of a due time."""

    FIRED = TickState.FIRED.value, _("fired")
    SKIPPED_OVERLAP = TickState.SKIPPED_OVERLAP.value, _("skipped: the last job was not done")
    SKIPPED_LATE = TickState.SKIPPED_LATE.value, _("skipped: too late")
    SKIPPED = TickState.SKIPPED.value, _("skipped: by request")
    SUPPRESSED = TickState.SUPPRESSED.value, _("suppressed")


class Tick(models.Model):
    """One due time of a schedule and its outcome, written in the transaction of its job. Only a
    backfill changes it: it replaces a tick that made no job."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(
        Schedule,
        verbose_name=_("schedule"),
        on_delete=models.CASCADE,
        related_name="ticks",
        db_index=False,  # the unique pair below is the index
    )
    due_at = TimestampField(_("due at"))
    outcome = models.CharField(_("outcome"), max_length=15, choices=TickOutcome)
    reason = models.CharField(_("reason"), max_length=300, blank=True, default="")
    # The job may be deleted long before the tick, by its own retention.
    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        null=True,
        on_delete=models.DO_NOTHING,
        related_name="ticks",
        db_constraint=False,
        db_index=False,
    )
    late_seconds = FloatField(_("late by"), help_text=_("Seconds."))
    backfill = models.ForeignKey(
        Backfill,
        verbose_name=_("backfill"),
        null=True,
        on_delete=models.CASCADE,
        related_name="ticks",
        db_index=False,  # the partial one below: few ticks have one
    )
    created_at = TimestampField(_("created at"))

    class Meta:
        verbose_name = _("tick")
        verbose_name_plural = _("ticks")
        ordering = ("-due_at",)
        indexes = (
            models.Index(
                fields=("backfill",),
                condition=models.Q(backfill__isnull=False),
                name="django_jobs_tick_backfill",
            ),
        )
        constraints = (
            models.UniqueConstraint(fields=("schedule", "due_at"), name="django_jobs_tick_due"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=[state.value for state in TickState]),
                name="django_jobs_tick_outcome",
            ),
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
