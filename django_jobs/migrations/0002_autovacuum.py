"""Vacuum the hot tables early and at full speed.

A job's row is rewritten twice in its life. The default waits for a fifth of the table to be dead,
which on a table of millions of finished jobs is never soon enough.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

JOB = """
ALTER TABLE django_jobs_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1
)
"""
WORKER = """
ALTER TABLE django_jobs_worker SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    fillfactor = 50
)
"""
RESET_JOB = """
ALTER TABLE django_jobs_job RESET (
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay,
    autovacuum_analyze_scale_factor, autovacuum_vacuum_insert_scale_factor
)
"""
RESET_WORKER = """
ALTER TABLE django_jobs_worker RESET (
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, fillfactor
)
"""


def tune(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Does nothing elsewhere: a project may have SQLite as its default beside the jobs' database."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(JOB)
        schema_editor.execute(WORKER)


def reset(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(RESET_JOB)
        schema_editor.execute(RESET_WORKER)


class Migration(migrations.Migration):
    dependencies = [("django_jobs", "0001_initial")]

    operations = [migrations.RunPython(tune, reset)]
