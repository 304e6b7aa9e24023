"""Hints that do not come: the poll finds the job, and the listening begins again (D20)."""

from __future__ import annotations

from functools import partial

import pytest

from django_jobs.models import Worker
from tests.app import jobs
from tests.factories import run_sql
from tests.worker.processes import LONG_POLL, Start, until, until_status

pytestmark = pytest.mark.processes

LISTENERS = """
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify%' OR query = 'SELECT 1')
"""


def listeners() -> set[int]:
    return {pid for (pid,) in run_sql(f"SELECT pid {LISTENERS}")}


def new_listeners(before: set[int]) -> set[int]:
    return listeners() - before


def test_a_broken_listener_reconnects_and_misses_no_job(
    start_worker: Start,
) -> None:
    """The poll is long, so what is found soon was not found by it."""
    start_worker(*LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    for _ in range(3):
        until(listeners)
        before = listeners()
        run_sql(f"SELECT pg_terminate_backend(pid) {LISTENERS}")
        lost = jobs.noop.enqueue()
        until_status(lost, "succeeded")
        until(partial(new_listeners, before), what="it listens again")
        until_status(jobs.noop.enqueue(), "succeeded")
