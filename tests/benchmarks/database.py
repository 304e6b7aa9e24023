"""Fill, empty and ask the benchmark's database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.db import connection, connections

from django_jobs.lifecycle.history import TABLES, partitions

NOOP = "app.noop"

FILL = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, last_error, reason,
    replays, headers, created_at, finished_at)
SELECT 'default', %(job_type)s, '{}', 1, %(status)s, 0,
    extract(epoch FROM clock_timestamp()) + %(ahead)s + n * 1e-6,
    clock_timestamp() + make_interval(secs => %(due_in)s + n * 1e-6), 0, 0, 0, 5, 3, '', '', 0,
    '{}', clock_timestamp(), CASE WHEN %(status)s = 'succeeded' THEN clock_timestamp() END
FROM generate_series(1, %(count)s) AS n
"""


def execute(sql: str, parameters: Any = None) -> None:
    """Run a statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)


def fetch(sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement that returns rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def empty() -> None:
    """No jobs, runs or workers."""
    execute("TRUNCATE django_jobs_job, django_jobs_run, django_jobs_worker")


def drop_past_days() -> None:
    """Drop the partitions of the days before this one, which another section may have made."""
    now = datetime.now(UTC)
    for table in TABLES:
        for partition in partitions(table):
            if partition.end <= now:
                execute(f"DROP TABLE {partition.name}")


def fill(count: int, status: str = "ready", ahead: float = 0.0) -> None:
    """``count`` no-op jobs in ``status``, written by PostgreSQL. ``ahead`` puts them so many
    seconds behind in the queue, and scheduled ones so far into the future."""
    due_in = ahead if status == "scheduled" else 0.0
    execute(
        FILL,
        {"count": count, "status": status, "job_type": NOOP, "ahead": ahead, "due_in": due_in},
    )
    settle_down("django_jobs_job")


def settle_down(*tables: str) -> None:
    """Statistics, visibility and a checkpoint, so that none of them falls into what is measured."""
    for table in tables:
        execute(f"VACUUM (ANALYZE) {table}")
    execute("CHECKPOINT")


@contextmanager
def pooled() -> Iterator[None]:
    """This thread's connection comes from Django's pool (``OPTIONS["pool"]``), as in a web process.
    Close it, and it goes back to the pool."""
    own = connections["default"]
    wrapper = own.copy("default")
    wrapper.settings_dict["CONN_MAX_AGE"] = 0
    wrapper.settings_dict["OPTIONS"] = {**wrapper.settings_dict["OPTIONS"], "pool": True}
    connections["default"] = wrapper
    try:
        yield
    finally:
        wrapper.close()
        wrapper.close_pool()
        connections["default"] = own


def until(condition: Callable[[], Any], timeout: float = 300) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not so after {timeout} s: {condition}")
        time.sleep(0.02)


def until_all_done() -> None:
    """Wait until every job has ended."""
    sql = "SELECT EXISTS (SELECT 1 FROM django_jobs_job WHERE status = %s)"

    def is_over(status: str) -> bool:
        return not fetch(sql, [status])[0][0]

    for status in ("scheduled", "blocked", "ready", "running"):
        until(partial(is_over, status))


def drained_per_second(count: int) -> float:
    """From the first claim to the last end of ``count`` runs, on the database's clock. Raises if
    the ledger does not hold each job once."""
    ((runs, jobs, seconds),) = fetch(
        "SELECT count(*), count(DISTINCT job_id), "
        "extract(epoch FROM max(finished_at) - min(claimed_at))::float8 "
        "FROM django_jobs_run WHERE outcome = 'succeeded'"
    )
    if (runs, jobs) != (count, count):
        raise RuntimeError(f"{count} jobs left {runs} runs of {jobs} jobs in the ledger")
    return count / float(seconds)
