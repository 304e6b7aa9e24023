"""The table of questions about running jobs."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .timestamps import FloatField, TimestampField


class Inspection(models.Model):
    """A person asked what an attempt is doing now. Its worker writes the answer. Deleted an hour
    later, with the next question."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField(_("job"))
    attempt = models.PositiveIntegerField(_("attempt"))
    worker_id = models.BigIntegerField(_("worker"))
    asked_by = models.CharField(_("asked by"), max_length=200, blank=True, default="")
    asked_at = TimestampField(_("asked at"))
    answered_at = TimestampField(_("answered at"), null=True)
    process = models.IntegerField(_("process"), null=True)
    thread = models.CharField(_("thread"), max_length=200, blank=True, default="")
    ran_seconds = FloatField(_("ran for seconds"), null=True)
    stack = models.TextField(_("stack"), blank=True, default="")

    class Meta:
        verbose_name = _("inspection")
        verbose_name_plural = _("inspections")
        default_permissions = ()
        indexes = (
            models.Index(
                fields=("worker_id",),
                condition=models.Q(answered_at=None),
                name="django_jobs_unanswered",
            ),
        )

    def __str__(self) -> str:
        return f"#{self.job_id} attempt {self.attempt}"
