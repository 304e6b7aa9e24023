"""The table of jobs: one row for each request to run a handler."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Never, TypedDict, Unpack

from asgiref.sync import sync_to_async
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..domain.backoff import Backoff
from ..domain.numbers import HIGHEST_PRIORITY, LOWEST_PRIORITY
from ..domain.states import LIVE, JobState
from ..domain.workflows import Skipped
from ..exceptions import OperationRefused
from .fields import LOOSE, FloatField, TagsField, TagsIndex, TimestampField, check, index, unique
from .querysets import DeadLetterManager, JobQuerySet
from .resource import LONGEST_TENANT
from .worker import Worker
from .workflow import LONGEST_STEP, WorkflowRun, above

JOB_PERMISSIONS = {
    "cancel_job": "Can cancel jobs",
    "stop_job": "Can stop running jobs by force",
    "reprioritize_job": "Can change the priority of jobs",
    "run_job": "Can run scheduled jobs now",
    "edit_job": "Can edit jobs that have not started, and dead ones",
    "enqueue_job": "Can enqueue jobs by hand",
    "inspect_job": "Can see what running jobs are doing",
    "replay_job": "Can replay dead jobs",
    "dismiss_job": "Can dismiss dead jobs",
    "export_job": "Can export lists of jobs, failures, runs and ticks",
    "view_job_payload": "Can see payloads and results in full",
    "view_job_error": "Can see error messages and tracebacks",
    "reveal_job": "Can reveal hidden payloads and errors, which the history notes",
}


class NotOfAJob:
    """An attribute that the results of other libraries have. The error names the replacement."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, job: object, owner: type) -> Never:
        raise AttributeError(
            f"'Job' object has no attribute {self._name!r}; write job.wait(), or "
            "job.refresh_from_db(), and then read job.status and job.result",
            name=self._name,
            obj=job,
        )


class JobChanges(TypedDict, total=False):
    """What :meth:`Job.edit <django_jobs.models.Job.edit>` can change. What is left out stays.

    ``payload`` is a whole new payload, arguments by name. ``run_at`` is an aware datetime; one in
    the past means now. ``by`` and ``reason`` are stored with the job.
    """

    payload: Mapping[str, Any]
    queue: str
    priority: int
    run_at: datetime
    by: str
    reason: str


TAKEN = ("ready", "running")
"""Jobs that have what their gates count."""
QUARANTINED = "quarantined"
"""The reason of a blocked job whose type is quarantined."""


class JobStatus(models.TextChoices):
    """The status of a job. docs/lifecycle.md has the diagram."""

    WAITING = JobState.WAITING.value, _("waiting")
    SCHEDULED = JobState.SCHEDULED.value, _("scheduled")
    BLOCKED = JobState.BLOCKED.value, _("blocked")
    READY = JobState.READY.value, _("ready")
    RUNNING = JobState.RUNNING.value, _("running")
    SUCCEEDED = JobState.SUCCEEDED.value, _("succeeded")
    DEAD = JobState.DEAD.value, _("dead")
    CANCELLED = JobState.CANCELLED.value, _("cancelled")


class StepSkipped(models.TextChoices):
    FAILED = Skipped.FAILED.value, _("a step before it failed")
    UNNEEDED = Skipped.UNNEEDED.value, _("not needed")
    PASSED = Skipped.PASSED.value, _("passed over")


class Job(models.Model):
    """One request to run a handler. Only ``django_jobs.lifecycle`` changes it."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(_("queue"), max_length=100)
    job_type = models.CharField(_("job type"), max_length=200)
    payload = models.JSONField(_("payload"), default=dict, help_text=_("Arguments by name."))
    payload_version = models.PositiveSmallIntegerField(_("payload version"), default=1)
    status = models.CharField(_("status"), max_length=9, choices=JobStatus)
    priority = models.SmallIntegerField(_("priority"), default=0)
    rank = FloatField(
        _("rank"), help_text=_("Due time in epoch seconds minus the weight of the priority.")
    )
    available_at = TimestampField(_("due at"))
    attempt = models.PositiveIntegerField(_("attempt"), default=0, db_default=0)
    failures = models.PositiveIntegerField(_("failures"), default=0, db_default=0)
    crashes = models.PositiveSmallIntegerField(_("crashes in a row"), default=0, db_default=0)
    max_attempts = models.PositiveIntegerField(_("maximum attempts"), default=5)
    max_crashes = models.PositiveSmallIntegerField(_("maximum crashes"), default=3)
    backoff = models.JSONField(_("backoff"), null=True, blank=True)
    timeout = FloatField(_("time-out"), null=True, blank=True)
    at_most_once = models.BooleanField(
        _("at most once"),
        default=False,
        db_default=False,
        help_text=_("A failed or lost attempt is never retried."),
    )
    expires_at = TimestampField(_("expires at"), null=True, blank=True)
    retry_until = TimestampField(_("retried until"), null=True, blank=True)
    worker = models.ForeignKey(
        Worker, models.DO_NOTHING, "jobs", verbose_name=_("worker"), null=True, blank=True, **LOOSE
    )
    ready_at = TimestampField(
        _("ready at"), null=True, blank=True, help_text=_("When its gates let it go.")
    )
    claimed_at = TimestampField(_("claimed at"), null=True, blank=True)
    started_at = TimestampField(_("started at"), null=True, blank=True)
    finished_at = TimestampField(_("finished at"), null=True, blank=True)
    result = models.JSONField(_("result"), null=True, blank=True)
    last_error = models.TextField(_("last error"), blank=True, default="", db_default="")
    fingerprint = models.CharField(
        _("fingerprint"),
        max_length=16,
        blank=True,
        default="",
        db_default="",
        help_text=_("Of the last error. Failures are grouped by it."),
    )
    reason = models.TextField(
        _("reason"),
        blank=True,
        default="",
        db_default="",
        help_text=_("Why the job is dead or cancelled."),
    )
    idempotency_key = models.CharField(  # noqa: DJ001 — null is no key; a partial index skips it
        _("idempotency key"), max_length=200, null=True, blank=True
    )
    cancel_requested_at = TimestampField(_("cancel requested at"), null=True, blank=True)
    force_requested_at = TimestampField(_("stop by force requested at"), null=True, blank=True)
    # A job outlives its schedule.
    schedule = models.ForeignKey(
        "Schedule",
        models.DO_NOTHING,
        "jobs",
        verbose_name=_("schedule"),
        null=True,
        blank=True,
        **LOOSE,
    )
    scheduled_for = TimestampField(
        _("scheduled for"), null=True, blank=True, help_text=_("The due time of its schedule.")
    )
    tenant = models.CharField(  # noqa: DJ001 — null is no tenant; a partial index skips it
        _("tenant"), max_length=LONGEST_TENANT, null=True, blank=True
    )
    concurrency_key = models.CharField(  # noqa: DJ001 — null is no key; a partial index skips it
        _("concurrency key"), max_length=200, null=True, blank=True
    )
    resources = models.JSONField(
        _("resources"), null=True, blank=True, help_text=_("The names of those that it uses.")
    )
    gates = models.TextField(  # noqa: DJ001 — null is no gate; partial indexes skip it
        _("gates"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("All gates as one text. Jobs with the same gates wait in one line."),
    )
    workflow_run = models.ForeignKey(
        WorkflowRun,
        models.DO_NOTHING,
        "steps",
        verbose_name=_("workflow run"),
        null=True,
        blank=True,
        **LOOSE,
    )
    step = models.CharField(  # noqa: DJ001 — null is no step of a workflow
        _("step"), max_length=LONGEST_STEP, null=True, blank=True
    )
    prerequisites = models.PositiveIntegerField(
        _("prerequisites left"), null=True, blank=True, editable=False
    )
    skipped = models.CharField(  # noqa: DJ001 — null is not skipped
        _("skipped"), max_length=8, choices=StepSkipped, null=True, blank=True
    )
    awaits = models.CharField(  # noqa: DJ001 — null is no signal
        _("signal it waits for"), max_length=200, null=True, blank=True
    )
    signals = models.JSONField(
        _("signals"), null=True, blank=True, help_text=_("The data that was sent to it, by name.")
    )
    tags = TagsField(_("tags"), null=True, blank=True)
    replays = models.PositiveIntegerField(_("replays"), default=0, db_default=0)
    headers = models.JSONField(_("headers"), default=dict, blank=True)
    created_at = TimestampField(_("created at"))

    objects = JobQuerySet.as_manager()

    deduplicated: bool = False
    """True if ``enqueue`` returned this existing job, which holds the idempotency key, instead of a
    new one. Not stored. If that job was deleted, its status is empty, and only its id, queue, job
    type and key are known."""

    get, ready, successful, failed, state = (NotOfAJob() for _name in range(5))

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = tuple(JOB_PERMISSIONS.items())
        indexes = (
            index("django_jobs_ready", "queue rank id", status="ready"),
            index("django_jobs_scheduled", "available_at", status="scheduled"),
            index("django_jobs_running", "worker", status="running"),
            # Each worker looks for these every second while it has prefetched jobs. Few match.
            index(
                "django_jobs_cancel_requested",
                "worker",
                status="running",
                cancel_requested_at__isnull=False,
            ),
            # Dead letters are few and stay. Without the index, their page reads the whole table.
            index("django_jobs_dead", "id", status="dead"),
            # The limits on dead jobs read the newest and the oldest ones of a queue or a job type.
            index("django_jobs_dead_queue", "queue finished_at id", status="dead"),
            index("django_jobs_dead_type", "job_type finished_at id", status="dead"),
            # The groups of failures. A step in the index finds the next group, and its entries
            # alone count it.
            index(
                "django_jobs_dead_failure", "queue job_type fingerprint finished_at", status="dead"
            ),
            index(
                "django_jobs_retried",
                "queue job_type fingerprint",
                status="scheduled",
                failures__gt=0,
            ),
            # Read before a schedule fires. Jobs without a schedule are not in the index.
            index(
                "django_jobs_live_schedule",
                "schedule",
                schedule__isnull=False,
                status__in=("waiting", "scheduled", "blocked", "ready", "running"),
            ),
            # Read at each look at the schedules: the jobs that wait for the one before.
            index(
                "django_jobs_waiting_schedule",
                "schedule id",
                schedule__isnull=False,
                status="waiting",
            ),
            # The jobs that a quarantine blocks. No other job writes to this index.
            index("django_jobs_quarantined", "job_type id", status="blocked", reason=QUARANTINED),
            # The lines of jobs that wait for gates, and below them the jobs that hold what the
            # gates count. A job without a gate is in none of the three.
            index("django_jobs_gates", "gates rank id", gates__isnull=False, status="blocked"),
            index(
                "django_jobs_taken_key",
                "concurrency_key",
                concurrency_key__isnull=False,
                status__in=TAKEN,
            ),
            index(
                "django_jobs_taken_tenant",
                "queue tenant",
                tenant__isnull=False,
                status__in=TAKEN,
            ),
            index(
                "django_jobs_taken_resource",
                "id",
                resources__isnull=False,
                status__in=TAKEN,
            ),
            # The steps of a run. Jobs outside of workflows are not in the index.
            index("django_jobs_steps", "workflow_run step", workflow_run__isnull=False),
            # Jobs without tags are not in the index.
            TagsIndex(
                fields=("tags",), condition=models.Q(tags__isnull=False), name="django_jobs_tags"
            ),
            # The jobs that wait for a signal, until their time-out.
            index("django_jobs_awaiting", "available_at", status="waiting", awaits__isnull=False),
        )
        constraints = (
            unique(
                "django_jobs_live_key",
                "queue idempotency_key",
                idempotency_key__isnull=False,
                status__in=("waiting", "scheduled", "blocked", "ready", "running"),
            ),
            check("django_jobs_status", status__in=[state.value for state in JobState]),
            check(
                "django_jobs_worker_iff_running",
                models.Q(status="running", worker__isnull=False)
                | (~models.Q(status="running") & models.Q(worker__isnull=True)),
            ),
            check("django_jobs_priority", priority__range=(LOWEST_PRIORITY, HIGHEST_PRIORITY)),
        )

    def __str__(self) -> str:
        return f"{self.job_type} #{self.pk}"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended. It then runs again only if it is replayed."""
        return not self.is_live

    @property
    def is_live(self) -> bool:
        """Whether the job has not ended. It then holds its idempotency key."""
        return self.status in LIVE

    @property
    def blocked_by(self) -> str:
        """What a blocked or waiting job waits for, in words, and until when the handler of a
        scheduled one sleeps; empty for any other. It is read from the database, in one statement.
        ``manage.py jobwhy`` says more."""
        return str(above("why.evaluation.blocked_by")(self))

    def signal(self, name: str, data: Any = None) -> bool:
        """Send the job a signal for which its handler waits, or will wait, with
        ``run.wait_for(name)``.

        It is part of your transaction, and kept until the handler asks for it. Returns False, and
        changes nothing, if the job has ended, has a signal of this name already, or has waited for
        it in vain. ``data`` is JSON with the limits of a payload; otherwise
        :class:`~django_jobs.PayloadError` is raised.
        """
        return bool(above("lifecycle.operations.signals.signal")(self.pk, name, data).done)

    async def asignal(self, name: str, data: Any = None) -> bool:
        """:meth:`signal` for async code."""
        return await sync_to_async(self.signal)(name, data)

    def edit(self, **changes: Unpack[JobChanges]) -> None:
        """Change a job that has not started, or change a dead one and replay it; see
        :class:`~django_jobs.models.job.JobChanges`. The instance is read again. Raises what an
        enqueue raises, and :class:`~django_jobs.OperationRefused` if the job has another state."""
        refused = above("api.editing.edit_job")(self.pk, **changes).refused
        if refused:
            raise OperationRefused(f"job {self.pk}: {refused[self.pk]}")
        self.refresh_from_db()

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait until the job has ended, and return its status: ``succeeded``, ``dead`` or
        ``cancelled``. The instance is read again, so that it has the ``result``.

        ``timeout`` is in seconds; after it ``TimeoutError`` is raised, and the job continues. None
        waits for ever. Inside ``transaction.atomic()`` :class:`~django_jobs.JobsError` is raised
        for a job that has not ended, because a worker cannot see what is not committed.
        ``Job.DoesNotExist``: the job was deleted. While anything waits, the process has one
        connection to the database more.
        """
        return JobStatus(above("api.waiting.wait")(self, timeout))

    async def await_end(self, timeout: float | None = None) -> JobStatus:
        """:meth:`wait` for async code. It holds no thread."""
        return JobStatus(await above("api.waiting.await_end")(self, timeout))

    @property
    def backoff_rule(self) -> Backoff:
        """The rule for the waits between the attempts, as a :class:`~django_jobs.Backoff`."""
        return Backoff.from_json(self.backoff)


class DeadLetter(Job):
    """A dead job. It is not retried unless it is replayed."""

    objects: ClassVar[Any] = DeadLetterManager()

    class Meta:
        proxy = True
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ()
