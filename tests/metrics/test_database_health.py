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
