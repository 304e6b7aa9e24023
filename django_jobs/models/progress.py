"""The table of progress reports and checkpoints."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .job import Job
from .timestamps import FloatField, TimestampField


class Progress(models.Model):
    """The last report of a job's handler. In a separate table, to keep that of jobs narrow."""

    # No constraint in the database, as with runs.
    job = models.OneToOneField(
        Job,
        verbose_name=_("job"),
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="progress",
        db_constraint=False,
    )
    attempt = models.PositiveIntegerField(_("attempt"))
    fraction = FloatField(_("fraction"), null=True, help_text=_("From 0 to 1."))
    note = models.CharField(_("note"), max_length=200, blank=True, default="")
    checkpoint = models.JSONField(
        _("checkpoint"), null=True, help_text=_("Where the next attempt begins.")
    )
    reported_at = TimestampField(_("reported at"))

    class Meta:
        verbose_name = _("progress")
        verbose_name_plural = _("progress")
        default_permissions = ("view",)

    def __str__(self) -> str:
        share = "" if self.fraction is None else f" {self.fraction:.0%}"
        return f"#{self.job_id}{share} {self.note}".rstrip()
