"""The table of the metrics that were taken last."""

from __future__ import annotations

from django.db import models
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from .timestamps import FloatField, TimestampField


class StoredMetrics(models.Model):
    """The numbers of ``/metrics``, in one row: the first that scrapes takes them, and the others of
    the next five seconds read them here."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    taken_at = TimestampField(_("taken at"))
    # As text, which PostgreSQL makes faster than jsonb, and is never asked for a part of.
    values = models.TextField(_("values"), help_text=_("JSON: lists of rows, by part."))
    seconds = FloatField(_("seconds"), help_text=_("What it took to read them."))

    class Meta:
        verbose_name = _("stored metrics")
        verbose_name_plural = _("stored metrics")
        default_permissions = ()

    def __str__(self) -> str:
        return f"of {self.taken_at:%Y-%m-%d %H:%M:%S}"


class Overview(StoredMetrics):
    """The entry of the overview among the models in Django's admin. It has no rows of its own."""

    class Meta:
        proxy = True
        verbose_name = _("overview")
        # Django sorts by this name. A space is before all letters, and HTML does not show it.
        verbose_name_plural = format_lazy(" {}", _("Overview"))
        default_permissions = ()
