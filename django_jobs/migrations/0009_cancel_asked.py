"""Find the running jobs that somebody asked to cancel. Built without locking out those who write."""

from django.db import migrations, models

from ._patience import PatientAddIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_jobs", "0008_worker_versions")]

    operations = [
        PatientAddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("cancel_requested_at__isnull", False), ("status", "running")),
                fields=["worker"],
                name="django_jobs_cancel_asked",
            ),
        ),
    ]
