"""A snapshot that stays open while jobs come and go (D18)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.claiming import START
from django_jobs.lifecycle.job_columns import QueuePosition
from django_jobs.lifecycle.settling import Ending, settle
from tests.app import jobs
from tests.factories import another_connection, claim_ready, register_worker, run_sql


def pages_of_a_claim(worker: int, after: QueuePosition) -> int:
    """How many pages of the database a claim behind that place looks at."""
    pages: list[int] = []

    def explain(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        with transaction.atomic():
            execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *rest)
            plan = rest[-1]["cursor"].fetchone()[0]
            transaction.set_rollback(True)
        root = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        pages.append(root["Shared Hit Blocks"] + root["Shared Read Blocks"])
        return execute("SELECT 1 WHERE false", None, *rest[1:])

    with connection.execute_wrapper(explain):
        claim_ready(worker, limit=10, after=after)
    return pages[0]


@pytest.mark.django_db(transaction=True)
def test_claims_skip_dead_rows_that_an_old_snapshot_keeps() -> None:
    worker = register_worker()
    with another_connection() as old:
        old.ensure_connection()
        old.set_autocommit(False)
        with old.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM django_jobs_job")
        jobs.noop.enqueue_many({} for _ in range(6_100))
        place = START
        for _ in range(20):
            held = claim_ready(worker, limit=300, after=place)
            place = held[-1].position
            settle([Ending(job, Succeeded(), started=0.0, finished=0.0) for job in held])
        run_sql("ANALYZE django_jobs_job_live")
        behind, from_the_head = pages_of_a_claim(worker, place), pages_of_a_claim(worker, START)
        old.rollback()
    assert behind < 250
    assert behind < from_the_head
