"""The table of idempotency keys that stay unique for a time."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import TimestampField, index, unique
from .job import Job


class UniqueKey(models.Model):
    """An idempotency key that is unique until ``expires_at``, and the job that was made for it.

    Written by requests with ``unique_for``, in the transaction of their job.
    """

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(_("queue"), max_length=100)
    key = models.CharField(_("key"), max_length=200)
    job_type = models.CharField(_("job type"), max_length=200)
    # No constraint in the database, as with receipts. The row outlives its job if retention is
    # shorter.
    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    expires_at = TimestampField(_("expires at"))

    class Meta:
        verbose_name = _("unique key")
        verbose_name_plural = _("unique keys")
        default_permissions = ()
        indexes = (index("django_jobs_unique_key_expiry", "expires_at"),)
        constraints = (unique("django_jobs_unique_key", "queue key"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.key}"
