"""The tables, with their columns in the order of the models. Jobs and runs are partitioned.

Every later migration is made of the operations of ``_patience``.
"""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

import django_jobs.models.fields
import django_jobs.models.schedule
import django_jobs.models.totals

from . import _enqueue_function

# The default waits until a fifth of a table is dead, which is never soon enough where millions of
# rows are finished jobs. The row of a job is rewritten twice in its life.
TUNE_JOB = """
ALTER TABLE django_jobs_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1
)
"""
# Few rows, each rewritten at every heartbeat. A half-empty page takes the new one.
TUNE_WORKER = """
ALTER TABLE django_jobs_worker SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    fillfactor = 50
)
"""
# Some 200 kB every five seconds while somebody looks. To compress them took 2 of the 60 ms of a
# scrape. Without a log, they are gone after a crash of the server, and taken again.
TUNE_METRICS = """
ALTER TABLE django_jobs_storedmetrics ALTER values SET STORAGE EXTERNAL, SET UNLOGGED
"""


# Django's table becomes the partition of the live and the dead jobs, with its indexes; finished jobs
# move out of it. The id is not an identity: partitions have none before PostgreSQL 17, and rows are
# inserted there directly. Partitions of days are made like the default ones. Only live jobs have check
# constraints: the planner reads those of each partition, and Job.objects.get() among 60 days took 6.4
# instead of 3.0 ms. Gates are compared byte by byte, in any locale: lines that begin alike are
# neighbours in their index.
PARTITION_JOB = """
ALTER TABLE django_jobs_job ALTER gates TYPE text COLLATE "C";
ALTER TABLE django_jobs_job RENAME TO django_jobs_job_live;
ALTER TABLE django_jobs_job_live ALTER id DROP IDENTITY;
CREATE TABLE django_jobs_job (
    LIKE django_jobs_job_live INCLUDING DEFAULTS
) PARTITION BY LIST (status);
CREATE SEQUENCE django_jobs_job_id_seq AS bigint OWNED BY django_jobs_job.id;
ALTER TABLE django_jobs_job ALTER id SET DEFAULT nextval('django_jobs_job_id_seq');
ALTER TABLE django_jobs_job_live ALTER id SET DEFAULT nextval('django_jobs_job_id_seq');
ALTER TABLE django_jobs_job ATTACH PARTITION django_jobs_job_live
    FOR VALUES IN ('waiting', 'scheduled', 'blocked', 'ready', 'running', 'dead');
CREATE TABLE django_jobs_job_history (
    LIKE django_jobs_job INCLUDING DEFAULTS
) PARTITION BY RANGE (finished_at);
ALTER TABLE django_jobs_job ATTACH PARTITION django_jobs_job_history
    FOR VALUES IN ('succeeded', 'cancelled');
CREATE TABLE django_jobs_job_history_default (
    LIKE django_jobs_job INCLUDING DEFAULTS, PRIMARY KEY (id)
);
CREATE INDEX django_jobs_ended_steps ON django_jobs_job_history_default (workflow_run_id, step)
    WHERE workflow_run_id IS NOT NULL;
CREATE INDEX django_jobs_ended_tags ON django_jobs_job_history_default USING gin (tags)
    WHERE tags IS NOT NULL;
ALTER TABLE django_jobs_job_history ATTACH PARTITION django_jobs_job_history_default DEFAULT
"""
PARTITION_RUN = """
ALTER TABLE django_jobs_run RENAME TO django_jobs_run_default;
ALTER TABLE django_jobs_run_default ALTER id DROP IDENTITY;
CREATE TABLE django_jobs_run (
    LIKE django_jobs_run_default INCLUDING DEFAULTS INCLUDING CONSTRAINTS
) PARTITION BY RANGE (finished_at);
CREATE SEQUENCE django_jobs_run_id_seq AS bigint OWNED BY django_jobs_run.id;
ALTER TABLE django_jobs_run ALTER id SET DEFAULT nextval('django_jobs_run_id_seq');
ALTER TABLE django_jobs_run_default ALTER id SET DEFAULT nextval('django_jobs_run_id_seq');
ALTER TABLE django_jobs_run ATTACH PARTITION django_jobs_run_default DEFAULT
"""


def tune(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Have the hot tables vacuumed early and at full speed, and metrics written cheaply. Does nothing on another database: a
    project may have SQLite as its default and the jobs elsewhere."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(TUNE_JOB)
        schema_editor.execute(TUNE_WORKER)
        schema_editor.execute(TUNE_METRICS)


def partition(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the tables of jobs and runs partitions of partitioned ones. Does nothing on another
    database."""
    if schema_editor.connection.vendor != "postgresql":
        return
    for statement in schema_editor.deferred_sql:  # their indexes, which Django makes at the end
        schema_editor.execute(statement, None)
    schema_editor.deferred_sql.clear()
    for statements in (PARTITION_JOB, PARTITION_RUN):
        for statement in statements.split(";\n"):
            schema_editor.execute(statement, None)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=100, unique=True, validators=[django.core.validators.RegexValidator("\\A[A-Za-z0-9][A-Za-z0-9_.-]*\\Z", "Use letters, digits, dots, hyphens and underscores; start with a letter or digit.")], verbose_name="name"
                    ),
                ),
                ("paused_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused at")),
                ("paused_reason", models.CharField(blank=True, default="", editable=False, max_length=300, verbose_name="reason for the pause")),
                ("paused_by", models.CharField(blank=True, db_default="", default="", editable=False, max_length=150, verbose_name="paused by")),
                ("paused_until", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused until")),
                ("resumed_at", django_jobs.models.fields.TimestampField(blank=True, editable=False, help_text=("When the last pause ended: rates and forecasts begin there."), null=True, verbose_name="resumed at")),
                (
                    "max_concurrency",
                    models.PositiveIntegerField(
                        blank=True, help_text="Jobs of this queue that may run at once, on all workers together. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum concurrency"
                    ),
                ),
                (
                    "max_backlog",
                    models.PositiveIntegerField(
                        blank=True, help_text="Jobs that are ready or wait at their gates at which the queue is full. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum backlog"
                    ),
                ),
                (
                    "on_full",
                    models.CharField(
                        choices=[("raise", "refuse the new job"), ("drop_lowest", "drop the lowest waiting job")],
                        db_default="raise",
                        default="raise",
                        help_text="The queue, or a resource, a tenant or a key of the job. The lowest job is the one that would start last; it is cancelled.",
                        max_length=11,
                        verbose_name="when full",
                    ),
                ),
                ("pressure", models.CharField(db_default="ok", default="ok", editable=False, help_text="The level when a worker last looked.", max_length=4, verbose_name="pressure")),
                (
                    "priority_weight",
                    models.FloatField(
                        default=60.0, help_text="Seconds of waiting that equal one point of priority. 100,000,000 is strict: priority always decides.", validators=[django.core.validators.MinValueValidator(0.0)], verbose_name="priority weight"
                    ),
                ),
                ("max_attempts", models.PositiveSmallIntegerField(blank=True, help_text="For job types without max_attempts. Empty: 5.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="attempts")),
                ("backoff", models.JSONField(blank=True, help_text="For job types without a backoff, as returned by Backoff.as_json().", null=True, verbose_name="backoff")),
                (
                    "timeout",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds that an attempt may take, for job types without a timeout. Empty: no limit.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(31622400.0)],
                        verbose_name="time-out",
                    ),
                ),
                ("retention", models.JSONField(blank=True, help_text='Overrides the setting RETENTION, such as {"succeeded": "1d", "dead": "30d"}.', null=True, verbose_name="retention")),
                (
                    "slo_seconds",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds within which a job should start. Empty: none.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(31622400.0)],
                        verbose_name="start within",
                    ),
                ),
                (
                    "slo_since",
                    models.CharField(
                        choices=[("due", "the due time"), ("ready", "the moment when its gates let it go")],
                        db_default="due",
                        default="due",
                        help_text="From the due time, the wait for a rate limit counts too.",
                        max_length=5,
                        verbose_name="counted from",
                    ),
                ),
                (
                    "slo_target",
                    models.FloatField(
                        db_default=0.99,
                        default=0.99,
                        help_text="The share of the jobs that should start in time, such as 0.99.",
                        validators=[django.core.validators.MinValueValidator(0.01), django.core.validators.MaxValueValidator(0.99999)],
                        verbose_name="share of jobs",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "default_permissions": ("add", "change", "view"),
                "ordering": ("name",),
                "permissions": (("pause_queue", "Can pause and resume queues"),),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("max_concurrency__isnull", True), ("max_concurrency__gte", 1), _connector="OR"), name="django_jobs_queue_concurrency"),
                    models.CheckConstraint(condition=models.Q(("on_full__in", ["raise", "drop_lowest"])), name="django_jobs_queue_on_full"),
                    models.CheckConstraint(condition=models.Q(("slo_target__isnull", True), ("slo_target__range", (0.01, 0.99999)), _connector="OR"), name="django_jobs_queue_slo_target"),
                    models.CheckConstraint(condition=models.Q(("slo_seconds__isnull", True), ("slo_seconds__range", (0.001, 31622400.0)), _connector="OR"), name="django_jobs_queue_slo_seconds"),
                    models.CheckConstraint(condition=models.Q(("slo_since__in", ["due", "ready"])), name="django_jobs_queue_slo_since"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("host", models.CharField(max_length=200, verbose_name="host")),
                ("pid", models.PositiveIntegerField(verbose_name="process id")),
                ("queues", models.JSONField(default=list, verbose_name="queues")),
                ("threads", models.PositiveIntegerField(default=1, verbose_name="threads")),
                ("async_slots", models.PositiveIntegerField(db_default=0, default=0, verbose_name="async slots")),
                ("pools", models.JSONField(blank=True, default=list, verbose_name="thread pools")),
                ("code_version", models.CharField(blank=True, default="", max_length=100, verbose_name="code version")),
                ("job_types", models.JSONField(default=list, verbose_name="known job types")),
                ("payload_versions", models.JSONField(blank=True, help_text="By job type, unless it is 1. Null: a worker of an older release, which takes any.", null=True, verbose_name="newest payload versions")),
                ("status", models.CharField(choices=[("running", "running"), ("draining", "draining"), ("stopped", "stopped"), ("lost", "lost")], default="running", max_length=8, verbose_name="status")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("heartbeat_at", models.DateTimeField(verbose_name="last heartbeat")),
                ("schedules_seen_at", models.DateTimeField(blank=True, null=True, verbose_name="last check of the schedules")),
                ("lease_expires_at", models.DateTimeField(verbose_name="lease expires at")),
                ("claim_failures", models.PositiveBigIntegerField(db_default=0, default=0, help_text="Rounds of claims that failed, as of the last heartbeat.", verbose_name="failed claims")),
                ("ended_runs", models.PositiveBigIntegerField(db_default=0, default=0, help_text="Attempts that it has ended, as of the last heartbeat.", verbose_name="runs")),
                ("failed_runs", models.PositiveBigIntegerField(db_default=0, default=0, verbose_name="failed runs")),
                ("listens", models.BooleanField(help_text="As of the last heartbeat. Null: not known.", null=True, verbose_name="receives notifications")),
                ("supervisor_pid", models.PositiveIntegerField(blank=True, null=True, verbose_name="process id of its command")),
                ("rss_mb", models.PositiveIntegerField(blank=True, help_text="As of the last heartbeat.", null=True, verbose_name="memory in MB")),
                ("started_jobs", models.JSONField(blank=True, help_text="As of the last heartbeat, the oldest first: id, seconds since the start, and the MB of its process if it has one.", null=True, verbose_name="started jobs")),
                ("clock_skew", models.FloatField(blank=True, null=True)),
                ("drain_requested_at", models.DateTimeField(blank=True, null=True, verbose_name="drain requested at")),
                ("draining_at", models.DateTimeField(blank=True, null=True, verbose_name="draining since")),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="stopped at")),
                ("stop_reason", models.CharField(blank=True, default="", max_length=300, verbose_name="reason for stopping")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "default_permissions": ("view",),
                "permissions": (("stop_worker", "Can ask workers to drain and stop"), ("run_doctor", "Can see what the doctor finds"), ("test_alert", "Can send tests of alerts")),
                "indexes": [
                    models.Index(condition=models.Q(("status__in", ("running", "draining"))), fields=["lease_expires_at"], name="django_jobs_worker_alive"),
                    models.Index(condition=models.Q(("stopped_at__isnull", False)), fields=["stopped_at"], name="django_jobs_worker_ended"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, unique=True, verbose_name="name")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("payload", models.JSONField(blank=True, default=dict, help_text="Arguments by name.", verbose_name="payload")),
                ("payload_version", models.PositiveSmallIntegerField(db_default=1, default=1, editable=False, verbose_name="payload version")),
                (
                    "queue",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Empty: the queue that the job type declares.",
                        max_length=100,
                        validators=[django.core.validators.RegexValidator("\\A[A-Za-z0-9][A-Za-z0-9_.-]*\\Z", "Use letters, digits, dots, hyphens and underscores; start with a letter or digit.")],
                        verbose_name="queue",
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        blank=True, help_text="Empty: the priority that the job type declares.", null=True, validators=[django.core.validators.MinValueValidator(-100), django.core.validators.MaxValueValidator(100)], verbose_name="priority"
                    ),
                ),
                ("cron", models.CharField(blank=True, default="", help_text="Minute, hour, day of the month, month, day of the week.", max_length=100, verbose_name="cron expression")),
                ("every", models.FloatField(blank=True, help_text="Seconds, counted from the start or else from 1970.", null=True, verbose_name="interval")),
                ("timezone", models.CharField(default="UTC", max_length=64, verbose_name="time zone")),
                ("starts_at", models.DateTimeField(blank=True, null=True, verbose_name="starts at")),
                ("ends_at", models.DateTimeField(blank=True, null=True, verbose_name="ends at")),
                ("excluded_dates", django_jobs.models.schedule.DatesField(blank=True, db_default=models.Value("{}"), default=list, help_text="Dates in the time zone of the schedule on which it is not due.", verbose_name="excluded dates")),
                (
                    "max_jobs",
                    models.PositiveIntegerField(
                        blank=True, help_text="After this many jobs it ends; a larger number starts it again. Empty: any number.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum number of jobs"
                    ),
                ),
                ("jobs_made", django_jobs.models.schedule.CountField(db_default=0, default=0, editable=False, help_text="The number of jobs that its due times made.", verbose_name="jobs made")),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "jitter_seconds",
                    models.FloatField(
                        default=0.0,
                        help_text="Each job starts up to this many seconds late, so that not all start at once.",
                        validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(86400.0)],
                        verbose_name="jitter",
                    ),
                ),
                ("dst", models.CharField(choices=[("once", "once on each day"), ("skip", "not in a skipped hour"), ("twice", "twice in an hour that occurs twice")], default="once", max_length=5, verbose_name="when the clock changes")),
                (
                    "overlap",
                    models.CharField(
                        choices=[("skip", "skip"), ("queue_one", "let one wait"), ("queue_all", "let all wait, and run them in order"), ("allow", "run at the same time, up to the limit"), ("cancel", "cancel the last job")],
                        default="skip",
                        max_length=9,
                        verbose_name="while the last job is not done",
                    ),
                ),
                ("overlap_limit", models.PositiveIntegerField(blank=True, help_text="Jobs that may run at once, or wait. Empty: any number.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="overlap limit")),
                (
                    "catch_up",
                    models.CharField(
                        choices=[("latest", "run only the latest"), ("skip", "skip them"), ("at_most", "run the newest, up to the limit"), ("window", "run those within the limit in seconds")],
                        default="latest",
                        max_length=7,
                        verbose_name="missed due times",
                    ),
                ),
                ("catch_up_limit", models.FloatField(blank=True, help_text="A number of jobs, or seconds.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="limit of missed due times")),
                (
                    "pause_after_dead",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="The number of dead jobs in a row that pauses the schedule. Empty: never.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(100)],
                        verbose_name="pause after dead jobs",
                    ),
                ),
                ("declared", models.BooleanField(default=False, editable=False, help_text="Each migrate writes the values from the code.", verbose_name="declared in code")),
                ("origin", models.TextField(db_default="", default="", editable=False)),
                ("paused_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused at")),
                ("paused_reason", models.CharField(blank=True, default="", editable=False, max_length=300, verbose_name="reason for the pause")),
                ("paused_by", models.CharField(blank=True, db_default="", default="", editable=False, max_length=150, verbose_name="paused by")),
                ("paused_until", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused until")),
                ("resumed_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="resumed at")),
                ("error", models.TextField(blank=True, default="", editable=False, help_text="The schedule does not fire until it is saved or resumed.", verbose_name="error")),
                ("stale", models.BooleanField(default=True, editable=False)),
                ("next_due_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="next due at")),
                ("last_due_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last due at")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "ordering": ("name",),
                "permissions": (("pause_schedule", "Can pause and resume schedules"), ("run_schedule", "Can run schedules now"), ("backfill_schedule", "Can backfill schedules"), ("move_schedule", "Can skip and move due times of schedules")),
                "indexes": [
                    models.Index(condition=models.Q(("paused_until__isnull", False)), fields=["paused_until"], name="django_jobs_schedule_until"),
                    models.Index(condition=models.Q(("enabled", True), ("error", ""), ("paused_at__isnull", True)), fields=["next_due_at"], name="django_jobs_schedule_due"),
                    models.Index(condition=models.Q(("stale", True)), fields=["id"], name="django_jobs_schedule_stale"),
                ],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("priority__range", (-100, 100))), name="django_jobs_schedule_priority"),
                    models.CheckConstraint(condition=models.Q(("overlap__in", ["skip", "queue_one", "queue_all", "allow", "cancel"]), ("catch_up__in", ["latest", "skip", "at_most", "window"])), name="django_jobs_schedule_policies"),
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkflowDefinition",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("version", models.PositiveIntegerField(verbose_name="version")),
                ("fingerprint", models.CharField(help_text="A hash of the graph.", max_length=64, verbose_name="fingerprint")),
                ("graph", models.JSONField(help_text="The steps, each after those it waits for.", verbose_name="graph")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
            ],
            options={
                "verbose_name": "workflow",
                "verbose_name_plural": "workflows",
                "permissions": (("start_workflow", "Can start workflows"),),
                "default_permissions": ("view",),
                "constraints": [models.UniqueConstraint(fields=("name", "version"), name="django_jobs_workflow")],
            },
        ),
        migrations.CreateModel(
            name="WorkflowRun",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("definition", models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name="runs", to="django_jobs.workflowdefinition", verbose_name="definition")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("status", models.CharField(choices=[("running", "running"), ("succeeded", "succeeded"), ("failed", "failed"), ("cancelled", "cancelled"), ("expired", "expired")], max_length=9, verbose_name="status")),
                ("payload", models.JSONField(default=dict, help_text="Arguments by name.", verbose_name="payload")),
                ("idempotency_key", models.CharField(blank=True, max_length=200, null=True, verbose_name="idempotency key")),
                ("tenant", models.CharField(blank=True, max_length=100, null=True, verbose_name="tenant")),
                ("ends_left", models.PositiveIntegerField(editable=False, help_text="Steps that no other waits for, and that have not ended.", verbose_name="ends left")),
                ("compensations", models.JSONField(blank=True, editable=False, help_text="The jobs that undo steps if the run fails.", null=True, verbose_name="compensations")),
                ("on_failure", models.CharField(db_default="continue", default="continue", editable=False, help_text="Whether a dead step cancels the others.", max_length=8, verbose_name="on failure")),
                ("reason", models.TextField(blank=True, db_default="", default="", verbose_name="reason")),
                ("cancel_requested_at", models.DateTimeField(blank=True, null=True, verbose_name="cancel requested at")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
            ],
            options={
                "verbose_name": "workflow run",
                "verbose_name_plural": "workflow runs",
                "permissions": (
                    ("cancel_workflowrun", "Can cancel workflow runs"),
                    ("retry_workflowrun", "Can retry failed workflow runs"),
                    ("skip_workflowstep", "Can skip steps of workflow runs"),
                    ("signal_workflowrun", "Can signal workflow runs and jobs"),
                ),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["name", "id"], name="django_jobs_run_of_workflow"),
                    models.Index(condition=models.Q(("status", "running")), fields=["id"], name="django_jobs_running_workflow"),
                    models.Index(condition=models.Q(("cancel_requested_at__isnull", False), ("status", "running")), fields=["id"], name="django_jobs_run_cancelled"),
                    models.Index(condition=models.Q(("finished_at__isnull", False)), fields=["finished_at"], name="django_jobs_workflow_ended"),
                    models.Index(condition=models.Q(("compensations__has_key", "failed")), fields=["id"], name="django_jobs_run_not_undone"),
                ],
                "constraints": [models.UniqueConstraint(condition=models.Q(("idempotency_key__isnull", False), ("status", "running")), fields=("name", "idempotency_key"), name="django_jobs_workflow_key")],
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("payload", models.JSONField(default=dict, help_text="Arguments by name.", verbose_name="payload")),
                ("payload_version", models.PositiveSmallIntegerField(default=1, verbose_name="payload version")),
                (
                    "status",
                    models.CharField(
                        choices=[("waiting", "waiting"), ("scheduled", "scheduled"), ("blocked", "blocked"), ("ready", "ready"), ("running", "running"), ("succeeded", "succeeded"), ("dead", "dead"), ("cancelled", "cancelled")],
                        max_length=9,
                        verbose_name="status",
                    ),
                ),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                ("rank", models.FloatField(help_text="Due time in epoch seconds minus the weight of the priority.", verbose_name="rank")),
                ("available_at", models.DateTimeField(verbose_name="due at")),
                ("attempt", models.PositiveIntegerField(db_default=0, default=0, verbose_name="attempt")),
                ("failures", models.PositiveIntegerField(db_default=0, default=0, verbose_name="failures")),
                ("crashes", models.PositiveSmallIntegerField(db_default=0, default=0, verbose_name="crashes in a row")),
                ("max_attempts", models.PositiveIntegerField(default=5, verbose_name="maximum attempts")),
                ("max_crashes", models.PositiveSmallIntegerField(default=3, verbose_name="maximum crashes")),
                ("backoff", models.JSONField(blank=True, null=True, verbose_name="backoff")),
                ("timeout", models.FloatField(blank=True, null=True, verbose_name="time-out")),
                ("at_most_once", models.BooleanField(db_default=False, default=False, help_text="A failed or lost attempt is never retried.", verbose_name="at most once")),
                ("expires_at", models.DateTimeField(blank=True, null=True, verbose_name="expires at")),
                ("retry_until", models.DateTimeField(blank=True, null=True, verbose_name="retried until")),
                ("worker", models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name="jobs", to="django_jobs.worker", verbose_name="worker")),
                ("ready_at", models.DateTimeField(blank=True, help_text="When its gates let it go.", null=True, verbose_name="ready at")),
                ("claimed_at", models.DateTimeField(blank=True, null=True, verbose_name="claimed at")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                ("result", models.JSONField(blank=True, null=True, verbose_name="result")),
                ("last_error", models.TextField(blank=True, db_default="", default="", verbose_name="last error")),
                ("fingerprint", models.CharField(blank=True, db_default="", default="", help_text="Of the last error. Failures are grouped by it.", max_length=16, verbose_name="fingerprint")),
                ("reason", models.TextField(blank=True, db_default="", default="", help_text="Why the job is dead or cancelled.", verbose_name="reason")),
                ("idempotency_key", models.CharField(blank=True, max_length=200, null=True, verbose_name="idempotency key")),
                ("cancel_requested_at", models.DateTimeField(blank=True, null=True, verbose_name="cancel requested at")),
                ("force_requested_at", models.DateTimeField(blank=True, null=True, verbose_name="stop by force requested at")),
                ("schedule", models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name="jobs", to="django_jobs.schedule", verbose_name="schedule")),
                ("scheduled_for", models.DateTimeField(blank=True, help_text="The due time of its schedule.", null=True, verbose_name="scheduled for")),
                ("tenant", models.CharField(blank=True, max_length=100, null=True, verbose_name="tenant")),
                ("concurrency_key", models.CharField(blank=True, max_length=200, null=True, verbose_name="concurrency key")),
                ("resources", models.JSONField(blank=True, help_text="The names of those that it uses.", null=True, verbose_name="resources")),
                ("gates", models.TextField(blank=True, editable=False, help_text="All gates as one text. Jobs with the same gates wait in one line.", null=True, verbose_name="gates")),
                ("workflow_run", models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name="steps", to="django_jobs.workflowrun", verbose_name="workflow run")),
                ("step", models.CharField(blank=True, max_length=200, null=True, verbose_name="step")),
                ("prerequisites", models.PositiveIntegerField(blank=True, editable=False, null=True, verbose_name="prerequisites left")),
                ("skipped", models.CharField(blank=True, choices=[("failed", "a step before it failed"), ("unneeded", "not needed"), ("passed", "passed over")], max_length=8, null=True, verbose_name="skipped")),
                ("awaits", models.CharField(blank=True, max_length=200, null=True, verbose_name="signal it waits for")),
                ("signals", models.JSONField(blank=True, help_text="The data that was sent to it, by name.", null=True, verbose_name="signals")),
                ("tags", django_jobs.models.fields.TagsField(blank=True, null=True, verbose_name="tags")),
                ("replays", models.PositiveIntegerField(db_default=0, default=0, verbose_name="replays")),
                ("headers", models.JSONField(blank=True, default=dict, verbose_name="headers")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "default_permissions": ("view",),
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("stop_job", "Can stop running jobs by force"),
                    ("reprioritize_job", "Can change the priority of jobs"),
                    ("run_job", "Can run scheduled jobs now"),
                    ("edit_job", "Can edit jobs that have not started, and dead ones"),
                    ("enqueue_job", "Can enqueue jobs by hand"),
                    ("inspect_job", "Can see what running jobs are doing"),
                    ("replay_job", "Can replay dead jobs"),
                    ("dismiss_job", "Can dismiss dead jobs"),
                    ("export_job", "Can export lists of jobs, failures, runs and ticks"),
                    ("view_job_payload", "Can see payloads and results in full"),
                    ("view_job_error", "Can see error messages and tracebacks"),
                    ("reveal_job", "Can reveal hidden payloads and errors, which the history notes"),
                ),
                "indexes": [
                    models.Index(condition=models.Q(("status", "ready")), fields=["queue", "rank", "id"], name="django_jobs_ready"),
                    models.Index(condition=models.Q(("status", "scheduled")), fields=["available_at"], name="django_jobs_scheduled"),
                    models.Index(condition=models.Q(("status", "running")), fields=["worker"], name="django_jobs_running"),
                    models.Index(condition=models.Q(("cancel_requested_at__isnull", False), ("status", "running")), fields=["worker"], name="django_jobs_cancel_requested"),
                    models.Index(condition=models.Q(("status", "dead")), fields=["id"], name="django_jobs_dead"),
                    models.Index(condition=models.Q(("status", "dead")), fields=["queue", "finished_at", "id"], name="django_jobs_dead_queue"),
                    models.Index(condition=models.Q(("status", "dead")), fields=["job_type", "finished_at", "id"], name="django_jobs_dead_type"),
                    models.Index(condition=models.Q(("status", "dead")), fields=["queue", "job_type", "fingerprint", "finished_at"], name="django_jobs_dead_failure"),
                    models.Index(condition=models.Q(("failures__gt", 0), ("status", "scheduled")), fields=["queue", "job_type", "fingerprint"], name="django_jobs_retried"),
                    models.Index(condition=models.Q(("schedule__isnull", False), ("status__in", ("waiting", "scheduled", "blocked", "ready", "running"))), fields=["schedule"], name="django_jobs_live_schedule"),
                    models.Index(condition=models.Q(("schedule__isnull", False), ("status", "waiting")), fields=["schedule", "id"], name="django_jobs_waiting_schedule"),
                    models.Index(condition=models.Q(("reason", "quarantined"), ("status", "blocked")), fields=["job_type", "id"], name="django_jobs_quarantined"),
                    models.Index(condition=models.Q(("gates__isnull", False), ("status", "blocked")), fields=["gates", "rank", "id"], name="django_jobs_gates"),
                    models.Index(condition=models.Q(("concurrency_key__isnull", False), ("status__in", ("ready", "running"))), fields=["concurrency_key"], name="django_jobs_taken_key"),
                    models.Index(condition=models.Q(("status__in", ("ready", "running")), ("tenant__isnull", False)), fields=["queue", "tenant"], name="django_jobs_taken_tenant"),
                    models.Index(condition=models.Q(("resources__isnull", False), ("status__in", ("ready", "running"))), fields=["id"], name="django_jobs_taken_resource"),
                    models.Index(condition=models.Q(("workflow_run__isnull", False)), fields=["workflow_run", "step"], name="django_jobs_steps"),
                    django_jobs.models.fields.TagsIndex(condition=models.Q(("tags__isnull", False)), fields=["tags"], name="django_jobs_tags"),
                    models.Index(condition=models.Q(("awaits__isnull", False), ("status", "waiting")), fields=["available_at"], name="django_jobs_awaiting"),
                ],
                "constraints": [
                    models.UniqueConstraint(condition=models.Q(("idempotency_key__isnull", False), ("status__in", ("waiting", "scheduled", "blocked", "ready", "running"))), fields=("queue", "idempotency_key"), name="django_jobs_live_key"),
                    models.CheckConstraint(condition=models.Q(("status__in", ["waiting", "scheduled", "blocked", "ready", "running", "succeeded", "dead", "cancelled"])), name="django_jobs_status"),
                    models.CheckConstraint(
                        condition=models.Q(models.Q(("status", "running"), ("worker__isnull", False)), models.Q(models.Q(("status", "running"), _negated=True), ("worker__isnull", True)), _connector="OR"), name="django_jobs_worker_iff_running"
                    ),
                    models.CheckConstraint(condition=models.Q(("priority__range", (-100, 100))), name="django_jobs_priority"),
                ],
            },
        ),
        migrations.CreateModel(name="DeadLetter", fields=[], options={"verbose_name": "dead letter", "verbose_name_plural": "dead letters", "proxy": True, "default_permissions": (), "indexes": [], "constraints": []}, bases=("django_jobs.job",)),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="django_jobs.job", verbose_name="job")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("succeeded", "succeeded"), ("failed", "failed"), ("timed_out", "timed out"), ("lost", "lost"), ("snoozed", "snoozed"), ("cancelled", "cancelled"), ("released", "released")], max_length=9, verbose_name="outcome"
                    ),
                ),
                ("worker", models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name="runs", to="django_jobs.worker", verbose_name="worker")),
                ("available_at", models.DateTimeField(verbose_name="due at")),
                ("ready_at", models.DateTimeField(help_text="When its gates let it go.", null=True, verbose_name="ready at")),
                ("claimed_at", models.DateTimeField(verbose_name="claimed at")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                ("error_type", models.CharField(blank=True, default="", max_length=200, verbose_name="error class")),
                ("error_code", models.CharField(blank=True, db_default="", default="", max_length=32, verbose_name="error code")),
                ("error_message", models.TextField(blank=True, default="", verbose_name="error message")),
                ("traceback", models.TextField(blank=True, default="", verbose_name="traceback")),
                ("fingerprint", models.CharField(blank=True, default="", max_length=16, verbose_name="fingerprint")),
                ("cpu_seconds", models.FloatField(null=True, verbose_name="CPU seconds")),
                ("max_rss_kb", models.IntegerField(null=True, verbose_name="memory in kB")),
                ("queries", models.IntegerField(null=True, verbose_name="queries")),
                ("query_seconds", models.FloatField(null=True, verbose_name="seconds of queries")),
                ("traceparent", models.CharField(blank=True, db_default="", default="", max_length=55, verbose_name="traceparent")),
                ("log", models.TextField(null=True, verbose_name="log")),
            ],
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "default_permissions": ("view",),
                "indexes": [models.Index(condition=models.Q(("error_type", "Crashed"), ("outcome", "lost")), fields=["finished_at"], name="django_jobs_run_crashed")],
                "constraints": [
                    models.UniqueConstraint(fields=("job", "attempt"), name="django_jobs_run_attempt"),
                    models.CheckConstraint(condition=models.Q(("outcome__in", ["succeeded", "failed", "timed_out", "lost", "snoozed", "cancelled", "released"])), name="django_jobs_run_outcome"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Backfill",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("schedule", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="backfills", to="django_jobs.schedule", verbose_name="schedule")),
                ("begins_at", models.DateTimeField(verbose_name="from")),
                ("ends_at", models.DateTimeField(verbose_name="to")),
                ("job_count", models.PositiveIntegerField(default=0, verbose_name="jobs")),
                ("requested_by", models.CharField(blank=True, default="", max_length=200, verbose_name="requested by")),
                ("cancelled_at", models.DateTimeField(blank=True, null=True, verbose_name="cancelled at")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={"verbose_name": "backfill", "verbose_name_plural": "backfills", "default_permissions": (), "ordering": ("-id",)},
        ),
        migrations.CreateModel(
            name="ScheduleException",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("schedule", models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="exceptions", to="django_jobs.schedule", verbose_name="schedule")),
                ("due_at", models.DateTimeField(help_text="The due time by the rule.", verbose_name="due at")),
                ("skipped", models.BooleanField(default=False, verbose_name="skipped")),
                ("moved_to", models.DateTimeField(blank=True, null=True, verbose_name="moved to")),
                ("payload", models.JSONField(blank=True, help_text="Arguments by name.", null=True, verbose_name="payload")),
                ("payload_version", models.PositiveSmallIntegerField(default=1, verbose_name="payload version")),
                ("requested_by", models.CharField(blank=True, default="", max_length=200, verbose_name="requested by")),
                ("reason", models.CharField(blank=True, default="", max_length=300, verbose_name="reason")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "exception",
                "verbose_name_plural": "exceptions",
                "default_permissions": (),
                "ordering": ("due_at",),
                "constraints": [
                    models.UniqueConstraint(fields=("schedule", "due_at"), name="django_jobs_scheduleexception_due"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("moved_to__isnull", True), ("payload__isnull", True), ("skipped", True)), models.Q(("skipped", False), models.Q(("moved_to__isnull", False), ("payload__isnull", False), _connector="OR")), _connector="OR"
                        ),
                        name="django_jobs_scheduleexception_action",
                    ),
                    models.CheckConstraint(condition=models.Q(("moved_to__isnull", True), models.Q(("moved_to", models.F("due_at")), _negated=True), _connector="OR"), name="django_jobs_scheduleexception_moved"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tick",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("schedule", models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="ticks", to="django_jobs.schedule", verbose_name="schedule")),
                ("due_at", models.DateTimeField(verbose_name="due at")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("fired", "fired"), ("skipped_overlap", "skipped: the last job was not done"), ("skipped_late", "skipped: too late"), ("skipped", "skipped: by request"), ("suppressed", "suppressed")],
                        max_length=15,
                        verbose_name="outcome",
                    ),
                ),
                ("reason", models.CharField(blank=True, default="", max_length=300, verbose_name="reason")),
                ("job", models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name="ticks", to="django_jobs.job", verbose_name="job")),
                ("late_seconds", models.FloatField(help_text="Seconds.", verbose_name="late by")),
                ("backfill", models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name="ticks", to="django_jobs.backfill", verbose_name="backfill")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
            ],
            options={
                "verbose_name": "tick",
                "verbose_name_plural": "ticks",
                "default_permissions": (),
                "ordering": ("-due_at",),
                "indexes": [models.Index(condition=models.Q(("backfill__isnull", False)), fields=["backfill"], name="django_jobs_tick_backfill")],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule", "due_at"), name="django_jobs_tick_due"),
                    models.CheckConstraint(condition=models.Q(("outcome__in", ["fired", "skipped_overlap", "skipped_late", "skipped", "suppressed"])), name="django_jobs_tick_outcome"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkOperation",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("action", models.CharField(choices=[("cancel", "cancel"), ("reprioritize", "change priority"), ("run_now", "run now"), ("replay", "replay"), ("dismiss", "dismiss")], max_length=20, verbose_name="action")),
                ("arguments", models.JSONField(blank=True, default=dict, verbose_name="arguments")),
                ("terms", models.JSONField(help_text="Which jobs: all terms are true of them.", verbose_name="terms")),
                ("plan", models.JSONField(blank=True, help_text="Null: no waves.", null=True, verbose_name="plan")),
                ("actor_id", models.CharField(blank=True, default="", help_text="Empty: a command.", max_length=100, verbose_name="actor")),
                ("actor_name", models.CharField(blank=True, default="", max_length=200, verbose_name="requested by")),
                ("reason", models.CharField(blank=True, default="", max_length=300, verbose_name="reason")),
                ("max_id", models.BigIntegerField(help_text="Jobs with a higher id came later and are left alone.", verbose_name="up to job")),
                ("status", models.CharField(choices=[("pending", "pending"), ("running", "running"), ("completed", "completed"), ("stopped", "stopped"), ("failed", "failed")], default="pending", max_length=9, verbose_name="status")),
                ("why", models.CharField(blank=True, db_default="", default="", max_length=300, verbose_name="why it ended")),
                ("matched", models.BigIntegerField(blank=True, help_text="About how many jobs, at the start.", null=True, verbose_name="matched")),
                ("done", models.BigIntegerField(db_default=0, default=0, verbose_name="done")),
                ("left", models.BigIntegerField(db_default=0, default=0, verbose_name="left")),
                ("succeeded", models.BigIntegerField(db_default=0, default=0, verbose_name="succeeded")),
                ("failed", models.BigIntegerField(db_default=0, default=0, verbose_name="failed again")),
                ("cancelled", models.BigIntegerField(db_default=0, default=0, verbose_name="cancelled")),
                ("reasons", models.JSONField(blank=True, default=dict, verbose_name="reasons")),
                ("cursor", models.BigIntegerField(db_default=0, default=0, verbose_name="done up to job")),
                ("progress", models.JSONField(blank=True, default=dict, help_text="What the next chunk continues.", verbose_name="progress")),
                ("next_at", models.DateTimeField(verbose_name="next chunk at")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                ("stop_requested_by", models.CharField(blank=True, db_default="", default="", max_length=200, verbose_name="stop requested by")),
            ],
            options={
                "verbose_name": "operation",
                "verbose_name_plural": "operations",
                "default_permissions": ("view",),
                "indexes": [models.Index(condition=models.Q(("status__in", ("pending", "running"))), fields=["next_at"], name="django_jobs_bulk_unfinished")],
            },
        ),
        migrations.CreateModel(
            name="Inspection",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("worker_id", models.BigIntegerField(verbose_name="worker")),
                ("asked_by", models.CharField(blank=True, default="", max_length=200, verbose_name="asked by")),
                ("asked_at", models.DateTimeField(verbose_name="asked at")),
                ("answered_at", models.DateTimeField(null=True, verbose_name="answered at")),
                ("process", models.IntegerField(null=True, verbose_name="process")),
                ("thread", models.CharField(blank=True, default="", max_length=200, verbose_name="thread")),
                ("ran_seconds", models.FloatField(null=True, verbose_name="ran for seconds")),
                ("stack", models.TextField(blank=True, default="", verbose_name="stack")),
            ],
            options={"verbose_name": "inspection", "verbose_name_plural": "inspections", "default_permissions": (), "indexes": [models.Index(condition=models.Q(("answered_at", None)), fields=["worker_id"], name="django_jobs_unanswered")]},
        ),
        migrations.CreateModel(
            name="Progress",
            fields=[
                ("job", models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="progress", serialize=False, to="django_jobs.job", verbose_name="job")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("fraction", models.FloatField(help_text="From 0 to 1.", null=True, verbose_name="fraction")),
                ("note", models.CharField(blank=True, default="", max_length=200, verbose_name="note")),
                ("checkpoint", models.JSONField(help_text="Where the next attempt begins.", null=True, verbose_name="checkpoint")),
                ("reported_at", models.DateTimeField(verbose_name="reported at")),
            ],
            options={"verbose_name": "progress", "verbose_name_plural": "progress", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Receipt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="receipts", to="django_jobs.job", verbose_name="job")),
                ("key", models.CharField(max_length=210, verbose_name="key")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("answer", models.JSONField(null=True, verbose_name="answer")),
                ("made_at", models.DateTimeField(verbose_name="made at")),
                ("prevented", models.PositiveIntegerField(db_default=0, default=0, help_text="Calls that were answered with this receipt.", verbose_name="duplicates prevented")),
            ],
            options={"verbose_name": "receipt", "verbose_name_plural": "receipts", "default_permissions": (), "constraints": [models.UniqueConstraint(fields=("job", "key"), name="django_jobs_receipt_key")]},
        ),
        migrations.CreateModel(
            name="Quarantine",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_type", models.CharField(max_length=200, unique=True, verbose_name="job type")),
                ("since", models.DateTimeField(verbose_name="since")),
                ("lifted_at", models.DateTimeField(blank=True, help_text="Empty: its jobs are blocked.", null=True, verbose_name="lifted at")),
                ("reason", models.CharField(blank=True, default="", max_length=300, verbose_name="reason")),
                ("by", models.CharField(blank=True, default="", help_text="Empty: a worker.", max_length=150, verbose_name="by")),
                ("until", models.DateTimeField(blank=True, null=True, verbose_name="until")),
            ],
            options={"verbose_name": "quarantine", "verbose_name_plural": "quarantines", "permissions": (("quarantine_job_type", "Can quarantine job types and lift quarantines"),), "default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="Resource",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        max_length=100, unique=True, validators=[django.core.validators.RegexValidator("\\A[A-Za-z0-9][A-Za-z0-9_.-]*\\Z", "Use letters, digits, dots, hyphens and underscores; start with a letter or digit.")], verbose_name="name"
                    ),
                ),
                ("paused_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused at")),
                ("paused_reason", models.CharField(blank=True, default="", editable=False, max_length=300, verbose_name="reason for the pause")),
                ("paused_by", models.CharField(blank=True, db_default="", default="", editable=False, max_length=150, verbose_name="paused by")),
                ("paused_until", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused until")),
                ("max_concurrency", models.PositiveIntegerField(blank=True, help_text="Jobs that may use it at once. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum concurrency")),
                ("max_waiting", models.PositiveIntegerField(blank=True, help_text="Jobs that may wait for it. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum waiting")),
                ("rate", models.FloatField(blank=True, help_text="Jobs that may start in each period. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(0.0001)], verbose_name="rate")),
                ("rate_seconds", models.FloatField(db_default=1.0, default=1.0, help_text="The period of the rate, in seconds.", validators=[django.core.validators.MinValueValidator(0.001)], verbose_name="period")),
                ("burst", models.PositiveIntegerField(blank=True, help_text="Jobs that may start at once after a rest. Empty: as many as in a period.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="burst")),
                (
                    "breaker_failures",
                    models.PositiveIntegerField(blank=True, help_text="Failures in the window at which the breaker opens. Empty: it never does.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="failures"),
                ),
                ("breaker_window", models.FloatField(default=60.0, help_text="Seconds.", validators=[django.core.validators.MinValueValidator(1.0)], verbose_name="window")),
                ("breaker_open_for", models.FloatField(default=30.0, help_text="Seconds after which an open breaker lets a few jobs try.", validators=[django.core.validators.MinValueValidator(1.0)], verbose_name="open for")),
                ("breaker_state", models.CharField(choices=[("closed", "closed"), ("open", "open"), ("half_open", "half open")], default="closed", editable=False, max_length=9, verbose_name="breaker")),
                ("breaker_changed_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="breaker changed at")),
                ("breaker_reason", models.CharField(blank=True, default="", editable=False, max_length=300, verbose_name="reason of the breaker")),
                ("pressure", models.CharField(db_default="ok", default="ok", editable=False, help_text="The level when a worker last looked.", max_length=4, verbose_name="pressure")),
                (
                    "retry_budget",
                    models.FloatField(
                        blank=True,
                        help_text="The share of starts that may be retries, from 0 to 1. Empty: no limit.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(1.0)],
                        verbose_name="retry budget",
                    ),
                ),
                ("recent_starts", models.FloatField(editable=False, help_text="For the retry budget.", null=True, verbose_name="recent starts")),
                ("recent_retries", models.FloatField(editable=False, help_text="For the retry budget.", null=True, verbose_name="recent retries")),
                ("counted_at", models.DateTimeField(editable=False, null=True, verbose_name="counted at")),
                ("tokens", models.FloatField(blank=True, editable=False, help_text="At the last refill.", null=True, verbose_name="tokens")),
                ("refilled_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="refilled at")),
                ("over_limit", models.BooleanField(default=False, editable=False, help_text="More jobs use it than the limit allows, because the limit was lowered.", verbose_name="over its limit")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "resource",
                "verbose_name_plural": "resources",
                "default_permissions": ("add", "change", "view"),
                "ordering": ("name",),
                "permissions": (("pause_resource", "Can pause and resume resources"),),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("max_concurrency__isnull", True), ("max_concurrency__range", (1, 2147483647)), _connector="OR"), name="django_jobs_resource_max_concurrency"),
                    models.CheckConstraint(condition=models.Q(("max_waiting__isnull", True), ("max_waiting__range", (1, 2147483647)), _connector="OR"), name="django_jobs_resource_max_waiting"),
                    models.CheckConstraint(condition=models.Q(("rate__isnull", True), ("rate__range", (0.0001, 1e100)), _connector="OR"), name="django_jobs_resource_rate"),
                    models.CheckConstraint(condition=models.Q(("rate_seconds__isnull", True), ("rate_seconds__range", (0.001, 1e100)), _connector="OR"), name="django_jobs_resource_rate_seconds"),
                    models.CheckConstraint(condition=models.Q(("burst__isnull", True), ("burst__range", (1, 2147483647)), _connector="OR"), name="django_jobs_resource_burst"),
                    models.CheckConstraint(condition=models.Q(("breaker_failures__isnull", True), ("breaker_failures__range", (1, 2147483647)), _connector="OR"), name="django_jobs_resource_breaker_failures"),
                    models.CheckConstraint(condition=models.Q(("breaker_window__isnull", True), ("breaker_window__range", (1.0, 1e100)), _connector="OR"), name="django_jobs_resource_breaker_window"),
                    models.CheckConstraint(condition=models.Q(("breaker_open_for__isnull", True), ("breaker_open_for__range", (1.0, 1e100)), _connector="OR"), name="django_jobs_resource_breaker_open_for"),
                    models.CheckConstraint(condition=models.Q(("retry_budget__isnull", True), ("retry_budget__range", (0.0, 1.0)), _connector="OR"), name="django_jobs_resource_retry_budget"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True, verbose_name="name")),
                (
                    "weight",
                    models.FloatField(
                        default=1.0,
                        help_text="Its share of a busy queue, in proportion to the other tenants' weights.",
                        validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(1000000)],
                        verbose_name="weight",
                    ),
                ),
                (
                    "max_concurrency",
                    models.PositiveIntegerField(
                        blank=True, help_text="Jobs of this tenant that may be ready or running at once. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum concurrency"
                    ),
                ),
                (
                    "max_waiting",
                    models.PositiveIntegerField(blank=True, help_text="Jobs of this tenant that may wait at their gates. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="maximum waiting"),
                ),
                ("rate", models.FloatField(blank=True, help_text="Jobs that may start in each period. Empty: no limit.", null=True, validators=[django.core.validators.MinValueValidator(0.0001)], verbose_name="rate")),
                ("rate_seconds", models.FloatField(db_default=1.0, default=1.0, help_text="The period of the rate, in seconds.", validators=[django.core.validators.MinValueValidator(0.001)], verbose_name="period")),
                ("burst", models.PositiveIntegerField(blank=True, help_text="Jobs that may start at once after a rest. Empty: as many as in a period.", null=True, validators=[django.core.validators.MinValueValidator(1)], verbose_name="burst")),
                ("tokens", models.FloatField(blank=True, editable=False, help_text="At the last refill.", null=True, verbose_name="tokens")),
                ("refilled_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="refilled at")),
                ("paused_at", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused at")),
                ("paused_reason", models.CharField(blank=True, default="", editable=False, max_length=300, verbose_name="reason for the pause")),
                ("paused_by", models.CharField(blank=True, db_default="", default="", editable=False, max_length=150, verbose_name="paused by")),
                ("paused_until", models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused until")),
                (
                    "slo_seconds",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds within which a job should start. Empty: none.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(31622400.0)],
                        verbose_name="start within",
                    ),
                ),
                (
                    "slo_target",
                    models.FloatField(
                        db_default=0.99,
                        default=0.99,
                        help_text="The share of the jobs that should start in time, such as 0.99.",
                        validators=[django.core.validators.MinValueValidator(0.01), django.core.validators.MaxValueValidator(0.99999)],
                        verbose_name="share of jobs",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "tenant",
                "verbose_name_plural": "tenants",
                "ordering": ("name",),
                "permissions": (("pause_tenant", "Can pause and resume tenants"),),
                "indexes": [
                    models.Index(condition=models.Q(("paused_until__isnull", False)), fields=["paused_until"], name="django_jobs_tenant_until"),
                    models.Index(condition=models.Q(("max_waiting__isnull", False)), fields=["name", "max_waiting"], name="django_jobs_tenant_waiting"),
                ],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("slo_seconds__isnull", True), ("slo_seconds__range", (0.001, 31622400.0)), _connector="OR"), name="django_jobs_tenant_slo_seconds"),
                    models.CheckConstraint(condition=models.Q(("slo_target__isnull", True), ("slo_target__range", (0.01, 0.99999)), _connector="OR"), name="django_jobs_tenant_slo_target"),
                    models.CheckConstraint(condition=models.Q(("rate__isnull", True), ("rate__range", (0.0001, 1e100)), _connector="OR"), name="django_jobs_tenant_rate"),
                    models.CheckConstraint(condition=models.Q(("rate_seconds__isnull", True), ("rate_seconds__range", (0.001, 1e100)), _connector="OR"), name="django_jobs_tenant_rate_seconds"),
                    models.CheckConstraint(condition=models.Q(("burst__isnull", True), ("burst__range", (1, 2147483647)), _connector="OR"), name="django_jobs_tenant_burst"),
                    models.CheckConstraint(condition=models.Q(("weight__gte", 0.001), ("weight__lte", 1000000)), name="django_jobs_tenant_weight"),
                    models.CheckConstraint(condition=models.Q(("max_concurrency__isnull", True), ("max_concurrency__gte", 1), _connector="OR"), name="django_jobs_tenant_concurrency"),
                    models.CheckConstraint(condition=models.Q(("max_waiting__isnull", True), ("max_waiting__gte", 1), _connector="OR"), name="django_jobs_tenant_max_waiting"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Effect",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=200, verbose_name="key")),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("answer", models.JSONField(null=True, verbose_name="answer")),
                ("made_at", models.DateTimeField(help_text="Empty while the call is being made.", null=True, verbose_name="made at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
                ("prevented", models.PositiveIntegerField(db_default=0, default=0, verbose_name="duplicates prevented")),
            ],
            options={
                "verbose_name": "effect",
                "verbose_name_plural": "effects",
                "default_permissions": (),
                "indexes": [models.Index(fields=["expires_at"], name="django_jobs_effect_expiry")],
                "constraints": [models.UniqueConstraint(fields=("key",), name="django_jobs_effect_key")],
            },
        ),
        migrations.CreateModel(
            name="StoredFile",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("is_checkpoint", models.BooleanField(db_default=False, default=False, verbose_name="is a checkpoint")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
            ],
            options={"verbose_name": "stored file", "verbose_name_plural": "stored files", "default_permissions": (), "constraints": [models.UniqueConstraint(fields=("name", "job_id"), name="django_jobs_stored_file_name")]},
        ),
        migrations.CreateModel(
            name="UniqueKey",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("key", models.CharField(max_length=200, verbose_name="key")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("job", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to="django_jobs.job", verbose_name="job")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "unique key",
                "verbose_name_plural": "unique keys",
                "default_permissions": (),
                "indexes": [models.Index(fields=["expires_at"], name="django_jobs_unique_key_expiry")],
                "constraints": [models.UniqueConstraint(fields=("queue", "key"), name="django_jobs_unique_key")],
            },
        ),
        migrations.CreateModel(
            name="StoredMetrics",
            fields=[
                ("id", models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ("taken_at", models.DateTimeField(verbose_name="taken at")),
                ("values", models.TextField(help_text="JSON: lists of rows, by part.", verbose_name="values")),
                ("seconds", models.FloatField(help_text="What it took to read them.", verbose_name="seconds")),
            ],
            options={"verbose_name": "stored metrics", "verbose_name_plural": "stored metrics", "default_permissions": ()},
        ),
        migrations.CreateModel(name="Overview", fields=[], options={"verbose_name": "overview", "verbose_name_plural": " Overview", "proxy": True, "default_permissions": (), "indexes": [], "constraints": []}, bases=("django_jobs.storedmetrics",)),
        migrations.CreateModel(
            name="ResourceOutcome",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("resource", models.CharField(max_length=100, verbose_name="resource")),
                ("failed", models.BooleanField(verbose_name="failed")),
                ("happened_at", models.DateTimeField(verbose_name="happened at")),
            ],
            options={"verbose_name": "outcome of a resource", "verbose_name_plural": "outcomes of resources", "default_permissions": (), "indexes": [models.Index(fields=["resource", "happened_at"], name="django_jobs_resource_outcome")]},
        ),
        migrations.CreateModel(
            name="Dependency",
            fields=[
                ("pk", models.CompositePrimaryKey("parent_id", "child_id", blank=True, editable=False, primary_key=True, serialize=False)),
                ("workflow_run", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name="dependencies", to="django_jobs.workflowrun", verbose_name="workflow run")),
                ("parent", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to="django_jobs.job", verbose_name="parent")),
                ("child", models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name="+", to="django_jobs.job", verbose_name="child")),
                ("when", models.CharField(choices=[("succeeded", "succeeded"), ("failed", "failed"), ("finished", "finished")], max_length=9, verbose_name="when")),
                ("takes", models.JSONField(blank=True, help_text="The arguments of the child that get the result of the parent.", null=True, verbose_name="takes")),
                ("condition", models.JSONField(blank=True, help_text="What the result of the parent has to be besides.", null=True, verbose_name="condition")),
            ],
            options={"verbose_name": "dependency", "verbose_name_plural": "dependencies", "default_permissions": (), "indexes": [models.Index(fields=["child", "parent"], name="django_jobs_parents")]},
        ),
        migrations.CreateModel(
            name="JobTypeDefaults",
            fields=[("name", models.CharField(max_length=200, primary_key=True, serialize=False, verbose_name="name")), ("options", models.JSONField(verbose_name="options"))],
            options={"verbose_name": "defaults of a job type", "verbose_name_plural": "defaults of job types", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="RunTotal",
            fields=[
                ("pk", models.CompositePrimaryKey("period", "began_at", "queue", "job_type", "outcome", blank=True, editable=False, primary_key=True, serialize=False)),
                ("period", models.PositiveIntegerField(help_text="Seconds: 60 or 3,600; 0 is since the beginning.", verbose_name="period")),
                ("began_at", models.DateTimeField(verbose_name="began at")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("succeeded", "succeeded"), ("failed", "failed"), ("timed_out", "timed out"), ("lost", "lost"), ("snoozed", "snoozed"), ("cancelled", "cancelled"), ("released", "released")], max_length=9, verbose_name="outcome"
                    ),
                ),
                ("runs", models.BigIntegerField(verbose_name="runs")),
                ("waiting_buckets", django_jobs.models.totals.BucketsField(verbose_name="waiting")),
                ("waiting_seconds", models.FloatField(verbose_name="seconds of waiting")),
                ("gate_buckets", django_jobs.models.totals.BucketsField(verbose_name="waiting at gates")),
                ("gate_seconds", models.FloatField(verbose_name="seconds at gates")),
                ("start_lag_buckets", django_jobs.models.totals.BucketsField(verbose_name="start lag")),
                ("start_lag_seconds", models.FloatField(verbose_name="seconds of start lag")),
                ("runtime_buckets", django_jobs.models.totals.BucketsField(verbose_name="runtime")),
                ("runtime_seconds", models.FloatField(verbose_name="seconds of runtime")),
                ("slo_runs", models.BigIntegerField(verbose_name="runs with an objective")),
                ("slo_met", models.BigIntegerField(verbose_name="runs that met it")),
                ("retries", models.BigIntegerField(db_default=0, default=0, verbose_name="Retries")),
                ("died", models.BigIntegerField(db_default=0, default=0, verbose_name="Died")),
                ("prevented", models.BigIntegerField(db_default=0, default=0, verbose_name="duplicates prevented")),
            ],
            options={"verbose_name": "total of runs", "verbose_name_plural": "totals of runs", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="ResourceTotal",
            fields=[
                ("pk", models.CompositePrimaryKey("resource", "outcome", blank=True, editable=False, primary_key=True, serialize=False)),
                ("resource", models.CharField(max_length=100, verbose_name="resource")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("succeeded", "succeeded"), ("failed", "failed"), ("timed_out", "timed out"), ("lost", "lost"), ("snoozed", "snoozed"), ("cancelled", "cancelled"), ("released", "released")], max_length=9, verbose_name="outcome"
                    ),
                ),
                ("runs", models.BigIntegerField(verbose_name="runs")),
                ("throttled", models.BigIntegerField(help_text="With the error code 429.", verbose_name="throttled")),
                ("server_errors", models.BigIntegerField(help_text="With an error code from 500 to 599.", verbose_name="server errors")),
                ("runtime_buckets", django_jobs.models.totals.BucketsField(verbose_name="runtime")),
                ("runtime_seconds", models.FloatField(verbose_name="seconds of runtime")),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="TenantTotal",
            fields=[
                ("pk", models.CompositePrimaryKey("period", "began_at", "tenant", "outcome", blank=True, editable=False, primary_key=True, serialize=False)),
                ("period", models.PositiveIntegerField(verbose_name="period")),
                ("began_at", models.DateTimeField(verbose_name="began at")),
                ("tenant", models.CharField(max_length=100, verbose_name="tenant")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("succeeded", "succeeded"), ("failed", "failed"), ("timed_out", "timed out"), ("lost", "lost"), ("snoozed", "snoozed"), ("cancelled", "cancelled"), ("released", "released")], max_length=9, verbose_name="outcome"
                    ),
                ),
                ("runs", models.BigIntegerField(verbose_name="runs")),
                ("waiting_buckets", django_jobs.models.totals.BucketsField(verbose_name="waiting")),
                ("waiting_seconds", models.FloatField(verbose_name="seconds of waiting")),
                ("runtime_buckets", django_jobs.models.totals.BucketsField(verbose_name="runtime")),
                ("runtime_seconds", models.FloatField(verbose_name="seconds of runtime")),
                ("slo_runs", models.BigIntegerField(verbose_name="runs with an objective")),
                ("slo_met", models.BigIntegerField(verbose_name="runs that met it")),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="ErrorTotal",
            fields=[
                ("pk", models.CompositePrimaryKey("began_at", "job_type", "error_type", "fingerprint", blank=True, editable=False, primary_key=True, serialize=False)),
                ("began_at", models.DateTimeField(verbose_name="began at")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                ("error_type", models.CharField(max_length=200, verbose_name="error class")),
                ("fingerprint", models.CharField(max_length=16, verbose_name="fingerprint")),
                ("runs", models.BigIntegerField(verbose_name="runs")),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="RunWatermark",
            fields=[("id", models.PositiveSmallIntegerField(primary_key=True, serialize=False)), ("run_id", models.BigIntegerField(verbose_name="run")), ("reached_at", models.DateTimeField(null=True, verbose_name="reached at"))],
            options={"verbose_name": "watermark of runs", "verbose_name_plural": "watermarks of runs", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="BacklogSample",
            fields=[
                ("pk", models.CompositePrimaryKey("queue", "taken_at", blank=True, editable=False, primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("taken_at", models.DateTimeField(verbose_name="taken at")),
                ("ready", models.BigIntegerField(null=True, verbose_name="ready")),
                ("running", models.BigIntegerField(verbose_name="running")),
                ("runs", models.BigIntegerField(help_text="Attempts of this queue that had ended since the beginning.", verbose_name="runs")),
                ("drain_seconds", models.FloatField(null=True, verbose_name="seconds until it is drained")),
                ("drained_at", models.DateTimeField(null=True, verbose_name="drained at")),
            ],
            options={"verbose_name": "sample of a backlog", "verbose_name_plural": "samples of backlogs", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("rule", models.CharField(max_length=100, verbose_name="rule")),
                ("situation", models.CharField(max_length=100, verbose_name="situation")),
                ("subject", models.CharField(max_length=200, verbose_name="subject")),
                ("problem", models.TextField(verbose_name="problem")),
                ("began_at", models.DateTimeField(verbose_name="began at")),
                ("send_after", models.DateTimeField(verbose_name="send after")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended at")),
                ("begin_sent_at", models.DateTimeField(null=True, verbose_name="begin sent at")),
                ("end_sent_at", models.DateTimeField(null=True, verbose_name="end sent at")),
                ("tried_at", models.DateTimeField(null=True, verbose_name="tried at")),
                ("attempts", models.PositiveSmallIntegerField(default=0, verbose_name="attempts")),
            ],
            options={
                "verbose_name": "alert",
                "verbose_name_plural": "alerts",
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(condition=models.Q(("ended_at", None)), fields=("rule", "situation", "subject"), name="django_jobs_alert_open")],
            },
        ),
        migrations.RunPython(tune, migrations.RunPython.noop),
        migrations.RunPython(partition, migrations.RunPython.noop),
        migrations.RunPython(_enqueue_function.create, _enqueue_function.drop),
    ]
