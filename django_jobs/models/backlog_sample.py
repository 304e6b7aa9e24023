"""The table of what each queue held at a moment, with the forecast that was made of it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .queue import LONGEST_NAME
from .timestamps import FloatField, TimestampField


class BacklogSample(models.Model):
    """The ready and the running jobs of a queue at a moment. Written once a minute, and
    deleted after six hours."""

    pk = models.CompositePrimaryKey("queue", "taken_at")
    queue = models.CharField(_("queue"), max_length=LONGEST_NAME)
    taken_at = TimestampField(_("taken at"))
    ready = models.BigIntegerField(_("ready"), null=True)
    running = models.BigIntegerField(_("running"))
    runs = models.BigIntegerField(
        _("runs"), help_text=_("Attempts of this queue that had ended since the beginning.")
    )
    drain_seconds = FloatField(_("seconds until it is drained"), null=True)
    drained_at = TimestampField(_("drained at"), null=True)

    class Meta:
        verbose_name = _("sample of a backlog")
        verbose_name_plural = _("samples of backlogs")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.queue}: {self.ready}"
