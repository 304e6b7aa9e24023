"""The recovery objectives of docs/promises.md, with real processes.

How many seconds it takes depends on the machine, and is measured by the chaos test. Here all that
would be slower takes an hour, so that what happens at all was not waited for.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_jobs.models import Run, Worker
from tests.app import jobs
from tests.clusters import FAST, Cluster

from .processes import (
    LONG_POLL,
    REAPS_NEVER,
    REAPS_OFTEN,
    JobWorker,
    let_go,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes
Start = Callable[..., JobWorker]

LONG_LEASE = ("--lease-seconds", "3600")

COMES_DUE = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, last_error, reason,
    replays, headers, created_at)
VALUES ('default', 'app.noop', '{}', 1, 'scheduled', 0, date_part('epoch', now()),
    now() + interval '1.5 s', 0, 0, 0, 5, 3, '', '', 0, '{}', now())
RETURNING id
"""
RUNNING = "SELECT 1 FROM django_jobs_worker WHERE status = 'running'"
CLAIMED = "SELECT 1 FROM django_jobs_run WHERE job_id = %s"


def test_a_job_of_a_crashed_process_runs_again_before_a_lease_or_a_poll(
    start_worker: Start, tmp_path: Path
) -> None:
    start_worker(*LONG_LEASE, *LONG_POLL)
    path = tmp_path / "job"
    job = jobs.hold.enqueue(str(path))
    os.kill(until_marked(path), signal.SIGKILL)
    until_marked(path, times=2)
    let_go(path)
    assert until_status(job, "succeeded").attempt == 2


def test_a_job_of_a_lost_machine_runs_again_once_its_lease_is_over(
    start_worker: Start, tmp_path: Path
) -> None:
    """It waits for no poll."""
    first = start_worker("--lease-seconds", "3", TEST_DJANGO_JOBS=REAPS_NEVER)
    path = tmp_path / "job"
    job = jobs.hold.enqueue(str(path))
    until_marked(path)
    boot = Worker.objects.get(jobs=job)
    start_worker(*LONG_POLL, TEST_DJANGO_JOBS=REAPS_OFTEN)
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    first.signal_all(signal.SIGKILL)
    until_marked(path, times=2)
    let_go(path)
    until_status(job, "succeeded")
    boot.refresh_from_db()
    later = Run.objects.get(job=job, outcome="succeeded")
    assert later.claimed_at >= boot.lease_expires_at


def test_a_drain_ends_after_its_time_though_a_job_does_not(
    start_worker: Start, tmp_path: Path
) -> None:
    drain, path = 0.5, tmp_path / "job"
    worker = start_worker("--drain-timeout", str(drain), *LONG_LEASE)
    job = jobs.sleep_deaf.enqueue(str(path), 3600)
    until_marked(path)
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 143
    assert time.monotonic() - begun >= drain
    job.refresh_from_db()
    assert (job.status, job.failures, job.crashes) == ("ready", 0, 0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as own:
        yield own


def test_the_first_claim_after_the_database_is_back_waits_for_no_poll(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker = JobWorker(
        *LONG_LEASE,
        *LONG_POLL,
        log=tmp_path / "worker.log",
        **{"DATABASE_URL": cluster.url, "TEST_DATABASE_NAME": "postgres"},
    )

    try:
        until(lambda: cluster.fetch(RUNNING))
        ((job,),) = cluster.fetch(COMES_DUE)  # while the database is away
        cluster.stop(FAST)
        until(lambda: "event=database_error" in worker.text())
        cluster.start()
        until(lambda: cluster.fetch(CLAIMED, [job]))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.end()
    assert "Traceback" not in worker.text()
