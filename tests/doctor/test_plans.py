"""The statements of the doctor are short, however many jobs and runs there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from django_jobs.doctor import examination
from django_jobs.doctor.examination import EXAMINATIONS, diagnose
from django_jobs.doctor.work import FORMS
from tests.factories import analyze, empty_tables, explain, rows_read, run_sql

JOBS, RUNS = 200_000, 300_000
FILL = """
INSERT INTO django_jobs_job_live (queue, job_type, payload, status, priority, rank, available_at,
    max_attempts, max_crashes, headers, payload_version, created_at)
SELECT 'default', 'app.noop', '{{}}', '{status}', 0, n, now() + make_interval(hours => n), 5, 3,
    '{{}}', 1, now()
FROM generate_series(1, {count}) AS n
"""
FILL_RUNS = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    finished_at, error_type, error_message, traceback, fingerprint)
SELECT n, 1, 'succeeded', 1, now(), now(), now(), '', '', '', ''
FROM generate_series(1, {count}) AS n
"""
MOST_ROWS = 10_000
"""That a part of a plan may read, each time that it is run."""


@pytest.fixture(scope="module", autouse=True)
def many(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        empty_tables()
        for status in ("ready", "scheduled", "blocked", "dead", "waiting"):
            run_sql(FILL.format(status=status, count=JOBS // 5))
        run_sql(FILL_RUNS.format(count=RUNS))
        analyze("django_jobs_job", "django_jobs_run", "django_jobs_queue", "django_jobs_worker")
        try:
            yield
        finally:
            run_sql("TRUNCATE django_jobs_job, django_jobs_run")


@pytest.mark.django_db
@pytest.mark.parametrize("one", EXAMINATIONS, ids=lambda one: one.examine.__name__)
def test_no_part_of_a_plan_reads_many_rows(one: examination.Examination) -> None:
    statements: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        assert not diagnose([one]).not_examined
    # What is read ahead is one text, which has its values.
    read = [(each.sql, each.parameters()) for each in one.reads]
    read += [(sql, params) for sql, params in statements if params is not None]
    for sql, params in (each for each in read if "django_jobs_" in each[0]):
        _reads_few(sql, params)


@pytest.mark.django_db
def test_payloads_of_a_small_table_are_found_by_their_ids() -> None:
    """Beside 40,000 jobs PostgreSQL read them all, for one payload of each form."""
    run_sql("TRUNCATE django_jobs_job")
    for status in ("ready", "scheduled"):
        run_sql(FILL.format(status=status, count=MOST_ROWS * 2))
    analyze("django_jobs_job")
    _reads_few(FORMS.sql, FORMS.parameters())


def _reads_few(sql: str, params: Any) -> None:
    for node in explain(sql, params):
        assert rows_read(node) <= MOST_ROWS, sql
