"""The table of operations on all jobs that match."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..domain.states import UNFINISHED, BulkState
from .fields import TimestampField, index


class BulkStatus(models.TextChoices):
    PENDING = BulkState.PENDING.value, _("pending")
    RUNNING = BulkState.RUNNING.value, _("running")
    COMPLETED = BulkState.COMPLETED.value, _("completed")
    STOPPED = BulkState.STOPPED.value, _("stopped")
    FAILED = BulkState.FAILED.value, _("failed")


class BulkAction(models.TextChoices):
    CANCEL = "cancel", _("cancel")
    REPRIORITIZE = "reprioritize", _("change priority")
    RUN_NOW = "run_now", _("run now")
    REPLAY = "replay", _("replay")
    DISMISS = "dismiss", _("dismiss")


PERMISSIONS: Mapping[str, str] = {
    BulkAction.CANCEL: "django_jobs.cancel_job",
    BulkAction.REPRIORITIZE: "django_jobs.reprioritize_job",
    BulkAction.RUN_NOW: "django_jobs.run_job",
    BulkAction.REPLAY: "django_jobs.replay_job",
    BulkAction.DISMISS: "django_jobs.dismiss_job",
}


class BulkOperation(models.Model):
    """What a person asked for all jobs that match. The workers carry it out in chunks, each in one
    transaction with the row that counts it."""

    id = models.BigAutoField(primary_key=True)
    action = models.CharField(_("action"), max_length=20, choices=BulkAction)
    arguments = models.JSONField(_("arguments"), default=dict, blank=True)
    terms = models.JSONField(_("terms"), help_text=_("Which jobs: all terms are true of them."))
    plan = models.JSONField(_("plan"), null=True, blank=True, help_text=_("Null: no waves."))
    actor_id = models.CharField(
        _("actor"), max_length=100, blank=True, default="", help_text=_("Empty: a command.")
    )
    actor_name = models.CharField(_("requested by"), max_length=200, blank=True, default="")
    reason = models.CharField(_("reason"), max_length=300, blank=True, default="")
    max_id = models.BigIntegerField(
        _("up to job"), help_text=_("Jobs with a higher id came later and are left alone.")
    )
    status = models.CharField(
        _("status"), max_length=9, choices=BulkStatus, default=BulkStatus.PENDING
    )
    why = models.CharField(_("why it ended"), max_length=300, blank=True, default="", db_default="")
    matched = models.BigIntegerField(
        _("matched"), null=True, blank=True, help_text=_("About how many jobs, at the start.")
    )
    done = models.BigIntegerField(_("done"), default=0, db_default=0)
    left = models.BigIntegerField(_("left"), default=0, db_default=0)
    succeeded = models.BigIntegerField(_("succeeded"), default=0, db_default=0)
    failed = models.BigIntegerField(_("failed again"), default=0, db_default=0)
    cancelled = models.BigIntegerField(_("cancelled"), default=0, db_default=0)
    reasons = models.JSONField(_("reasons"), default=dict, blank=True)
    cursor = models.BigIntegerField(_("done up to job"), default=0, db_default=0)
    progress = models.JSONField(
        _("progress"), default=dict, blank=True, help_text=_("What the next chunk continues.")
    )
    next_at = TimestampField(_("next chunk at"))
    created_at = TimestampField(_("created at"))
    started_at = TimestampField(_("started at"), null=True, blank=True)
    finished_at = TimestampField(_("finished at"), null=True, blank=True)
    stop_requested_by = models.CharField(
        _("stop requested by"), max_length=200, blank=True, default="", db_default=""
    )

    class Meta:
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        default_permissions = ("view",)
        indexes = (
            # Each worker looks every second. Few operations are unfinished.
            index("django_jobs_bulk_unfinished", "next_at", status__in=("pending", "running")),
        )

    deduplicated: bool = False
    """Whether it was under way already when it was asked for again."""

    def __str__(self) -> str:
        about = ": ".join(filter(None, (self.terms.get("job_type"), self.error_class)))
        return " ".join(filter(None, (self.get_action_display(), about, f"#{self.pk}")))

    @property
    def error_class(self) -> str:
        """The class of the error by whose fingerprint it chooses jobs; empty if it chooses by none,
        or if none of the jobs at its start had it."""
        return str(self.progress.get("error_class", ""))

    @property
    def outcomes_unknown(self) -> int:
        """How many of the jobs that it replayed have not ended, as far as it knows."""
        return max(self.done - self.succeeded - self.failed - self.cancelled, 0)

    @property
    def is_unfinished(self) -> bool:
        """Whether workers carry it out, or will."""
        return self.status in UNFINISHED

    @property
    def has_looked_at_all(self) -> bool:
        """Whether it went through all jobs that match. A replay may still await outcomes."""
        return self.status == BulkState.COMPLETED or bool(self.progress.get("all_sent"))

    @property
    def no_longer_matched(self) -> int:
        """At least how many of the jobs that matched at the start did not when their turn came: 0
        until it has looked at all, and if they were estimated. A job that came to match later hides
        one of them."""
        if not (self.has_looked_at_all and self.progress.get("counted")):
            return 0
        return max((self.matched or 0) - self.done - self.left, 0)

    def worked(self, until: datetime) -> timedelta | None:
        """How long it was carried out, without the times it stood still; None before it began."""
        if self.started_at is None:
            return None
        stopped = timedelta(seconds=self.progress.get("stopped_seconds", 0.0))
        return max(until - self.started_at - stopped, timedelta(0))
