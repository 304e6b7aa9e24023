"""What holds a job, with workers that run: their threads, the limit of a queue, a lease that runs
out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from django_jobs import enqueue_many
from django_jobs.models import Job, Queue, Worker
from django_jobs.why.evaluation import explain
from django_jobs.why.explanation import plain
from tests.app.jobs import hold, noop
from tests.worker import conftest as workers_conftest
from tests.worker.processes import Start, let_go, until, until_marked, until_status

pytestmark = pytest.mark.processes

start_worker = workers_conftest.start_worker


def sentence(job: Job) -> str:
    job.refresh_from_db()
    return plain(explain(job).sentence)


def running() -> list[Job]:
    return list(Job.objects.filter(status="running").order_by("id"))


def test_busy_threads_and_then_free_ones(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "busy"
    enqueue_many("app.hold", [{"path": str(path)}] * 2)
    start_worker("--threads", "2")
    until_marked(path, 2)
    job = noop.enqueue()
    until(lambda: "threads" in [gate.name for gate in explain(job).gates if gate.holds])
    assert sentence(job) == "Waits for a free thread: all 2 of 1 worker that could run it are busy."
    (threads,) = (gate for gate in explain(job).gates if gate.name == "threads")
    assert f"2 app.hold (#{running()[0].pk} for " in plain(threads.text)
    let_go(path)
    assert until_status(job, "succeeded")
    assert sentence(job).startswith("Succeeded ")


def test_the_full_limit_of_a_queue_while_threads_are_free(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "limit"
    Queue.objects.filter(name="default").update(max_concurrency=1)
    hold.enqueue(str(path))
    start_worker("--threads", "4")
    until_marked(path)
    job = noop.enqueue()
    assert sentence(job) == "Waits for a free slot of queue default: its limit of 1 is full."
    gates = {gate.name: gate for gate in explain(job).gates}
    assert plain(gates["limit"].text).startswith(f"1 of 1 slots: #{running()[0].pk} (")
    assert plain(gates["threads"].text) == "1 of 4 busy on 1 worker"
    let_go(path)
    until_status(job, "succeeded")


def test_a_draining_worker_takes_no_more(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "drain"
    hold.enqueue(str(path))
    worker = start_worker("--threads", "2")
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists())
    job = noop.enqueue()
    assert sentence(job) == "All workers that could take it are draining."
    let_go(path)
    assert worker.wait() == 0
    assert sentence(job) == "No worker is alive."


def test_a_lease_that_ran_out_is_rescued_as_it_says(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "lost"
    job = hold.enqueue(str(path))
    lost = start_worker("--lease-seconds", "2")
    until_marked(path)
    job.refresh_from_db()
    assert f"on {Worker.objects.get()}, attempt 1" in sentence(job)
    lost.signal_all(signal.SIGSTOP)
    try:
        until(lambda: "can take it over: start one" in sentence(job))
        start_worker("--lease-seconds", "2", "--queues", "bulk")
        until(lambda: Job.objects.get(pk=job.pk).status != "running")
    finally:
        lost.signal_all(signal.SIGKILL)
