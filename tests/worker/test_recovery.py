"""The recovery objectives of docs/promises.md, with real processes.

Times are those of the database. A bound of seconds on a machine that others use too is missed now
and then: the best of three tries counts, so that it is the product that fails, or nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from django.utils import timezone

from django_jobs.models import Job, Worker
from tests.app import jobs
from tests.clusters import FAST, Cluster
from tests.factories import run_sql
from tests.patience import PATIENCE

from .processes import JobWorker, let_go, until, until_marked, until_status

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
Start = Callable[..., JobWorker]

PROCESS_CRASH = 1.0
AFTER_THE_LEASE = 6.0
"""Five for the sweep and one for the poll."""
DATABASE_BACK = 5.0
AFTER_THE_DRAIN = 2.0

COMES_DUE = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, last_error, reason,
    replays, headers, created_at)
VALUES ('default', 'app.noop', '{}', 1, 'scheduled', 0, date_part('epoch', now()),
    now() + interval '1.5 s', 0, 0, 0, 5, 3, '', '', 0, '{}', now())
RETURNING id
"""
SINCE_THE_SERVER_STARTED = """
SELECT date_part('epoch', claimed_at - pg_postmaster_start_time()) FROM django_jobs_run
WHERE job_id = %s
"""


def best_of_three(bound: float, seconds: Callable[[int], float]) -> None:
    """Fails if three tries in a row take longer."""
    taken: list[float] = []
    for number in range(3):
        taken.append(seconds(number))
        print(f"took {taken[-1]:.2f} s, at most {bound:g}")
        if taken[-1] <= bound:
            return
    raise AssertionError(f"{[round(one, 2) for one in taken]} s, at most {bound:g}")


def database_time() -> datetime:
    ((now,),) = run_sql("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def until_claimed_again(job: Job, since: datetime, timeout: float) -> float:
    """Seconds from then until its second attempt was claimed."""
    until(lambda: Job.objects.filter(pk=job.pk, attempt=2, status="running").exists(), timeout)
    claimed = Job.objects.get(pk=job.pk).claimed_at
    assert claimed is not None
    return (claimed - since).total_seconds()


def test_a_job_of_a_crashed_process_runs_again_within_a_second(
    start_worker: Start, tmp_path: Path
) -> None:
    start_worker()

    def seconds(number: int) -> float:
        path = tmp_path / f"job-{number}"
        job = jobs.hold.enqueue(str(path))
        pid = until_marked(path)
        killed = database_time()
        os.kill(pid, signal.SIGKILL)
        taken = until_claimed_again(job, killed, 20)
        let_go(path)
        until_status(job, "succeeded")
        return taken

    best_of_three(PROCESS_CRASH, seconds)


def test_a_job_of_a_lost_machine_runs_again_within_lease_plus_six_seconds(
    start_worker: Start, tmp_path: Path
) -> None:
    lease = 3.0
    second = start_worker("--lease-seconds", str(lease), "--queues", "emails")
    until(lambda: Worker.objects.filter(status="running").exists())

    def seconds(number: int) -> float:
        nonlocal second
        path = tmp_path / f"job-{number}"
        first = second  # the only one so far: it has the job
        job = jobs.hold.using(queue="emails").enqueue(str(path))
        until_marked(path)
        boots = Worker.objects.count()
        second = start_worker("--lease-seconds", str(lease), "--queues", "emails")
        until(lambda: Worker.objects.count() > boots)
        lost = database_time()
        first.signal_all(signal.SIGKILL)
        taken = until_claimed_again(job, lost, lease + AFTER_THE_LEASE + 20)
        let_go(path)
        until_status(job, "succeeded")
        return taken

    best_of_three(lease + AFTER_THE_LEASE, seconds)


def test_a_drain_ends_within_its_time_and_two_seconds(start_worker: Start, tmp_path: Path) -> None:
    drain = 1.5

    def seconds(number: int) -> float:
        path = tmp_path / f"job-{number}"
        worker = start_worker("--drain-timeout", str(drain))
        job = jobs.sleep_deaf.enqueue(str(path), 60)
        until_marked(path)
        begun = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 143
        taken = time.monotonic() - begun
        job.refresh_from_db()
        assert (job.status, job.failures, job.crashes) == ("ready", 0, 0)
        Job.objects.filter(pk=job.pk).update(status="cancelled", finished_at=timezone.now())
        return taken

    best_of_three(drain + AFTER_THE_DRAIN, seconds)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as own:
        yield own


def test_the_first_claim_comes_within_five_seconds_of_the_database(
    cluster: Cluster, tmp_path: Path
) -> None:
    worker = JobWorker(
        log=tmp_path / "worker.log",
        **{"DATABASE_URL": cluster.url, "TEST_DATABASE_NAME": "postgres"},
    )

    def seconds(number: int) -> float:
        up = "SELECT 1 FROM django_jobs_worker WHERE status = 'running'"
        until(lambda: cluster.fetch(up))
        ((job,),) = cluster.fetch(COMES_DUE)  # while the database is away
        cluster.stop(FAST)
        time.sleep(2.0)
        cluster.start()
        until(lambda: cluster.fetch(SINCE_THE_SERVER_STARTED, [job]))
        return float(cluster.fetch(SINCE_THE_SERVER_STARTED, [job])[0][0])

    try:
        best_of_three(DATABASE_BACK, seconds)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.end()
    assert "Traceback" not in worker.text()
