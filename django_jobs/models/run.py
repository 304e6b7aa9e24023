"""The table of runs: one row for each attempt that has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from django.db import models
from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext_lazy as _

from ..domain.decisions import CRASHED
from ..domain.states import RunState
from .job import Job
from .timestamps import FloatField, TimestampField
from .worker import Worker

Jobs = TypeVar("Jobs", bound=models.QuerySet[Any])


class RunOutcome(models.TextChoices):
    """How an attempt ended."""

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
    # No constraint in the database: it costs a quarter of the throughput. The unique pair
    # below is the index.
    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        on_delete=models.CASCADE,
        related_name="runs",
        db_constraint=False,
        db_index=False,
    )
    attempt = models.PositiveIntegerField(_("attempt"))
    outcome = models.CharField(_("outcome"), max_length=9, choices=RunOutcome)
    worker = models.ForeignKey(
        Worker,
        verbose_name=_("worker"),
        null=True,
        on_delete=models.DO_NOTHING,
        related_name="runs",
        db_constraint=False,
        db_index=False,
    )
    available_at = TimestampField(_("due at"))
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
        indexes = (
            # Read every few seconds: the job types that crashed a process in which they ran alone.
            models.Index(
                fields=("finished_at",),
                condition=models.Q(outcome="lost", error_type=CRASHED),
                name="django_jobs_run_crashed",
            ),
        )
        constraints = (
            models.UniqueConstraint(fields=("job", "attempt"), name="django_jobs_run_attempt"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=[state.value for state in RunState]),
                name="django_jobs_run_outcome",
            ),
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
