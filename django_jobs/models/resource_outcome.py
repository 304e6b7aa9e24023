"""The table of how attempts ended that used a resource with a circuit breaker."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .queue import LONGEST_NAME
from .timestamps import TimestampField


class ResourceOutcome(models.Model):
    """An attempt that used a resource with a breaker and failed, or that succeeded while the
    breaker was half open.

    Written when the attempt is settled. Deleted when a breaker changes, if it is older than the
    window of every breaker.
    """

    id = models.BigAutoField(primary_key=True)
    # The name and no foreign key: rows of a deleted resource are pruned like the others.
    resource = models.CharField(_("resource"), max_length=LONGEST_NAME)
    failed = models.BooleanField(_("failed"))
    happened_at = TimestampField(_("happened at"))

    class Meta:
        verbose_name = _("outcome of a resource")
        verbose_name_plural = _("outcomes of resources")
        default_permissions = ()
        indexes = (
            models.Index(fields=("resource", "happened_at"), name="django_jobs_resource_outcome"),
        )

    def __str__(self) -> str:
        return f"{self.resource} {'failed' if self.failed else 'succeeded'}"
