"""What a project and its administrators may do with the tables, and no job notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, connections

from django_jobs.models import Job, Run
from django_jobs.testing import run_jobs
from tests.app.jobs import add
from tests.factories import run_sql

pytestmark = pytest.mark.django_db(transaction=True)

WATCH = """
CREATE FUNCTION watch_all() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER watch BEFORE INSERT OR UPDATE OR DELETE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION watch_all();
CREATE TRIGGER watch_rows AFTER INSERT OR UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION watch_all()
"""

CLUSTER = """
DO $$ BEGIN
    EXECUTE (SELECT format('CLUSTER django_jobs_job_live USING %I', relname)
             FROM pg_index JOIN pg_class ON oid = indexrelid
             WHERE indrelid = 'django_jobs_job_live'::regclass AND indisprimary);
END $$
"""


@contextmanager
def published() -> Iterator[None]:
    """All tables are copied to another server."""
    run_sql("CREATE PUBLICATION everything FOR ALL TABLES")
    try:
        yield
    finally:
        run_sql("DROP PUBLICATION everything")


@contextmanager
def watched(table: str) -> Iterator[None]:
    """Triggers that see statements, and rows after them. What they return is ignored."""
    run_sql(WATCH.format(table=table))
    try:
        yield
    finally:
        run_sql("DROP FUNCTION watch_all CASCADE")


@contextmanager
def rewritten(statement: str) -> Iterator[None]:
    """A table is written anew, again and again."""
    over = threading.Event()

    def rewrite() -> None:
        while not over.is_set():
            run_sql(statement)
        connections.close_all()

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "others",
    [
        published,
        lambda: watched("django_jobs_job"),
        lambda: watched("django_jobs_job_live"),
        lambda: watched("django_jobs_run"),
        lambda: rewritten("VACUUM FULL django_jobs_job_live"),
        lambda: rewritten(CLUSTER),
    ],
    ids=["publication", "watched", "watched live jobs", "watched runs", "VACUUM FULL", "CLUSTER"],
)
def test_no_job_notices(others: object) -> None:
    assert callable(others)
    with others():
        for number in range(20):
            add.enqueue(number)
        add.using(idempotency_key="k", delay=3600).enqueue(1)
        assert len(run_jobs()) == 20
    assert Job.objects.filter(status="succeeded").count() == 20
    assert set(Run.objects.values_list("attempt", "outcome")) == {(1, "succeeded")}
    assert connection.is_usable()
