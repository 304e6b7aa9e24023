"""Find the jobs that a quarantine holds. Built without locking out those who write jobs."""

from django.db import migrations, models

from ._patience import PatientAddIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_jobs", "0006_crashed_runs")]

    operations = [
        PatientAddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("reason", "quarantined"), ("status", "blocked")),
                fields=["job_type", "id"],
                name="django_jobs_quarantined",
            ),
        ),
    ]
