"""Let the database know with what a job begins, so that an insert names only what differs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_jobs", "0009_cancel_asked"),
    ]

    operations = [
        migrations.AlterField(
            model_name="job",
            name="attempt",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="attempt"),
        ),
        migrations.AlterField(
            model_name="job",
            name="crashes",
            field=models.PositiveSmallIntegerField(
                db_default=0, default=0, verbose_name="crashes in a row"
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="failures",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="failures"),
        ),
        migrations.AlterField(
            model_name="job",
            name="last_error",
            field=models.TextField(
                blank=True, db_default="", default="", verbose_name="last error"
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="reason",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="Why the job is dead or cancelled.",
                verbose_name="reason",
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="replays",
            field=models.PositiveIntegerField(db_default=0, default=0, verbose_name="replays"),
        ),
    ]
