"""Each operation of ``_patience``, on the tables that claims and enqueues use."""

import django.db.models.deletion
from django.db import migrations, models

from django_jobs.migrations._patience import PatientAddField, PatientAddIndex, PatientCreateModel


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_jobs", "0001_initial")]

    operations = [
        PatientAddField("job", "region", models.CharField(max_length=20, db_default="here")),
        PatientAddField("worker", "labels", models.JSONField(null=True)),
        PatientAddIndex(
            "job", models.Index(fields=["finished_at"], name="django_jobs_job_finished")
        ),
        PatientAddIndex(
            "run",
            models.Index(
                fields=["finished_at"],
                condition=models.Q(outcome="lost"),
                name="django_jobs_run_lost",
            ),
        ),
        PatientCreateModel(
            "Remark",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                (
                    "job",
                    models.ForeignKey(
                        "django_jobs.job",
                        on_delete=django.db.models.deletion.CASCADE,
                        db_constraint=False,
                    ),
                ),
                ("text", models.TextField(db_default="")),
            ],
        ),
    ]
