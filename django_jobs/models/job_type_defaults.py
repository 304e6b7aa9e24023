"""The table of what SQL knows about job types."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


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
