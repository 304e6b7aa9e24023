"""S: signals and shutdown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.db import connection, transaction

from django_jobs.models import Job, Worker
from tests.app import fault_jobs, jobs
from tests.worker.firing import database_time
from tests.worker.processes import (
    PATIENCE,
    PROJECT,
    JobWorker,
    Start,
    let_go,
    lines,
    outcomes,
    until_marked,
)

from .watching import gone, running_workers, said, settled, until

pytestmark = pytest.mark.processes

JOBWORKER = [sys.executable, "-m", "django", "jobworker", "--skip-checks"]


@pytest.mark.parametrize(
    "first, second",
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)],
    ids=["int-int", "term-int"],
)
def test_any_two_signals_release_and_exit_without_waiting_for_the_job(
    start_worker: Start, path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    job = jobs.sleep_deaf.enqueue(str(path), 600)
    worker = start_worker("--drain-timeout", "600")
    until_marked(path)
    worker.signal_all(first)
    said(worker, "event=draining")
    worker.signal_all(second)
    assert worker.wait() == 143
    job.refresh_from_db()
    assert (job.status, job.failures, job.crashes) == ("ready", 0, 0)
    assert outcomes(job) == ["released"]


DELAYS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3)
"""Seconds from the start to SIGTERM: before Python, in imports, in setup, in the first claim."""


def test_sigterm_at_any_moment_of_the_start_leaves_nothing_claimed(
    start_worker: Start,
) -> None:
    ids = jobs.nap.enqueue_many({"seconds": 0.05} for _ in range(60))
    due: list[tuple[float, JobWorker]] = []
    for delay in DELAYS:
        worker = start_worker()
        due.append((time.monotonic() + delay, worker))
    for moment, worker in sorted(due, key=lambda pair: pair[0]):
        time.sleep(max(moment - time.monotonic(), 0.0))  # the moment itself is what is tried
        worker.signal(signal.SIGTERM)
    codes = {worker.wait() for _, worker in due}
    assert codes <= {0, -signal.SIGTERM}  # the latter before it could know better
    assert not Worker.objects.filter(status__in=["running", "draining"]).exists()
    left = Job.objects.filter(pk__in=ids).exclude(status="succeeded")
    assert set(left.values_list("status", "attempt")) <= {("ready", 0)}


@pytest.mark.parametrize("moment", ["event=supervisor_started", "event=worker_started"])
def test_sigterm_at_the_first_sign_of_life_drains(start_worker: Start, moment: str) -> None:
    worker = start_worker()
    said(worker, moment)
    assert worker.drain() == 0
    later = jobs.noop.enqueue()
    assert set(Worker.objects.values_list("status", flat=True)) <= {"stopped"}
    assert Job.objects.get(pk=later.pk).status == "ready"


def environment() -> dict[str, str]:
    """Of a worker that is not started by the harness."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
        "PYTHONPATH": str(PROJECT),
    }


@contextmanager
def started(*command: str, output: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own; its whole group is gone at the end."""
    process = subprocess.Popen(
        command,
        env=environment(),
        cwd=PROJECT,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with_its_group = [process.pid, *(one.pid for one in below(process.pid))]
        for pid in with_its_group:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE)


def below(pid: int) -> list[psutil.Process]:
    """The processes below that one, if it is still there."""
    return psutil.Process(pid).children(recursive=True) if not gone(pid) else []


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def as_first_process() -> list[str]:
    """What a command begins with that is to be process 1, as in a container."""
    if sys.platform != "linux" or subprocess.run([*NAMESPACE, "true"]).returncode:
        pytest.skip("this system, or this user, makes no namespaces of process ids")
    return NAMESPACE


def test_as_process_1_of_a_container_it_drains(
    transactional_db: None, as_first_process: list[str], path: Path
) -> None:
    job = jobs.hold.enqueue(str(path))
    with started(*as_first_process, *JOBWORKER) as unshare:
        until_marked(path)
        (first,) = psutil.Process(unshare.pid).children()
        first.terminate()
        until(lambda: Worker.objects.filter(status="draining").exists(), "it drains")
        let_go(path)
        assert unshare.wait(PATIENCE) == 0
    assert outcomes(job) == ["succeeded"]


def test_a_shell_as_process_1_keeps_the_signal_to_itself(
    transactional_db: None, as_first_process: list[str]
) -> None:
    """The trap that the documentation warns of: use the exec form."""
    with started(*as_first_process, "sh", "-c", f"{' '.join(JOBWORKER)}; true") as unshare:
        running_workers(1)
        (shell,) = psutil.Process(unshare.pid).children()
        shell.terminate()
        settled(jobs.noop.enqueue())
        assert Worker.objects.get().status == "running"
        assert unshare.poll() is None


def test_ctrl_c_reaches_the_whole_group_and_every_handler_may_finish(
    start_worker: Start, tmp_path: Path
) -> None:
    path, alone = tmp_path / "job", tmp_path / "alone"
    held = [jobs.hold.enqueue(str(path)), fault_jobs.hold_alone.enqueue(str(alone))]
    worker = start_worker("--drain-timeout", "600")
    until_marked(path)
    until_marked(alone)
    worker.signal_all(signal.SIGINT)
    said(worker, "event=draining")
    until(lambda: Worker.objects.filter(status="draining").exists(), "it drains")
    let_go(path)
    let_go(alone)
    assert worker.wait() == 0
    for job in held:
        assert outcomes(job) == ["succeeded"]
    assert "event=second_signal" not in worker.text()


def test_the_lease_is_renewed_through_a_drain_that_is_longer(
    start_worker: Start, path: Path
) -> None:
    lease = 3
    often = {"LEASE_SECONDS": lease, "HEARTBEAT_SECONDS": 0.5, "SWEEP_SECONDS": 86_400}
    job = jobs.hold.enqueue(str(path))
    worker = start_worker("--drain-timeout", "600", TEST_DJANGO_JOBS=json.dumps(often))
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists(), "it drains")
    longer = database_time() + timedelta(seconds=1.5 * lease)
    until(lambda: Worker.objects.get().heartbeat_at > longer, "the lease is renewed")
    assert Job.objects.get(pk=job.pk).status == "running"
    let_go(path)
    assert worker.wait() == 0
    assert outcomes(job) == ["succeeded"]
    assert len(lines(path)) == 1


def test_sighup_drains(start_worker: Start, path: Path) -> None:
    job = jobs.hold.enqueue(str(path))
    worker = start_worker()
    until_marked(path)
    worker.signal_all(signal.SIGHUP)
    said(worker, "event=draining")
    let_go(path)
    assert worker.wait() == 0
    assert outcomes(job) == ["succeeded"]


def test_a_worker_under_nohup_ignores_sighup(transactional_db: None) -> None:
    with started("nohup", *JOBWORKER, output=subprocess.DEVNULL) as process:
        running_workers(1)
        for one in (psutil.Process(process.pid), *below(process.pid)):
            one.send_signal(signal.SIGHUP)
        settled(jobs.noop.enqueue())
        assert Worker.objects.get().status == "running"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_worker_continues_when_its_log_reader_is_gone(transactional_db: None) -> None:
    reading, writing = os.pipe()
    with started(*JOBWORKER, output=writing) as process:
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)  # as ``| head -1`` does
        running_workers(1)
        settled(jobs.fail.using(max_attempts=1).enqueue(), "dead")  # which it wants to tell
        settled(jobs.noop.enqueue())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_worker_continues_when_its_log_pipe_is_full(transactional_db: None) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while os.write(writing, b"." * 65_536):
            pass
    except BlockingIOError:
        os.set_blocking(writing, True)
    try:
        job = jobs.noop.enqueue()
        with started(*JOBWORKER, output=writing):
            settled(job)
    finally:
        os.close(reading)
        os.close(writing)


def test_old_code_leaves_the_jobs_of_new_code_to_workers_that_know_them(
    start_worker: Start, path: Path
) -> None:
    old = start_worker("--poll-seconds", "0.2")
    running_workers(1)
    with transaction.atomic():
        job = jobs.noop.enqueue()
        Job.objects.filter(pk=job.pk).update(
            job_type="app.of_tomorrow", payload={"path": str(path)}
        )
    before = jobs.noop.enqueue()
    settled(before)  # it has looked at the queue since
    assert Job.objects.get(pk=job.pk).attempt == 0
    new = start_worker("--poll-seconds", "0.2", TEST_CODE_VERSION="2")
    pid = until_marked(path)
    assert pid in {child.pid for child in new.children()}
    assert settled(job).failures == 0
    assert old.drain() == 0
    settled(jobs.noop.enqueue())
