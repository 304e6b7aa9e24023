"""What is stored about a job type."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import TimestampField


class Quarantine(models.Model):
    """A job type whose jobs are blocked. Made by an operator, or by a worker after many crashes.

    The row stays after the quarantine is lifted, so that earlier crashes do not count again.
    """

    id = models.BigAutoField(primary_key=True)
    job_type = models.CharField(_("job type"), max_length=200, unique=True)
    since = TimestampField(_("since"))
    lifted_at = TimestampField(
        _("lifted at"), null=True, blank=True, help_text=_("Empty: its jobs are blocked.")
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True, default="")
    by = models.CharField(
        _("by"), max_length=150, blank=True, default="", help_text=_("Empty: a worker.")
    )
    until = TimestampField(_("until"), null=True, blank=True)

    class Meta:
        verbose_name = _("quarantine")
        verbose_name_plural = _("quarantines")
        default_permissions = ("view",)
        permissions = (("quarantine_job_type", "Can quarantine job types and lift quarantines"),)

    def __str__(self) -> str:
        return self.job_type

    @property
    def in_force(self) -> bool:
        return self.lifted_at is None


class JobTypeDefaults(models.Model):
    """The declared options of a job type, for the function ``django_jobs_enqueue``.

    Written by ``migrate`` from the code. Python does not read it.
    """

    name = models.CharField(_("name"), max_length=200, primary_key=True)
    options = models.JSONField(_("options"))

    class Meta:
        verbose_name = _("defaults of a job type")
        verbose_name_plural = _("defaults of job types")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
