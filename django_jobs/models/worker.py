"""The table of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from ..separators import number_text
from .fields import FloatField, TimestampField, index


class WorkerStatus(models.TextChoices):
    RUNNING = "running", _("running")
    DRAINING = "draining", _("draining")
    STOPPED = "stopped", _("stopped")
    LOST = "lost", _("lost")


NOT_ENDED = (WorkerStatus.RUNNING, WorkerStatus.DRAINING)
IS_ALIVE = (
    "worker.status IN ('running', 'draining') AND worker.lease_expires_at >= statement_timestamp()"
)
"""In SQL, of a table called ``worker``: it has not ended, and its lease has not run out. Its jobs
are its own until then."""


class WorkerQuerySet(models.QuerySet["Worker"]):
    def alive(self) -> Self:
        """Those that have not ended, and whose lease has not run out: as :data:`IS_ALIVE`."""
        return self.filter(status__in=NOT_ENDED, lease_expires_at__gte=Now())


class Worker(models.Model):
    """One run of one worker process. A restart makes a new row with a new random id, which is never
    used again, so that writes of the old process are refused."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=200)
    host = models.CharField(_("host"), max_length=200)
    pid = models.PositiveIntegerField(_("process id"))
    queues = models.JSONField(_("queues"), default=list)
    threads = models.PositiveIntegerField(_("threads"), default=1)
    async_slots = models.PositiveIntegerField(_("async slots"), default=0, db_default=0)
    pools = models.JSONField(_("thread pools"), default=list, blank=True)
    code_version = models.CharField(_("code version"), max_length=100, blank=True, default="")
    job_types = models.JSONField(_("known job types"), default=list)
    payload_versions = models.JSONField(
        _("newest payload versions"),
        null=True,
        blank=True,
        help_text=_(
            "By job type, unless it is 1. Null: a worker of an older release, which takes any."
        ),
    )
    status = models.CharField(
        _("status"), max_length=8, choices=WorkerStatus, default=WorkerStatus.RUNNING
    )
    started_at = TimestampField(_("started at"))
    heartbeat_at = TimestampField(_("last heartbeat"))
    schedules_seen_at = TimestampField(_("last check of the schedules"), null=True, blank=True)
    lease_expires_at = TimestampField(_("lease expires at"))
    claim_failures = models.PositiveBigIntegerField(
        _("failed claims"),
        default=0,
        db_default=0,
        help_text=_("Rounds of claims that failed, as of the last heartbeat."),
    )
    ended_runs = models.PositiveBigIntegerField(
        _("runs"),
        default=0,
        db_default=0,
        help_text=_("Attempts that it has ended, as of the last heartbeat."),
    )
    failed_runs = models.PositiveBigIntegerField(_("failed runs"), default=0, db_default=0)
    listens = models.BooleanField(
        _("receives notifications"),
        null=True,
        help_text=_("As of the last heartbeat. Null: not known."),
    )
    supervisor_pid = models.PositiveIntegerField(
        _("process id of its command"), null=True, blank=True
    )
    rss_mb = models.PositiveIntegerField(
        _("memory in MB"), null=True, blank=True, help_text=_("As of the last heartbeat.")
    )
    started_jobs = models.JSONField(
        _("started jobs"),
        null=True,
        blank=True,
        help_text=_(
            "As of the last heartbeat, the oldest first: id, seconds since the start, and the MB "
            "of its process if it has one."
        ),
    )
    clock_skew = FloatField(null=True, blank=True)
    drain_requested_at = TimestampField(_("drain requested at"), null=True, blank=True)
    draining_at = TimestampField(_("draining since"), null=True, blank=True)
    stopped_at = TimestampField(_("stopped at"), null=True, blank=True)
    stop_reason = models.CharField(_("reason for stopping"), max_length=300, blank=True, default="")

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        permissions = (
            ("stop_worker", "Can ask workers to drain and stop"),
            ("run_doctor", "Can see what the doctor finds"),
            ("test_alert", "Can send tests of alerts"),
        )
        indexes = (
            index(
                "django_jobs_worker_alive", "lease_expires_at", status__in=("running", "draining")
            ),
            index("django_jobs_worker_ended", "stopped_at", stopped_at__isnull=False),
        )

    def __str__(self) -> str:
        return f"{self.name} #{self.pk}"

    @property
    def place(self) -> str:
        """Where it runs: ``web-1:4711``."""
        return f"{self.host}:{self.pid}"

    @property
    def has_ended(self) -> bool:
        """Whether the worker is neither running nor draining, as of the last write to the row."""
        return self.status not in NOT_ENDED


def in_hand_text(*processes: tuple[int, int, int]) -> tuple[str, str]:
    """Of the claimed jobs of processes, each with its threads and its async slots: those that run
    with the slots that there are, ``4 / 4``, and those that wait for one. All jobs for which there
    is a slot count as running: which kind a job needs is not looked at."""
    running = sum(min(claimed, threads + on_loop) for claimed, threads, on_loop in processes)
    waiting = sum(claimed for claimed, _, _ in processes) - running
    slots = slots_text(
        sum(threads for _, threads, _ in processes), sum(on_loop for _, _, on_loop in processes)
    )
    return f"{number_text(running)} / {slots}", number_text(waiting)


def slots_text(threads: int, async_slots: int) -> str:
    """The threads of a worker, and the slots of its loop if it has any: ``4 + 100``."""
    return (
        f"{number_text(threads)} + {number_text(async_slots)}"
        if async_slots
        else number_text(threads)
    )


def pools_text(pools: Iterable[Mapping[str, Any]]) -> str:
    """The named pools of a worker as they are written after ``--pool``: ``heavy:2 mail,web:16``."""
    return " ".join(f"{','.join(pool['queues'])}:{pool['threads']}" for pool in pools)
