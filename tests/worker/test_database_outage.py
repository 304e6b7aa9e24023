"""The database stops, comes back, or stays away for longer than a lease."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_jobs.lifecycle.enqueueing import ENQUEUE
from tests.clusters import FAST, IMMEDIATE, Cluster

from .processes import LONG_POLL, JobWorker, let_go, lines, until, until_marked
from .test_health import PORT, get, port_of, until_answer

pytestmark = pytest.mark.processes

LEASE = 2
DRAIN = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as own:
        yield own


@pytest.fixture
def start_worker(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., JobWorker]]:
    """Start a worker of the cluster, with a lease and a time to drain of so many seconds."""
    cluster.start()  # a test before this one may have failed while it was away
    started: list[JobWorker] = []

    def start(lease: int, drain: int, *more: str) -> JobWorker:
        worker = JobWorker(
            *("--lease-seconds", str(lease)),
            *("--poll-seconds", "0.2"),
            *("--drain-timeout", str(drain)),
            *more,
            log=tmp_path / f"worker-{len(started)}.log",
            **{"DATABASE_URL": cluster.url, "TEST_DATABASE_NAME": "postgres"},
        )
        started.append(worker)
        return worker

    yield start
    with contextlib.ExitStack() as ending:
        for worker in started:
            ending.callback(worker.end)
    for worker in started:
        assert "Traceback" not in worker.text(), worker.text()


@pytest.fixture
def worker(start_worker: Callable[[int, int], JobWorker]) -> JobWorker:
    return start_worker(LEASE, 60)


def enqueue(cluster: Cluster, job_type: str, delay: float = 0.0, **payload: Any) -> int:
    parameters = {
        "queue": "default",
        "job_type": job_type,
        "weight": 60.0,
        "payload_version": 1,
        "priority": 0,
        "run_at": None,
        "delay": delay,
        "max_attempts": 5,
        "max_crashes": 3,
        "backoff": None,
        "timeout": None,
        "at_most_once": False,
        "max_age": None,
        "headers": "{}",
        "tags": None,
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


def test_a_job_that_ended_in_an_outage_longer_than_the_lease_ran_once(
    cluster: Cluster, worker: JobWorker, path: Path
) -> None:
    job = enqueue(cluster, "app.sleep_deaf", path=str(path), seconds=0.5)
    until_marked(path)
    cluster.stop(FAST)
    down_since = time.monotonic()
    until(lambda: time.monotonic() - down_since > 1.5 * LEASE)  # the time itself is the condition
    cluster.start()
    until(lambda: status(cluster, job)[0] == "succeeded")
    assert runs(cluster, job) == ["succeeded"]
    assert len(lines(path)) == 1
    assert worker.drain() == 0


def test_a_job_is_stopped_and_rerun_if_the_lease_cannot_be_renewed(
    cluster: Cluster, worker: JobWorker, path: Path
) -> None:
    job = enqueue(cluster, "app.hold", path=str(path))
    until_marked(path)
    cluster.stop(FAST)
    until(lambda: "event=fenced" in worker.text(), what="its own worker stops it")
    cluster.start()
    until_marked(path, times=2)
    let_go(path)
    until(lambda: status(cluster, job)[0] == "succeeded")
    *before, last = runs(cluster, job)
    assert last == "succeeded"
    assert len(before) in (1, 2)  # two where the machine stood still for longer than the lease
    assert status(cluster, job)[1] == 0


@pytest.mark.parametrize("how", [FAST, IMMEDIATE], ids=["fast", "immediate"])
def test_a_worker_lives_through_a_restart_and_is_ready_after_it(
    cluster: Cluster, start_worker: Callable[..., JobWorker], how: int
) -> None:
    port = port_of(start_worker(LEASE, DRAIN, *PORT))
    until_answer(port, "/readyz", 200)
    cluster.stop(how)

    def lives_and_is_not_ready() -> bool:
        assert get(port, "/healthz") == (200, "ok\n")
        return get(port, "/readyz")[0] == 503

    until(lives_and_is_not_ready)
    assert "No metrics: OperationalError" in get(port, "/metrics")[1]
    down_since = time.monotonic()
    until(lambda: time.monotonic() - down_since > 1.5 * LEASE and lives_and_is_not_ready())
    cluster.start()
    until_answer(port, "/readyz", 200)
    assert get(port, "/metrics")[0] == 200


def test_sigterm_while_the_database_is_away_exits_within_the_grace(
    cluster: Cluster, start_worker: Callable[[int, int], JobWorker], path: Path
) -> None:
    """It does not wait for the database, which stays away, nor for its lease."""
    worker = start_worker(3600, DRAIN)
    enqueue(cluster, "app.sleep_deaf", path=str(path), seconds=0.2)
    until_marked(path)
    cluster.stop(FAST)
    worker.signal(signal.SIGTERM)
    assert worker.wait() in (0, 143)


def test_the_first_claim_after_the_database_is_back_waits_for_no_poll(
    cluster: Cluster, start_worker: Callable[..., JobWorker]
) -> None:
    """How many seconds it takes depends on the machine, and is measured by the chaos test."""
    worker = start_worker(3600, 60, *LONG_POLL)
    until(lambda: "event=worker_started" in worker.text())
    job = enqueue(cluster, "app.noop", delay=1.5)  # it comes due while the database is away
    cluster.stop(FAST)
    until(lambda: "event=database_error" in worker.text())
    cluster.start()
    until(lambda: runs(cluster, job))
    assert worker.drain() == 0
