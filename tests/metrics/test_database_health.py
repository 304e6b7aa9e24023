"""The metrics of the database, from sessions and statistics that are really there."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.doctor.test_tables import DEAD, flush
from tests.factories import another_connection, run_sql
from tests.worker.processes import until

from .test_known_traffic import scraped

pytestmark = pytest.mark.django_db(transaction=True)

AGE = """
SELECT date_part('epoch', clock_timestamp() - xact_start) FROM pg_stat_activity
WHERE pid = %s AND xact_start IS NOT NULL
"""


def oldest() -> float:
    seconds = scraped()("oldest_transaction_age_seconds")
    assert seconds is not None
    return seconds


def age_of(connection: Any) -> float:
    """How long ago the transaction of that session began; 0 without one."""
    rows = run_sql(AGE, [connection.info.backend_pid])
    return float(rows[0][0]) if rows else 0.0


@pytest.mark.parametrize(
    "statement",
    [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1",
        "UPDATE django_jobs_queue SET name = name",
    ],
    ids=["a snapshot", "a write"],
)
def test_the_oldest_transaction_is_that_of_a_session_which_holds_back_vacuum(
    statement: str,
) -> None:
    with another_connection() as wrapper:
        wrapper.ensure_connection()
        other = wrapper.connection
        with other.transaction():
            other.execute(statement)
            least = age_of(other)
            began = time.monotonic() - least
            assert oldest() >= least
        assert oldest() < time.monotonic() - began


def test_a_vacuum_holds_back_no_other_one() -> None:
    run_sql(DEAD)
    run_sql("DELETE FROM django_jobs_uniquekey")
    with another_connection() as wrapper:
        wrapper.ensure_connection()
        other = wrapper.connection
        other.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
        other.pgconn.send_query(b"VACUUM django_jobs_uniquekey")
        pid = other.info.backend_pid
        until(lambda: (pid,) in run_sql("SELECT pid FROM pg_stat_progress_vacuum"))
        least = age_of(other)
        assert oldest() < least
        assert age_of(other) > least
        other.cancel_safe()


def test_the_rows_of_a_table_are_those_of_the_statistics() -> None:
    run_sql(DEAD)
    flush()
    run_sql("ANALYZE django_jobs_uniquekey")
    value = scraped()
    ((rows,),) = run_sql(
        "SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = 'django_jobs_uniquekey'"
    )
    assert value("table_live_rows", table="uniquekey") == rows == 30_000


def uses() -> list[float]:
    value = scraped()
    names = ("sequential_scans", "index_scans", "cache_hits")
    found = [value(f"table_{name}_total", table="uniquekey") for name in names]
    assert value("table_cache_misses_total", table="uniquekey") is not None
    return [0 if one is None else one for one in found]


@pytest.mark.parametrize("scan", ["index", "seq"])
def test_the_scans_of_a_table_are_counted(scan: str) -> None:
    run_sql(DEAD)
    flush()
    other = {"index": "seq", "seq": "index"}[scan]
    with another_connection() as wrapper, wrapper.cursor() as cursor:
        before = uses()
        cursor.execute(f"SET enable_{other}scan = off; SET enable_bitmapscan = off")
        cursor.execute("SELECT FROM django_jobs_uniquekey WHERE queue = 'default' AND key = '7'")
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")
        sequential, index, hits = (now - then for now, then in zip(uses(), before, strict=True))
    assert (sequential, index) == ((0, 1) if scan == "index" else (1, 0))
    assert hits > 0


def test_a_statement_of_the_queue_that_waits_for_a_lock_is_counted() -> None:
    assert scraped()("lock_waits") == 0
    with another_connection() as holder, another_connection() as waiting:
        holder.ensure_connection()
        waiting.ensure_connection()
        waiter = waiting.connection
        pid = waiter.info.backend_pid
        with holder.connection.transaction():
            holder.connection.execute("SELECT FROM django_jobs_queue FOR UPDATE")
            waiter.pgconn.send_query(b"UPDATE django_jobs_queue SET name = name")
            blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
            until(lambda: run_sql(blocked, [pid]) == [(True,)])
            assert scraped()("lock_waits") == 1
            waiter.cancel_safe()
