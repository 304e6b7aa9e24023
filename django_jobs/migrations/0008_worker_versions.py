"""Note which versions of payloads a worker reads. Workers of older code leave it empty."""

from django.db import migrations, models

from ._patience import PatientAddField


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_jobs", "0007_held_jobs")]

    operations = [
        PatientAddField(
            model_name="worker",
            name="versions",
            field=models.JSONField(
                blank=True,
                help_text="By job type, unless it is 1. Null: a worker of an older release, which takes any.",
                null=True,
                verbose_name="newest payload versions",
            ),
        ),
    ]
