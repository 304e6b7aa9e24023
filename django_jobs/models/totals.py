"""What is counted: runs, outcomes at resources, backlogs, the metrics of a scrape; and alerts."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from .fields import FloatField, TimestampField, index, unique
from .queue import LONGEST_NAME
from .resource import LONGEST_TENANT
from .run import RunOutcome


class BucketsField(models.Field):  # type: ignore[type-arg]
    """Counts of a histogram. Django's ``ArrayField`` needs ``django.contrib.postgres``."""

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
    gate_buckets = BucketsField(_("waiting at gates"))
    gate_seconds = FloatField(_("seconds at gates"))
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


class ResourceTotal(models.Model):
    """How many attempts of jobs that use a resource ended with an outcome since the beginning, what
    the service replied, and a histogram of their times. Added together with :class:`RunTotal`."""

    pk = models.CompositePrimaryKey("resource", "outcome")
    resource = models.CharField(_("resource"), max_length=LONGEST_NAME)
    outcome = models.CharField(_("outcome"), max_length=9, choices=RunOutcome)
    runs = models.BigIntegerField(_("runs"))
    throttled = models.BigIntegerField(_("throttled"), help_text=_("With the error code 429."))
    server_errors = models.BigIntegerField(
        _("server errors"), help_text=_("With an error code from 500 to 599.")
    )
    runtime_buckets = BucketsField(_("runtime"))
    runtime_seconds = FloatField(_("seconds of runtime"))

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.resource}: {self.runs} {self.outcome}"


class TenantTotal(models.Model):
    """How many attempts of a tenant's jobs ended with an outcome, in one hour or since the
    beginning, and histograms of their times. Added together with :class:`RunTotal`.

    Only tenants with a row are counted, so that the table has no more of them. The hours of the
    last day are kept."""

    pk = models.CompositePrimaryKey("period", "began_at", "tenant", "outcome")
    period = models.PositiveIntegerField(_("period"))
    began_at = TimestampField(_("began at"))
    tenant = models.CharField(_("tenant"), max_length=LONGEST_TENANT)
    outcome = models.CharField(_("outcome"), max_length=9, choices=RunOutcome)
    runs = models.BigIntegerField(_("runs"))
    waiting_buckets = BucketsField(_("waiting"))
    waiting_seconds = FloatField(_("seconds of waiting"))
    runtime_buckets = BucketsField(_("runtime"))
    runtime_seconds = FloatField(_("seconds of runtime"))
    slo_runs = models.BigIntegerField(_("runs with an objective"))
    slo_met = models.BigIntegerField(_("runs that met it"))

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.tenant}: {self.runs} {self.outcome}"


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


class BacklogSample(models.Model):
    """Ready and running jobs of a queue at a moment. Written each minute, kept for six hours."""

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
        indexes = (index("django_jobs_resource_outcome", "resource happened_at"),)

    def __str__(self) -> str:
        return f"{self.resource} {'failed' if self.failed else 'succeeded'}"


class Alert(models.Model):
    """A situation of which a rule of ``ALERTS`` sends its begin and its end. ``subject`` is what it
    happens to: a queue, a resource or a run of a workflow. Deleted a week after it ended."""

    id = models.BigAutoField(primary_key=True)
    rule = models.CharField(_("rule"), max_length=100)
    situation = models.CharField(_("situation"), max_length=100)
    subject = models.CharField(_("subject"), max_length=200)
    problem = models.TextField(_("problem"))
    began_at = TimestampField(_("began at"))
    send_after = TimestampField(_("send after"))
    ended_at = TimestampField(_("ended at"), null=True)
    begin_sent_at = TimestampField(_("begin sent at"), null=True)
    end_sent_at = TimestampField(_("end sent at"), null=True)
    tried_at = TimestampField(_("tried at"), null=True)
    attempts = models.PositiveSmallIntegerField(_("attempts"), default=0)

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        default_permissions = ()
        constraints = (unique("django_jobs_alert_open", "rule situation subject", ended_at=None),)

    def __str__(self) -> str:
        return f"{self.rule}: {self.situation} {self.subject}".rstrip()
