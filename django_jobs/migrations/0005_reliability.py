"""What reliability needs: progress, quarantine, receipts; and two columns.

No row is rewritten, and no claim waits for longer than a moment; see ``_patience``.
"""

import django.db.models.deletion
from django.db import migrations, models

from ._patience import PatientAddField, PatientCreateModel


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("django_jobs", "0004_live_schedule_index"),
    ]

    operations = [
        PatientCreateModel(
            name="Progress",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="progress",
                        serialize=False,
                        to="django_jobs.job",
                        verbose_name="job",
                    ),
                ),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                (
                    "fraction",
                    models.FloatField(help_text="From 0 to 1.", null=True, verbose_name="fraction"),
                ),
                (
                    "note",
                    models.CharField(blank=True, default="", max_length=200, verbose_name="note"),
                ),
                (
                    "checkpoint",
                    models.JSONField(
                        help_text="Where the next attempt begins.",
                        null=True,
                        verbose_name="checkpoint",
                    ),
                ),
                ("reported_at", models.DateTimeField(verbose_name="reported at")),
            ],
            options={
                "verbose_name": "progress",
                "verbose_name_plural": "progress",
                "default_permissions": ("view",),
            },
        ),
        PatientCreateModel(
            name="Quarantine",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "job_type",
                    models.CharField(max_length=200, unique=True, verbose_name="job type"),
                ),
                ("since", models.DateTimeField(verbose_name="since")),
                (
                    "released_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="Empty: its jobs are blocked.",
                        null=True,
                        verbose_name="lifted at",
                    ),
                ),
                (
                    "reason",
                    models.CharField(blank=True, default="", max_length=300, verbose_name="reason"),
                ),
                (
                    "by",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Empty: a worker.",
                        max_length=150,
                        verbose_name="by",
                    ),
                ),
            ],
            options={
                "verbose_name": "quarantine",
                "verbose_name_plural": "quarantines",
                "permissions": (
                    ("quarantine_job_type", "Can quarantine job types and lift quarantines"),
                ),
                "default_permissions": ("view",),
            },
        ),
        PatientCreateModel(
            name="Receipt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="receipts",
                        to="django_jobs.job",
                        verbose_name="job",
                    ),
                ),
                ("key", models.CharField(max_length=200, verbose_name="key")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("answer", models.JSONField(null=True, verbose_name="answer")),
                ("made_at", models.DateTimeField(verbose_name="made at")),
                (
                    "prevented",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Calls that were answered with this receipt.",
                        verbose_name="duplicates prevented",
                    ),
                ),
            ],
            options={
                "verbose_name": "receipt",
                "verbose_name_plural": "receipts",
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "key"), name="django_jobs_receipt_key")
                ],
            },
        ),
        PatientAddField(
            model_name="job",
            name="at_most_once",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="A failed or lost attempt is never retried.",
                verbose_name="at most once",
            ),
        ),
        PatientAddField(
            model_name="schedule",
            name="payload_version",
            field=models.PositiveSmallIntegerField(
                db_default=1, default=1, editable=False, verbose_name="payload version"
            ),
        ),
    ]
