"""The database stops, comes back, or stays away for longer than a lease."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_jobs.lifecycle.enqueueing import ENQUEUE
from tests.clusters import FAST, IMMEDIATE, Cluster

from .processes import JobWorker, let_go, lines, until, until_marked

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

LEASE = 2
DRAIN = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as own:
        yield own


@pytest.fixture
def worker(cluster: Cluster, tmp_path: Path) -> Iterator[JobWorker]:
    yield from started_worker(cluster, tmp_path, LEASE)


@pytest.fixture
def patient_worker(cluster: Cluster, tmp_path: Path) -> Iterator[JobWorker]:
    yield from started_worker(cluster, tmp_path, 60)


def started_worker(cluster: Cluster, tmp_path: Path, lease: int) -> Iterator[JobWorker]:
    started = JobWorker(
        "--lease-seconds",
        str(lease),
        "--poll-seconds",
        "0.2",
        "--drain-timeout",
        str(DRAIN),
        log=tmp_path / "worker.log",
        **{"DATABASE_URL": cluster.url, "TEST_DATABASE_NAME": "postgres"},
    )
    yield started
    started.end()
    assert "Traceback" not in started.text(), started.text()


def enqueue(cluster: Cluster, job_type: str, **payload: Any) -> int:
    parameters = {
        "queue": "default",
        "job_type": job_type,
        "weight": 60.0,
        "payload_version": 1,
        "priority": 0,
        "run_at": None,
        "delay": 0.0,
        "max_attempts": 5,
        "max_crashes": 3,
        "backoff": None,
        "timeout": None,
        "max_age": None,
        "headers": "{}",
        "payload": json.dumps(payload),
        "key": None,
    }
    return int(cluster.fetch(ENQUEUE, parameters)[0][0])


def status(cluster: Cluster, job: int) -> tuple[Any, ...]:
    sql = "SELECT status, failures, crashes, attempt FROM django_jobs_job WHERE id = %s"
    return cluster.fetch(sql, [job])[0]


def runs(cluster: Cluster, job: int) -> list[str]:
    sql = "SELECT outcome FROM django_jobs_run WHERE job_id = %s ORDER BY attempt"
    return [outcome for (outcome,) in cluster.fetch(sql, [job])]


@pytest.mark.parametrize("how", [FAST, IMMEDIATE], ids=["fast", "immediate"])
def test_a_restart_while_a_job_runs_is_survived(
    cluster: Cluster, patient_worker: JobWorker, tmp_path: Path, how: int
) -> None:
    path = tmp_path / "job"
    job = enqueue(cluster, "app.hold", path=str(path))
    until_marked(path)
    cluster.stop(how)
    cluster.start()
    back = time.monotonic()
    after = enqueue(cluster, "app.noop")
    until(lambda: status(cluster, after)[0] == "succeeded")
    assert time.monotonic() - back < 5 + 2  # the objective, and what a busy machine adds
    let_go(path)
    until(lambda: status(cluster, job)[0] == "succeeded")
    assert runs(cluster, job) == ["succeeded"]
    patient_worker.signal(signal.SIGTERM)
    assert patient_worker.wait() == 0


def test_a_job_that_ended_while_the_database_was_away_for_longer_than_the_lease_ran_once(
    cluster: Cluster, worker: JobWorker, tmp_path: Path
) -> None:
    path = tmp_path / "job"
    job = enqueue(cluster, "app.sleep_deaf", path=str(path), seconds=0.5)
    until_marked(path)
    cluster.stop(FAST)
    down_since = time.monotonic()
    until(lambda: time.monotonic() - down_since > 1.5 * LEASE)  # the time itself is the condition
    cluster.start()
    until(lambda: status(cluster, job)[0] == "succeeded")
    assert runs(cluster, job) == ["succeeded"]
    assert len(lines(path)) == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_job_that_runs_on_when_the_lease_cannot_be_renewed_is_stopped_and_runs_again(
    cluster: Cluster, worker: JobWorker, tmp_path: Path
) -> None:
    path = tmp_path / "job"
    job = enqueue(cluster, "app.sleep_deaf", path=str(path), seconds=5.0)
    until_marked(path)
    cluster.stop(FAST)
    until(lambda: "event=fenced" in worker.text(), what="its own worker stops it")
    cluster.start()
    until_marked(path, times=2, timeout=20)
    until(lambda: status(cluster, job)[0] == "succeeded")
    assert runs(cluster, job)[-1] == "succeeded"
    assert len(runs(cluster, job)) == 2
    assert status(cluster, job)[1] == 0


def test_sigterm_while_the_database_is_away_exits_within_the_grace(
    cluster: Cluster, worker: JobWorker, tmp_path: Path
) -> None:
    path = tmp_path / "job"
    enqueue(cluster, "app.sleep_deaf", path=str(path), seconds=0.2)
    until_marked(path)
    cluster.stop(FAST)
    worker.signal(signal.SIGTERM)
    begun = time.monotonic()
    code = worker.wait(40)
    assert time.monotonic() - begun < DRAIN + 5
    assert code in (0, 143)
    cluster.start()
