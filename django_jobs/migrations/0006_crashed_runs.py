"""Find the runs whose process crashed. Built without locking out those who write runs."""

from django.db import migrations, models

from ._patience import PatientAddIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_jobs", "0005_reliability")]

    operations = [
        PatientAddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("error_type", "Crashed"), ("outcome", "lost")),
                fields=["finished_at"],
                name="django_jobs_crashed",
            ),
        ),
    ]
