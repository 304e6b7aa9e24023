"""W1 to W7, W13 to W15, W18 to W20: processes that die, and what handlers leave behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from django_jobs.models import Job, Run, Worker
from tests.app import fault_jobs, jobs
from tests.app.models import Effect
from tests.worker import processes
from tests.worker.processes import (
    REAPS_OFTEN,
    Start,
    end_lease,
    let_go,
    lines,
    outcomes,
    until_marked,
)

from .watching import effects, gone, running_workers, said, settled, until

pytestmark = pytest.mark.processes


def test_a_job_of_a_killed_supervisor_runs_elsewhere(start_worker: Start, path: Path) -> None:
    first = start_worker()
    job = jobs.hold_in_transaction.enqueue(str(path))
    until_marked(path)
    children = [child.pid for child in first.children()]
    (old,) = running_workers(1)
    start_worker(TEST_DJANGO_JOBS=REAPS_OFTEN)
    running_workers(2)
    first.signal(signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in children), "its children die with it")
    end_lease(old)
    until_marked(path, times=2)
    let_go(path)
    settled(job)
    assert outcomes(job) == ["lost", "succeeded"]
    assert effects(job) == 1
    lost = Run.objects.get(job=job, outcome="lost")
    assert lost.worker_id == old.pk
    assert str(old.pk) in lost.error_message
    row = Worker.objects.get(pk=old.pk)
    assert row.status == "lost"


def test_a_killed_process_is_replaced_and_the_jobs_of_its_neighbour_run_on(
    start_worker: Start, tmp_path: Path
) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    held = [jobs.hold_in_transaction.enqueue(str(path)) for path in paths]
    worker = start_worker("--processes", "2", "--threads", "1")
    victim, neighbour = (until_marked(path) for path in paths)
    assert victim != neighbour
    os.kill(victim, signal.SIGKILL)
    until_marked(paths[0], times=2)
    for path in paths:
        let_go(path)
    for job in held:
        settled(job)
        assert effects(job) == 1
    assert outcomes(held[0]) == ["lost", "succeeded"]
    assert outcomes(held[1]) == ["succeeded"]
    assert "SIGKILL" in Run.objects.get(outcome="lost").error_message
    assert victim not in {row.pid for row in running_workers(2)}
    assert worker.drain() == 0


def test_a_handler_that_segfaults_is_logged_by_name_and_its_job_dies(
    start_worker: Start, path: Path
) -> None:
    job = fault_jobs.segfault.enqueue(str(path))
    start_worker()
    dead = settled(job, "dead")
    assert outcomes(job) == ["lost"] * 3
    assert len(lines(path)) == 3
    assert dead.reason.count("3 times") == 1
    for run in Run.objects.filter(job=job):
        assert "SIGSEGV" in run.error_message
    settled(jobs.noop.enqueue())


def test_a_thread_left_by_a_handler_does_not_affect_the_next_job(
    start_worker: Start, tmp_path: Path
) -> None:
    left, path = tmp_path / "left", tmp_path / "job"
    first = fault_jobs.leave_a_thread.enqueue(str(left))
    start_worker("--threads", "1")
    settled(first)
    second = jobs.hold_in_transaction.enqueue(str(path))
    until_marked(path)
    let_go(left)
    until_marked(left)  # its thread has written, and rolled back
    let_go(path)
    settled(second)
    assert outcomes(second) == ["succeeded"]
    assert effects(second) == 1
    assert list(Effect.objects.filter(job_id=None).values_list("note", flat=True)) == ["late"]
    assert settled(jobs.tell_connection.enqueue()).result == ["0", "True", "False"]


def test_processes_of_a_handler_die_with_its_killed_child(start_worker: Start, path: Path) -> None:
    job = fault_jobs.leave_a_subprocess.enqueue(str(path))
    start_worker()
    settled(job, "dead")
    assert outcomes(job) == ["timed_out"]
    program = int(Path(f"{path}.program").read_text())
    processes.until(lambda: gone(program), what="the program that it started is gone")


def test_a_fork_that_returns_from_its_handler_claims_and_settles_nothing(
    start_worker: Start, tmp_path: Path
) -> None:
    path, other = tmp_path / "job", tmp_path / "other"
    for _ in range(50):  # so that the worker thinks its jobs are quick and prefetches
        jobs.noop.enqueue()
    forker = fault_jobs.fork_and_return.using(priority=-1).enqueue(str(path))
    waiting = [
        fault_jobs.leave_one_effect.using(priority=-2).enqueue(str(other)) for _ in range(20)
    ]
    start_worker("--threads", "1")
    until_marked(path, times=2)
    for job in (forker, *waiting):
        settled(job)
        assert outcomes(job) == ["succeeded"]
    child = int(Path(f"{path}.child").read_text())
    processes.until(lambda: gone(child) or ran(child, other), what="the copy ends, or does harm")
    assert not ran(child, other)
    settled(jobs.noop.enqueue())


def ran(pid: int, path: Path) -> bool:
    return any(int(begun_by) == pid for begun_by, _ in lines(path))


def test_no_process_of_the_tree_inherits_a_socket_of_another(
    start_worker: Start, path: Path
) -> None:
    worker = start_worker("--processes", "2")
    running_workers(2)
    job = fault_jobs.hold_alone.enqueue(str(path))
    until_marked(path)
    children = worker.children()
    assert len(children) == 4  # the heartbeat, two workers, one child of the job
    owners: dict[str, set[int]] = {}
    for pid in [worker.pid, *(child.pid for child in children)]:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(descriptor)
            if target.startswith("socket:"):
                owners.setdefault(target, set()).add(pid)
    shared = {socket: pids for socket, pids in owners.items() if len(pids) > 1}
    assert not shared
    # The pair that wakes it, and one end of each child's pipe: no connection to the database.
    assert sum(worker.pid in pids for pids in owners.values()) == 2 + len(children)
    let_go(path)
    settled(job)


def test_a_worker_of_the_same_name_does_not_keep_the_jobs_of_the_dead_one(
    start_worker: Start, path: Path
) -> None:
    job = jobs.hold_in_transaction.enqueue(str(path))
    first = start_worker("--name", "pod-0")
    until_marked(path)
    (old,) = running_workers(1)
    second = start_worker("--name", "pod-0", TEST_DJANGO_JOBS=REAPS_OFTEN)
    running_workers(2)
    # As a pod that comes back: the same name, host and process id.
    Worker.objects.exclude(pk=old.pk).update(pid=old.pid)
    first.signal_all(signal.SIGKILL)
    until(lambda: not first.session(), "the first is gone")
    end_lease(old)
    until_marked(path, times=2)
    let_go(path)
    settled(job)
    assert outcomes(job) == ["lost", "succeeded"]
    assert effects(job) == 1
    assert Worker.objects.get(pk=old.pk).status == "lost"
    assert second.drain() == 0


def test_a_job_whose_workers_row_was_deleted_is_found_and_runs_again(
    start_worker: Start, path: Path
) -> None:
    job = jobs.hold_in_transaction.enqueue(str(path))
    worker = start_worker(TEST_DJANGO_JOBS=REAPS_OFTEN)
    until_marked(path)
    (old,) = running_workers(1)
    old.delete()
    until_marked(path, times=2)
    let_go(path)
    settled(job)
    assert outcomes(job) == ["lost", "succeeded"]
    assert effects(job) == 1
    said(worker, "event=lease_lost")
    (new,) = running_workers(1)
    assert Job.objects.get(pk=job.pk).attempt == 2
    assert new.pk != old.pk
    assert psutil.pid_exists(new.pid)
