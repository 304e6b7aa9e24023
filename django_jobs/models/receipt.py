"""The table of receipts: answers of calls that a job makes once."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..domain.payload import LONGEST_KEY
from .job import Job
from .timestamps import TimestampField


class Receipt(models.Model):
    """What an attempt stored for later ones: the answer of a ``run.once(key, ...)`` call, or until
    when ``run.sleep(key, ...)`` sleeps, or ``run.wait_for(name, ...)`` waits."""

    id = models.BigAutoField(primary_key=True)
    # No constraint in the database, as with runs. The unique pair below is the index.
    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        on_delete=models.CASCADE,
        related_name="receipts",
        db_constraint=False,
        db_index=False,
    )
    key = models.CharField(_("key"), max_length=LONGEST_KEY + 10)  # with a prefix
    attempt = models.PositiveIntegerField(_("attempt"))
    answer = models.JSONField(_("answer"), null=True)
    made_at = TimestampField(_("made at"))
    prevented = models.PositiveIntegerField(
        _("duplicates prevented"),
        default=0,
        db_default=0,
        help_text=_("Calls that were answered with this receipt."),
    )

    class Meta:
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")
        default_permissions = ("view",)
        constraints = (
            models.UniqueConstraint(fields=("job", "key"), name="django_jobs_receipt_key"),
        )

    def __str__(self) -> str:
        return f"#{self.job_id} {self.key}"
