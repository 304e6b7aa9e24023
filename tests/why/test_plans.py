"""The plan of the one statement, on a large table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker

from django_jobs.domain.gates import Gates
from django_jobs.models import Job, Queue, Resource, Tenant
from django_jobs.models.database import with_parts
from django_jobs.why.evaluation import explain, parameters_of, parts_of
from django_jobs.why.facts import MOST_BEFORE, MOST_IN_LINE
from tests.factories import analyze, empty_tables, register_worker, rows_read, run_sql, vacuum
from tests.factories import explain as plan_of
from tests.lifecycle.test_plans import fill, whole_tables

MANY = 30_000
"""Jobs in each state: three times what is counted."""
GATES = Gates(tenant="acme", queue="default", key="account:7", limit=5, resources=("stripe",))
GATED = """
UPDATE django_jobs_job SET gates = %(text)s, tenant = 'acme', concurrency_key = 'account:7',
    resources = '["stripe"]'
WHERE status = %(status)s AND id IN (
    SELECT id FROM django_jobs_job WHERE status = %(status)s ORDER BY id LIMIT %(count)s)
"""
TABLES = "job", "run", "queue", "worker", "resource", "tenant", "progress", "receipt"


@pytest.fixture(scope="module", autouse=True)
def _large_table(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A table that is large in every state but running, with workers that hold the running ones."""
    with django_db_blocker.unblock():
        empty_tables()
        run_sql("SET synchronous_commit = off")
        for status in ("succeeded", "ready", "blocked", "waiting", "dead"):
            fill(status, MANY)
        fill("scheduled", MANY, due=3_600.0)
        fill("running", 200, worker=register_worker(threads=200))
        # Without statistics the planner reads the table once for each of the jobs to update.
        analyze("django_jobs_job")
        for status, count in (("blocked", MANY // 2), ("running", 5)):
            run_sql(GATED, {"text": GATES.text, "status": status, "count": count})  # type: ignore[arg-type]
        Tenant.objects.create(name="acme", max_concurrency=9)
        Resource.objects.create(name="stripe", max_concurrency=9)
        run_sql("SET default_statistics_target = 1000")
        analyze(*(f"django_jobs_{table}" for table in TABLES))
        # As autovacuum does. Otherwise an index of the live jobs cannot be read alone, and the
        # planner sorts a long line instead of reading its first thousand jobs.
        vacuum("VACUUM ANALYZE django_jobs_job_live")
        run_sql("RESET default_statistics_target")
        Queue.objects.filter(name="default").update(max_concurrency=3)
        try:
            yield
        finally:
            tables = ", ".join(
                f"django_jobs_{name}" for name in ("job", "worker", "tenant", "resource")
            )
            run_sql(f"TRUNCATE {tables}")
            Queue.objects.filter(name="default").update(max_concurrency=None)


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["ready", "blocked", "scheduled", "waiting", "running"])
def test_no_gate_reads_more_than_its_bound(status: str) -> None:
    """Of the last job of each line, so that as many as possible are before it."""
    jobs = Job.objects.filter(status=status, queue="default")
    job = jobs.order_by("-rank").filter(gates__isnull=status != "blocked").first()
    assert job is not None
    plan = plan_of(with_parts(parts_of(job)), parameters_of(job))
    assert whole_tables(plan) == set()
    worst = max(plan, key=rows_read)
    assert rows_read(worst) <= MOST_BEFORE + 1, worst
    explanation = explain(job)
    most = {"ready": MOST_BEFORE, "blocked": MOST_IN_LINE}.get(status)
    assert (explanation.before, explanation.more_before) == (most, most is not None)
