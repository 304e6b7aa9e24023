"""The tables of workflows: versioned definitions, their runs, and what each step waits for."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from asgiref.sync import sync_to_async
from django.db import models
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from ..domain.workflows import When, WorkflowState
from .fields import LOOSE, TimestampField, index, unique
from .resource import LONGEST_TENANT

LONGEST_STEP = 200
"""Characters of the name of a step."""


def above(path: str) -> Any:
    """A function of a higher floor, such as ``api.editing.edit_job``. It is imported by the first
    call of the method, so a process that never calls it does not load it."""
    return import_string(f"django_jobs.{path}")


class WorkflowStatus(models.TextChoices):
    RUNNING = WorkflowState.RUNNING.value, _("running")
    SUCCEEDED = WorkflowState.SUCCEEDED.value, _("succeeded")
    FAILED = WorkflowState.FAILED.value, _("failed")
    CANCELLED = WorkflowState.CANCELLED.value, _("cancelled")
    EXPIRED = WorkflowState.EXPIRED.value, _("expired")


class StepCondition(models.TextChoices):
    """How a step has to end so that one that comes after it may start."""

    SUCCEEDED = When.SUCCEEDED.value, _("succeeded")
    FAILED = When.FAILED.value, _("failed")
    FINISHED = When.FINISHED.value, _("finished")


class RunProgress(NamedTuple):
    """How many of the steps of a run have ended, however they did."""

    ended: int
    steps: int

    def __str__(self) -> str:
        return f"{self.ended:,} of {self.steps:,}"


class WorkflowDefinition(models.Model):
    """One version of a workflow. It follows the code until it has a run, and never changes then."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=200)
    version = models.PositiveIntegerField(_("version"))
    fingerprint = models.CharField(
        _("fingerprint"), max_length=64, help_text=_("A hash of the graph.")
    )
    graph = models.JSONField(_("graph"), help_text=_("The steps, each after those it waits for."))
    created_at = TimestampField(_("created at"))

    class Meta:
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        default_permissions = ("view",)
        permissions = (("start_workflow", "Can start workflows"),)
        constraints = (unique("django_jobs_workflow", "name version"),)

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class WorkflowRun(models.Model):
    """One run of a graph of jobs. It keeps the version with which it started.

    Chains, groups and what a handler spawns have no definition. Only ``django_jobs.lifecycle``
    changes a run.
    """

    id = models.BigAutoField(primary_key=True)
    definition = models.ForeignKey(
        WorkflowDefinition,
        verbose_name=_("definition"),
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="runs",
    )
    name = models.CharField(_("name"), max_length=200)
    status = models.CharField(_("status"), max_length=9, choices=WorkflowStatus)
    payload = models.JSONField(_("payload"), default=dict, help_text=_("Arguments by name."))
    idempotency_key = models.CharField(  # noqa: DJ001 — null is no key; a partial index skips it
        _("idempotency key"), max_length=200, null=True, blank=True
    )
    tenant = models.CharField(  # noqa: DJ001 — null is no tenant
        _("tenant"), max_length=LONGEST_TENANT, null=True, blank=True
    )
    ends_left = models.PositiveIntegerField(
        _("ends left"),
        editable=False,
        help_text=_("Steps that no other waits for, and that have not ended."),
    )
    compensations = models.JSONField(
        _("compensations"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("The jobs that undo steps if the run fails."),
    )
    on_failure = models.CharField(
        _("on failure"),
        max_length=8,
        default="continue",
        db_default="continue",
        editable=False,
        help_text=_("Whether a dead step cancels the others."),
    )
    reason = models.TextField(_("reason"), blank=True, default="", db_default="")
    cancel_requested_at = TimestampField(_("cancel requested at"), null=True, blank=True)
    started_at = TimestampField(_("started at"))
    finished_at = TimestampField(_("finished at"), null=True, blank=True)

    objects: ClassVar[models.Manager[WorkflowRun]] = models.Manager()

    deduplicated: bool = False
    """True if ``start`` returned this run, which holds the idempotency key. Not stored."""

    class Meta:
        verbose_name = _("workflow run")
        verbose_name_plural = _("workflow runs")
        default_permissions = ("view",)
        permissions = (
            ("cancel_workflowrun", "Can cancel workflow runs"),
            ("retry_workflowrun", "Can retry failed workflow runs"),
            ("skip_workflowstep", "Can skip steps of workflow runs"),
            ("signal_workflowrun", "Can signal workflow runs and jobs"),
        )
        indexes = (
            index("django_jobs_run_of_workflow", "name id"),
            index("django_jobs_running_workflow", "id", status="running"),
            # Read to finish what was cut short.
            index(
                "django_jobs_run_cancelled",
                "id",
                status="running",
                cancel_requested_at__isnull=False,
            ),
            # Read by the retention.
            index("django_jobs_workflow_ended", "finished_at", finished_at__isnull=False),
            # The few runs of which a compensation failed. The overview reads them.
            index("django_jobs_run_not_undone", "id", compensations__has_key="failed"),
        )
        constraints = (
            unique(
                "django_jobs_workflow_key",
                "name idempotency_key",
                idempotency_key__isnull=False,
                status="running",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} #{self.pk}"

    def cancel(self, reason: str = "") -> bool:
        """Cancel the steps that have not begun, and ask the running ones to stop. The run ends as
        ``cancelled`` with its last running step. Returns False, and changes nothing, if it has
        ended."""
        return bool(above("lifecycle.operations.workflows.cancel")([self.pk], reason=reason).done)

    def retry(self, reason: str = "") -> None:
        """Start the failed and the cancelled steps again, and what was skipped because of them.
        Steps that succeeded do not run again. Once the compensations of the run have begun, only
        those of them start again.

        Raises :class:`OperationRefused` if none of these failed, or one cannot run with the current
        code.
        """
        above("api.shortcuts.retry_run")(self, reason)

    def signal(self, step: str, data: Any = None, *, name: str | None = None) -> bool:
        """Send a step, by its name, the data for which it waits.

        A ``wait`` step takes it also before it waits. So does a durable handler, if ``name`` is
        that of its signal; without a name it gets the one for which it waits now.

        It is part of your transaction. Returns False, and changes nothing, if the step has ended or
        has its signal already. Raises :class:`OperationRefused`, with the steps that wait for a
        signal, if there is no such step or it waits for none. ``data`` is JSON with the limits of a
        payload; otherwise :class:`PayloadError` is raised.
        """
        send = above("lifecycle.operations.workflows.signal")
        return bool(send(self.pk, step, data, name=name).done)

    async def acancel(self, reason: str = "") -> bool:
        """:meth:`cancel` for async code."""
        return await sync_to_async(self.cancel)(reason)

    async def aretry(self, reason: str = "") -> None:
        """:meth:`retry` for async code."""
        await sync_to_async(self.retry)(reason)

    async def asignal(self, step: str, data: Any = None, *, name: str | None = None) -> bool:
        """:meth:`signal` for async code."""
        return await sync_to_async(self.signal)(step, data, name=name)

    def progress(self) -> RunProgress:
        """How many of the steps have ended, and how many there are; as text ``30 of 500``. One
        statement counts them, those of a fan-out too."""
        counts = self.steps.aggregate(
            ended=models.Count("pk", filter=models.Q(finished_at__isnull=False)),
            steps=models.Count("pk"),
        )
        return RunProgress(**counts)


class Dependency(models.Model):
    """That the step ``child`` waits for the step ``parent``."""

    pk = models.CompositePrimaryKey("parent_id", "child_id")
    workflow_run = models.ForeignKey(
        WorkflowRun, models.DO_NOTHING, "dependencies", verbose_name=_("workflow run"), **LOOSE
    )
    parent = models.ForeignKey("Job", models.DO_NOTHING, "+", verbose_name=_("parent"), **LOOSE)
    child = models.ForeignKey("Job", models.DO_NOTHING, "+", verbose_name=_("child"), **LOOSE)
    when = models.CharField(_("when"), max_length=9, choices=StepCondition)
    takes = models.JSONField(
        _("takes"),
        null=True,
        blank=True,
        help_text=_("The arguments of the child that get the result of the parent."),
    )
    condition = models.JSONField(
        _("condition"),
        null=True,
        blank=True,
        help_text=_("What the result of the parent has to be besides."),
    )

    class Meta:
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        default_permissions = ()
        indexes = (index("django_jobs_parents", "child parent"),)

    def __str__(self) -> str:
        return f"#{self.child_id} after #{self.parent_id}"
