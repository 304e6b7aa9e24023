"""What a run used, in the ledger: processor time, memory, queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from django_jobs.models import Job, Run
from tests.app import cost_jobs, limit_jobs

from .processes import Start, until_status

pytestmark = pytest.mark.processes

MEASURED = json.dumps({"RUN_COST": True, "COUNT_QUERIES": True})


def run_of(job: Job, status: str = "succeeded") -> Run:
    until_status(job, status)
    return Run.objects.get(job=job)


def test_a_run_keeps_its_cpu_time_and_its_queries(start_worker: Start) -> None:
    busy = cost_jobs.use.enqueue(seconds=0.3)
    idle = cost_jobs.use.enqueue(sleep=0.3)
    asking = cost_jobs.use.enqueue(queries=7)
    failing = cost_jobs.use_and_fail.enqueue(queries=3)
    start_worker(TEST_DJANGO_JOBS=MEASURED)
    used = run_of(busy).cpu_seconds
    assert used is not None
    for job, status, least, most, queries in (
        (busy, "succeeded", 0.3, used, 0),
        (idle, "succeeded", 0.0, used, 0),
        (asking, "succeeded", 0.0, used, 7),
        (failing, "dead", 0.0, used, 3),
    ):
        run = run_of(job, status)
        assert run.cpu_seconds is not None
        assert run.query_seconds is not None
        assert least <= run.cpu_seconds <= most, job.job_type
        assert run.queries == queries
        assert run.query_seconds >= 0.01 * queries
        assert run.max_rss_kb is None, "of a thread it is not known"


def test_queries_are_those_of_the_handler_and_not_of_its_settle(start_worker: Start) -> None:
    once = cost_jobs.use_once.enqueue(queries=4)
    start_worker(TEST_DJANGO_JOBS=MEASURED)
    assert run_of(once).queries == 4


def test_an_async_run_has_queries_but_no_cpu_time_of_its_own(start_worker: Start) -> None:
    job = cost_jobs.use_on_loop.enqueue(queries=6)
    start_worker(TEST_DJANGO_JOBS=MEASURED)
    run = run_of(job)
    assert (run.queries, run.cpu_seconds) == (6, None)


def test_of_an_isolated_run_time_and_memory_are_always_known(start_worker: Start) -> None:
    job = cost_jobs.use_alone.enqueue(seconds=0.3, megabytes=150)
    start_worker()
    run = run_of(job)
    assert run.cpu_seconds is not None
    assert run.max_rss_kb is not None
    assert run.cpu_seconds >= 0.3
    assert 150 * 1024 < run.max_rss_kb < 1024 * 1024
    assert run.queries is None


def test_a_run_that_was_killed_for_its_memory_says_how_much_it_had(
    start_worker: Start, tmp_path: Path
) -> None:
    job = limit_jobs.hold_memory.using(max_attempts=1).enqueue(str(tmp_path / "job"), 300)
    start_worker()
    until_status(job, "dead")
    for run in Run.objects.filter(job=job):
        assert run.max_rss_kb is not None
        assert run.max_rss_kb > 250 * 1024
        assert run.cpu_seconds is not None


def test_without_the_settings_nothing_is_measured_in_threads(start_worker: Start) -> None:
    job = cost_jobs.use.enqueue(queries=2)
    start_worker()
    run = run_of(job)
    assert (run.cpu_seconds, run.max_rss_kb, run.queries, run.query_seconds) == (None,) * 4
