"""Find the live jobs of a schedule, and those that wait. Built without locking out those who write
jobs.

An index is built CONCURRENTLY outside any transaction. Where that was cut short the index is left
invalid: drop it and migrate again.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddIndex
from django.db.migrations.state import ProjectState


class AddIndexWithoutLock(AddIndexConcurrently):
    """Plain elsewhere: a project may have SQLite as its default beside the jobs' database."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        else:
            AddIndex.database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
        else:
            AddIndex.database_backwards(self, app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("django_jobs", "0003_schedules")]

    operations = [
        AddIndexWithoutLock(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("schedule__isnull", False),
                    ("status__in", ("waiting", "scheduled", "blocked", "ready", "running")),
                ),
                fields=["schedule"],
                name="django_jobs_live_schedule",
            ),
        ),
        AddIndexWithoutLock(
            model_name="job",
            index=models.Index(
                condition=models.Q(("schedule__isnull", False), ("status", "waiting")),
                fields=["schedule", "id"],
                name="django_jobs_waiting_turn",
            ),
        ),
    ]
