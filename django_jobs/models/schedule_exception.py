"""The table of exceptions: what single due times of a schedule do instead of what its rule says."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, OuterRef, Q, Subquery
from django.db.models.functions import Cast, Greatest, Least, Now
from django.utils.translation import gettext_lazy as _

from ..domain.missed_due_times import MOST_MOVED
from .schedule import Schedule
from .timestamps import TimestampField


class ScheduleException(models.Model):
    """What one due time of a schedule does instead: it is skipped, or is moved, has another
    payload, or both. Write it with the functions of ``django_jobs``, which also wake the
    workers."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(
        Schedule,
        verbose_name=_("schedule"),
        on_delete=models.CASCADE,
        related_name="exceptions",
        db_index=False,  # the unique pair below is the index
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
        ordering = ("due_at",)
        constraints = (
            models.UniqueConstraint(
                fields=("schedule", "due_at"), name="django_jobs_scheduleexception_due"
            ),
            models.CheckConstraint(
                condition=Q(skipped=True, moved_to__isnull=True, payload__isnull=True)
                | Q(skipped=False) & (Q(moved_to__isnull=False) | Q(payload__isnull=False)),
                name="django_jobs_scheduleexception_action",
            ),
            models.CheckConstraint(
                condition=Q(moved_to__isnull=True) | ~Q(moved_to=F("due_at")),
                name="django_jobs_scheduleexception_moved",
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
    """The annotation that sets ``Schedule.changes_json``. Without ``payloads`` it only has whether
    they have one."""
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
