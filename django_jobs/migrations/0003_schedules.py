import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_jobs", "0002_autovacuum"),
    ]

    operations = [
        migrations.CreateModel(
            name="Tick",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("due_at", models.DateTimeField(verbose_name="due at")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("fired", "fired"),
                            ("skipped_overlap", "skipped: the last job was not done"),
                            ("skipped_late", "skipped: too late"),
                            ("suppressed", "suppressed"),
                        ],
                        max_length=15,
                        verbose_name="outcome",
                    ),
                ),
                (
                    "reason",
                    models.CharField(blank=True, default="", max_length=300, verbose_name="reason"),
                ),
                ("late_seconds", models.FloatField(help_text="Seconds.", verbose_name="late by")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
            ],
            options={
                "verbose_name": "tick",
                "verbose_name_plural": "ticks",
                "ordering": ("-due_at",),
            },
        ),
        migrations.AddField(
            model_name="job",
            name="scheduled_for",
            field=models.DateTimeField(
                blank=True,
                help_text="The due time of its schedule.",
                null=True,
                verbose_name="scheduled for",
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="schedules_seen_at",
            field=models.DateTimeField(
                blank=True, null=True, verbose_name="last look at the schedules"
            ),
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200, unique=True, verbose_name="name")),
                ("job_type", models.CharField(max_length=200, verbose_name="job type")),
                (
                    "payload",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Arguments by name.",
                        verbose_name="payload",
                    ),
                ),
                (
                    "queue",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Empty: the queue that the job type declares.",
                        max_length=100,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[A-Za-z0-9][A-Za-z0-9_.-]*\\Z",
                                "Use letters, digits, dots, hyphens and underscores; "
                                "start with a letter or digit.",
                            )
                        ],
                        verbose_name="queue",
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        blank=True,
                        help_text="Empty: the priority that the job type declares.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(-100),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="priority",
                    ),
                ),
                (
                    "cron",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Minute, hour, day of the month, month, day of the week.",
                        max_length=100,
                        verbose_name="cron expression",
                    ),
                ),
                (
                    "every",
                    models.FloatField(
                        blank=True,
                        help_text="Seconds, counted from the start or else from 1970.",
                        null=True,
                        verbose_name="interval",
                    ),
                ),
                (
                    "timezone",
                    models.CharField(default="UTC", max_length=64, verbose_name="time zone"),
                ),
                (
                    "starts_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="starts at"),
                ),
                ("ends_at", models.DateTimeField(blank=True, null=True, verbose_name="ends at")),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "jitter_seconds",
                    models.FloatField(
                        default=0.0,
                        help_text="Each job starts up to this many seconds late, so that not all start at once.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="jitter",
                    ),
                ),
                (
                    "dst",
                    models.CharField(
                        choices=[
                            ("once", "once on each day"),
                            ("skip", "not in a skipped hour"),
                            ("twice", "twice in an hour that occurs twice"),
                        ],
                        default="once",
                        max_length=5,
                        verbose_name="when the clock changes",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("skip", "skip"),
                            ("queue_one", "let one wait"),
                            ("queue_all", "let all wait, and run them in order"),
                            ("allow", "run at the same time, up to the limit"),
                            ("cancel", "cancel the last job"),
                        ],
                        default="skip",
                        max_length=9,
                        verbose_name="while the last job is not done",
                    ),
                ),
                (
                    "overlap_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Jobs that may run at once, or wait. Empty: any number.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="overlap limit",
                    ),
                ),
                (
                    "catch_up",
                    models.CharField(
                        choices=[
                            ("latest", "run only the latest"),
                            ("skip", "skip them"),
                            ("at_most", "run the newest, up to the limit"),
                            ("window", "run those within the limit in seconds"),
                        ],
                        default="latest",
                        max_length=7,
                        verbose_name="missed due times",
                    ),
                ),
                (
                    "catch_up_limit",
                    models.FloatField(
                        blank=True,
                        help_text="A number of jobs, or seconds.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="limit of missed due times",
                    ),
                ),
                (
                    "pause_after_dead",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="The number of dead jobs in a row that pauses the schedule. Empty: never.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="pause after dead jobs",
                    ),
                ),
                (
                    "declared",
                    models.BooleanField(
                        default=False,
                        editable=False,
                        help_text="Each migrate writes the values from the code.",
                        verbose_name="declared in code",
                    ),
                ),
                (
                    "paused_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="paused at"
                    ),
                ),
                (
                    "paused_reason",
                    models.CharField(
                        blank=True,
                        default="",
                        editable=False,
                        max_length=300,
                        verbose_name="reason for the pause",
                    ),
                ),
                (
                    "resumed_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="resumed at"
                    ),
                ),
                (
                    "error",
                    models.TextField(
                        blank=True,
                        default="",
                        editable=False,
                        help_text="The schedule does not fire until it is saved or resumed.",
                        verbose_name="error",
                    ),
                ),
                ("stale", models.BooleanField(default=True, editable=False)),
                (
                    "next_due_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="next due at"
                    ),
                ),
                (
                    "last_due_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="last due at"
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "ordering": ("name",),
                "permissions": (
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run schedules now"),
                    ("backfill_schedule", "Can backfill schedules"),
                ),
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("enabled", True), ("error", ""), ("paused_at__isnull", True)
                        ),
                        fields=["next_due_at"],
                        name="django_jobs_due",
                    ),
                    models.Index(
                        condition=models.Q(("stale", True)), fields=["id"], name="django_jobs_stale"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (-100, 100))),
                        name="django_jobs_schedule_priority",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("overlap__in", ["skip", "queue_one", "queue_all", "allow", "cancel"]),
                            ("catch_up__in", ["latest", "skip", "at_most", "window"]),
                        ),
                        name="django_jobs_schedule_policies",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Backfill",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("begins_at", models.DateTimeField(verbose_name="from")),
                ("ends_at", models.DateTimeField(verbose_name="to")),
                ("jobs", models.PositiveIntegerField(default=0, verbose_name="jobs")),
                (
                    "asked_by",
                    models.CharField(
                        blank=True, default="", max_length=200, verbose_name="requested by"
                    ),
                ),
                (
                    "cancelled_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="cancelled at"),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created at")),
                (
                    "schedule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="backfills",
                        to="django_jobs.schedule",
                        verbose_name="schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "backfill",
                "verbose_name_plural": "backfills",
                "ordering": ("-id",),
            },
        ),
        migrations.AddField(
            model_name="job",
            name="schedule",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="jobs",
                to="django_jobs.schedule",
                verbose_name="schedule",
            ),
        ),
        migrations.AddField(
            model_name="tick",
            name="backfill",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="ticks",
                to="django_jobs.backfill",
                verbose_name="backfill",
            ),
        ),
        migrations.AddField(
            model_name="tick",
            name="job",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="ticks",
                to="django_jobs.job",
                verbose_name="job",
            ),
        ),
        migrations.AddField(
            model_name="tick",
            name="schedule",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="ticks",
                to="django_jobs.schedule",
                verbose_name="schedule",
            ),
        ),
        migrations.AddIndex(
            model_name="tick",
            index=models.Index(
                condition=models.Q(("backfill__isnull", False)),
                fields=["backfill"],
                name="django_jobs_tick_backfill",
            ),
        ),
        migrations.AddConstraint(
            model_name="tick",
            constraint=models.UniqueConstraint(
                fields=("schedule", "due_at"), name="django_jobs_tick_due"
            ),
        ),
        migrations.AddConstraint(
            model_name="tick",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("outcome__in", ["fired", "skipped_overlap", "skipped_late", "suppressed"])
                ),
                name="django_jobs_tick_outcome",
            ),
        ),
    ]
