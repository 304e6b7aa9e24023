"""W8 to W12 and W16: processes that stop for a while, and handlers that will not end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from django_jobs.models import Job, Worker
from tests.app import fault_jobs, jobs
from tests.worker.firing import database_time
from tests.worker.processes import Start, let_go, lines, outcomes, until_marked

from .watching import gone, settled, until

pytestmark = pytest.mark.processes

LEASE = 3
BEATS = {"LEASE_SECONDS": LEASE, "HEARTBEAT_SECONDS": 0.5}
STAYS = json.dumps(BEATS | {"SWEEP_SECONDS": 86_400})
"""A lease that is over soon where nobody renews it, and is taken from nobody if all stand still."""


def beats_on(seconds: float = LEASE * 1.25) -> None:
    """Wait until the workers were renewed for so long; for longer than a lease, if not said."""
    since = database_time() + timedelta(seconds=seconds)
    until(
        lambda: not Worker.objects.filter(status="running", heartbeat_at__lt=since).exists(),
        "the leases are renewed",
    )


def test_jobs_run_while_their_supervisor_is_stopped(start_worker: Start, path: Path) -> None:
    job = jobs.hold.enqueue(str(path))
    worker = start_worker(TEST_DJANGO_JOBS=STAYS)
    until_marked(path)
    worker.signal(signal.SIGSTOP)
    beats_on()
    other = jobs.noop.enqueue()
    settled(other)  # what needs no supervisor goes on
    worker.signal(signal.SIGCONT)
    let_go(path)
    settled(job)
    assert outcomes(job) == ["succeeded"]
    assert Worker.objects.count() == 1
    assert worker.drain() == 0
    assert len(lines(path)) == 1


def test_a_stopped_process_is_killed_when_the_time_of_its_job_is_over(
    start_worker: Start, path: Path
) -> None:
    job = fault_jobs.sleep_with_a_limit.enqueue(str(path))
    start_worker()
    pid = until_marked(path)
    psutil.Process(pid).suspend()
    settled(job, "dead")
    assert outcomes(job) == ["timed_out"]
    assert gone(pid)
    settled(jobs.noop.enqueue())


def test_a_job_without_a_timeout_waits_for_its_stopped_process(
    start_worker: Start, path: Path
) -> None:
    job = jobs.hold.enqueue(str(path))
    worker = start_worker("--processes", "2", TEST_DJANGO_JOBS=STAYS)
    process = psutil.Process(until_marked(path))
    process.suspend()
    beats_on()
    settled(jobs.noop.enqueue())  # the other process works
    assert Job.objects.get(pk=job.pk).status == "running"
    let_go(path)
    process.resume()
    settled(job)
    assert outcomes(job) == ["succeeded"]
    assert len(lines(path)) == 1
    assert "event=lease_lost" not in worker.text()


@contextmanager
def asleep(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop them all, as a machine does that sleeps; let them all go on, whatever happens."""
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            process.resume()


def tree_of(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def test_workers_suspended_longer_than_the_lease_keep_their_jobs(
    start_worker: Start, tmp_path: Path
) -> None:
    """As on a machine that was suspended. The server need not sleep with them: to the leases it is
    the same, since its clock goes on in any case."""
    paths = [tmp_path / "first", tmp_path / "second"]
    alive = json.dumps(BEATS | {"SWEEP_SECONDS": 1})
    workers = [start_worker("--threads", "1", TEST_DJANGO_JOBS=alive) for _ in paths]
    held = [jobs.hold.enqueue(str(path)) for path in paths]
    assert len({until_marked(path) for path in paths}) == 2
    beats_on(3)  # so long that the sweeps of both have begun
    with asleep([one for worker in workers for one in tree_of(worker.pid)]):
        over = database_time() + timedelta(seconds=1.5 * LEASE)
        until(lambda: database_time() > over, "the time passes")
    beats_on(2)
    for path in paths:
        let_go(path)
    for job in held:
        settled(job)
        assert outcomes(job) == ["succeeded"]
    assert [len(lines(path)) for path in paths] == [1, 1]
