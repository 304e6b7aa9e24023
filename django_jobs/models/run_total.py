"""The tables of totals: the runs counted by queue, job type and outcome, and by error."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from .queue import LONGEST_NAME
from .run import RunOutcome
from .timestamps import FloatField, TimestampField


class BucketsField(models.Field):  # type: ignore[type-arg]
    """Counts of a histogram. Django's ``ArrayField`` would need ``django.contrib.postgres`` among
    the installed apps."""

    def db_type(self, connection: Any) -> str:
        return "bigint[]"


class RunTotal(models.Model):
    """How many attempts of a job type ended in a queue with an outcome, in one minute, in one hour,
    or since the beginning, and histograms of their times.

    Workers add new runs every few seconds. Deleting runs does not change it.
    """

    pk = models.CompositePrimaryKey("period", "began_at", "queue", "job_type", "outcome")
    period = models.PositiveIntegerField(
        _("period"), help_text=_("Seconds: 60 or 3,600; 0 is since the beginning.")
    )
    began_at = TimestampField(_("began at"))
    queue = models.CharField(_("queue"), max_length=LONGEST_NAME)
    job_type = models.CharField(_("job type"), max_length=200)
    outcome = models.CharField(_("outcome"), max_length=9, choices=RunOutcome)
    runs = models.BigIntegerField(_("runs"))
    waiting_buckets = BucketsField(_("waiting"))
    waiting_seconds = FloatField(_("seconds of waiting"))
    start_lag_buckets = BucketsField(_("start lag"))
    start_lag_seconds = FloatField(_("seconds of start lag"))
    runtime_buckets = BucketsField(_("runtime"))
    runtime_seconds = FloatField(_("seconds of runtime"))
    slo_runs = models.BigIntegerField(_("runs with an objective"))
    slo_met = models.BigIntegerField(_("runs that met it"))
    retries = models.BigIntegerField(_("Retries"), default=0, db_default=0)
    died = models.BigIntegerField(_("Died"), default=0, db_default=0)
    prevented = models.BigIntegerField(_("duplicates prevented"), default=0, db_default=0)

    class Meta:
        verbose_name = _("total of runs")
        verbose_name_plural = _("totals of runs")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.job_type} in {self.queue}: {self.runs} {self.outcome}"


class ErrorTotal(models.Model):
    """How many attempts of a job type failed alike in one minute, of the most frequent errors.
    Added together with :class:`RunTotal`, and deleted after two hours."""

    pk = models.CompositePrimaryKey("began_at", "job_type", "error_type", "fingerprint")
    began_at = TimestampField(_("began at"))
    job_type = models.CharField(_("job type"), max_length=200)
    error_type = models.CharField(_("error class"), max_length=200)
    fingerprint = models.CharField(_("fingerprint"), max_length=16)
    runs = models.BigIntegerField(_("runs"))

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.error_type} in {self.job_type}: {self.runs}"


class RunWatermark(models.Model):
    """Up to which run the totals count: one row, written together with them."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    run_id = models.BigIntegerField(_("run"))
    reached_at = TimestampField(_("reached at"), null=True)

    class Meta:
        verbose_name = _("watermark of runs")
        verbose_name_plural = _("watermarks of runs")
        default_permissions = ()

    def __str__(self) -> str:
        return f"#{self.run_id}"
