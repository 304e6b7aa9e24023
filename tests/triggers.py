"""Triggers of a project on the tables of the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django_jobs.lifecycle.settling_rows import note_triggers
from django_jobs.models import Queue

from .factories import run_sql

REFUSE = """
CREATE OR REPLACE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'not on Sundays';
END $$;
CREATE TRIGGER refuse BEFORE {} ON django_jobs_job_live
FOR EACH ROW WHEN ({}) EXECUTE FUNCTION pg_temp.refuse()
"""


@contextmanager
def refused(when: str, change: str = "UPDATE") -> Iterator[None]:
    """A trigger refuses these changes of a live job."""
    run_sql(REFUSE.format(change, when))
    try:
        yield
    finally:
        run_sql("DROP TRIGGER refuse ON django_jobs_job_live")


DROP = """
CREATE OR REPLACE FUNCTION pg_temp.drop_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END $$;
CREATE TRIGGER drop_row BEFORE INSERT ON {}
FOR EACH ROW WHEN ({}) EXECUTE FUNCTION pg_temp.drop_row()
"""


@contextmanager
def dropped(when: str = "true", table: str = "django_jobs_job_live") -> Iterator[None]:
    """A trigger drops these new rows and says nothing. Queues are read with what triggers there
    are, for two seconds."""
    run_sql(DROP.format(table, when))
    Queue.objects.forget_recent()
    try:
        yield
    finally:
        run_sql(f"DROP TRIGGER drop_row ON {table}")
        note_triggers()
