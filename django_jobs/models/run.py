"""The table of runs: one row for each attempt that has ended. And what else is kept of a job:
progress and checkpoints, receipts, questions about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from django.db import models
from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext_lazy as _

from ..domain.payload import LONGEST_KEY
from ..domain.states import CRASHED, RunState
from .fields import LOOSE, FloatField, TimestampField, check, index, unique
from .job import Job
from .worker import Worker

Jobs = TypeVar("Jobs", bound=models.QuerySet[Any])


class RunOutcome(models.TextChoices):
    SUCCEEDED = RunState.SUCCEEDED.value, _("succeeded")
    FAILED = RunState.FAILED.value, _("failed")
    TIMED_OUT = RunState.TIMED_OUT.value, _("timed out")
    LOST = RunState.LOST.value, _("lost")
    SNOOZED = RunState.SNOOZED.value, _("snoozed")
    CANCELLED = RunState.CANCELLED.value, _("cancelled")
    RELEASED = RunState.RELEASED.value, _("released")


class Run(models.Model):
    """One attempt of a job that has ended. Written when the attempt ends, and never changed."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, "runs", verbose_name=_("job"), **LOOSE)
    attempt = models.PositiveIntegerField(_("attempt"))
    outcome = models.CharField(_("outcome"), max_length=9, choices=RunOutcome)
    worker = models.ForeignKey(
        Worker, models.DO_NOTHING, "runs", verbose_name=_("worker"), null=True, **LOOSE
    )
    available_at = TimestampField(_("due at"))
    ready_at = TimestampField(_("ready at"), null=True, help_text=_("When its gates let it go."))
    claimed_at = TimestampField(_("claimed at"))
    started_at = TimestampField(_("started at"), null=True)
    finished_at = TimestampField(_("finished at"))
    error_type = models.CharField(_("error class"), max_length=200, blank=True, default="")
    error_code = models.CharField(
        _("error code"), max_length=32, blank=True, default="", db_default=""
    )
    error_message = models.TextField(_("error message"), blank=True, default="")
    traceback = models.TextField(_("traceback"), blank=True, default="")
    fingerprint = models.CharField(_("fingerprint"), max_length=16, blank=True, default="")
    cpu_seconds = FloatField(_("CPU seconds"), null=True)
    max_rss_kb = models.IntegerField(_("memory in kB"), null=True)
    queries = models.IntegerField(_("queries"), null=True)
    query_seconds = FloatField(_("seconds of queries"), null=True)
    traceparent = models.CharField(
        _("traceparent"), max_length=55, blank=True, default="", db_default=""
    )
    log = models.TextField(_("log"), null=True)  # noqa: DJ001 — most runs have none

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        default_permissions = ("view",)
        indexes = (
            # Read every few seconds: the job types that crashed a process in which they ran alone.
            index("django_jobs_run_crashed", "finished_at", outcome="lost", error_type=CRASHED),
        )
        constraints = (
            unique("django_jobs_run_attempt", "job attempt"),
            check("django_jobs_run_outcome", outcome__in=[state.value for state in RunState]),
        )

    def __str__(self) -> str:
        return _("#%(job)s attempt %(attempt)s: %(outcome)s") % {
            "job": self.job_id,
            "attempt": self.attempt,
            "outcome": self.get_outcome_display(),
        }

    @property
    def duration(self) -> timedelta | None:
        """How long the handler ran; None if it never started."""
        return self.finished_at - self.started_at if self.started_at else None


def by_last_run(jobs: Jobs, **values: str) -> Jobs:
    """The ended jobs among ``jobs`` whose last run has these values.

    Costs a search of one index for each job. As a join, PostgreSQL might read all runs instead. The
    time is that of the job, by which all partitions but one are left out.
    """
    last = Run.objects.filter(
        job=OuterRef("pk"), attempt=OuterRef("attempt"), finished_at=OuterRef("finished_at")
    )
    for column, value in values.items():
        name = f"last_{column}"
        jobs = jobs.alias(**{name: Subquery(last.values(column)[:1])}).filter(**{name: value})
    return jobs


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
        default_permissions = ()

    def __str__(self) -> str:
        share = "" if self.fraction is None else f" {self.fraction:.0%}"
        return f"#{self.job_id}{share} {self.note}".rstrip()


class Receipt(models.Model):
    """What an attempt stored for later ones: the answer of a ``run.once(key, ...)`` call, or until
    when ``run.sleep(key, ...)`` sleeps, or ``run.wait_for(name, ...)`` waits."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, "receipts", verbose_name=_("job"), **LOOSE)
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
        default_permissions = ()
        constraints = (unique("django_jobs_receipt_key", "job key"),)

    def __str__(self) -> str:
        return f"#{self.job_id} {self.key}"


class Effect(models.Model):
    """The answer of a ``run.once(key, ..., scope="effect")`` call for all jobs, or the attempt that
    makes the call now."""

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(_("key"), max_length=LONGEST_KEY)
    job_id = models.BigIntegerField(_("job"))  # which may have been deleted
    attempt = models.PositiveIntegerField(_("attempt"))
    answer = models.JSONField(_("answer"), null=True)
    made_at = TimestampField(
        _("made at"), null=True, help_text=_("Empty while the call is being made.")
    )
    expires_at = TimestampField(_("expires at"))
    prevented = models.PositiveIntegerField(_("duplicates prevented"), default=0, db_default=0)

    class Meta:
        verbose_name = _("effect")
        verbose_name_plural = _("effects")
        default_permissions = ()
        indexes = (index("django_jobs_effect_expiry", "expires_at"),)
        constraints = (unique("django_jobs_effect_key", "key"),)

    def __str__(self) -> str:
        return self.key


class Inspection(models.Model):
    """A person asked what an attempt is doing. Its worker writes the answer, kept for an hour."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField(_("job"))
    attempt = models.PositiveIntegerField(_("attempt"))
    worker_id = models.BigIntegerField(_("worker"))
    asked_by = models.CharField(_("asked by"), max_length=200, blank=True, default="")
    asked_at = TimestampField(_("asked at"))
    answered_at = TimestampField(_("answered at"), null=True)
    process = models.IntegerField(_("process"), null=True)
    thread = models.CharField(_("thread"), max_length=200, blank=True, default="")
    ran_seconds = FloatField(_("ran for seconds"), null=True)
    stack = models.TextField(_("stack"), blank=True, default="")

    class Meta:
        verbose_name = _("inspection")
        verbose_name_plural = _("inspections")
        default_permissions = ()
        indexes = (index("django_jobs_unanswered", "worker_id", answered_at=None),)

    def __str__(self) -> str:
        return f"#{self.job_id} attempt {self.attempt}"


class StoredFile(models.Model):
    """A file of ``DJANGO_JOBS["STORAGE"]``, and a job that refers to it. It is deleted after the
    last of its jobs. Job 0 has the last day whose files were compared with this table."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=255)
    job_id = models.BigIntegerField(_("job"))  # which may have been deleted
    is_checkpoint = models.BooleanField(_("is a checkpoint"), default=False, db_default=False)
    created_at = TimestampField(_("created at"))

    class Meta:
        verbose_name = _("stored file")
        verbose_name_plural = _("stored files")
        default_permissions = ()
        constraints = (unique("django_jobs_stored_file_name", "name job_id"),)

    def __str__(self) -> str:
        return self.name


class UniqueKey(models.Model):
    """An idempotency key that is unique until ``expires_at``, and the job that was made for it.

    Written by requests with ``unique_for``, in the transaction of their job.
    """

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(_("queue"), max_length=100)
    key = models.CharField(_("key"), max_length=200)
    job_type = models.CharField(_("job type"), max_length=200)
    # The row outlives its job if retention is shorter.
    job = models.ForeignKey(Job, models.DO_NOTHING, "+", verbose_name=_("job"), **LOOSE)
    expires_at = TimestampField(_("expires at"))

    class Meta:
        verbose_name = _("unique key")
        verbose_name_plural = _("unique keys")
        default_permissions = ()
        indexes = (index("django_jobs_unique_key_expiry", "expires_at"),)
        constraints = (unique("django_jobs_unique_key", "queue key"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.key}"
