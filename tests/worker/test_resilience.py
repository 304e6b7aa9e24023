"""What must not stop a worker: locks, lost answers, hung siblings, a backlog."""

from __future__ import annotations

import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.db import connection, transaction
from django.db.models import Q

from django_jobs.lifecycle import claiming
from django_jobs.models import Job, Queue, Run, Worker
from tests.app import database_jobs, jobs
from tests.app.models import Effect
from tests.factories import open_elsewhere

from .processes import (
    BEATS_OFTEN,
    PATIENCE,
    REAPS_NEVER,
    Start,
    let_go,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes


def running_worker() -> Worker:
    worker = until(lambda: Worker.objects.filter(status="running").first())
    assert isinstance(worker, Worker)
    return worker


def test_a_claim_whose_answer_was_lost_is_given_back(start_worker: Start) -> None:
    """The claim is made here in the worker's name, so that its process knows nothing of it."""
    start_worker(
        *("--lease-seconds", "2", "--queues", "default", "--poll-seconds", "0.2"),
        TEST_DJANGO_JOBS=REAPS_NEVER,
    )
    worker = running_worker()
    with transaction.atomic():
        job = jobs.noop.enqueue()
        claiming.claim("default", worker=worker.pk, job_types={"app.noop": 1}, limit=1)
    assert Job.objects.get(pk=job.pk).worker_id == worker.pk
    until_status(job, "succeeded")
    assert list(Run.objects.filter(job=job).values_list("attempt", "outcome")) == [(1, "succeeded")]


def test_due_and_limited_jobs_do_not_wait_for_the_end_of_a_backlog(
    start_worker: Start,
) -> None:
    jobs.nap.enqueue_many({"seconds": 0.02} for _ in range(1_500))
    start_worker("--threads", "4", "--poll-seconds", "0.2")
    until(lambda: Run.objects.count() > 50)
    due = jobs.noop.using(delay=0.3, priority=100).enqueue()
    limited = jobs.noop.using(queue="emails", priority=100).enqueue()
    for job in (due, limited):
        done = until_status(job, "succeeded")
        behind = Q(status="ready") | Q(claimed_at__gt=Run.objects.get(job=done).claimed_at)
        assert Job.objects.filter(behind, job_type="app.nap").count() > 100


def enqueue_elsewhere() -> Job:
    """Enqueue outside the transaction of the test."""
    try:
        return jobs.noop.using(queue="emails").enqueue()
    finally:
        connection.close()


def test_a_lock_on_the_row_of_a_limited_queue_does_not_end_the_process(
    start_worker: Start,
) -> None:
    worker = start_worker("--poll-seconds", "0.2")
    boot = running_worker()
    with transaction.atomic():
        list(Queue.objects.select_for_update().filter(name="emails"))
        with ThreadPoolExecutor(1) as elsewhere:
            job = elsewhere.submit(enqueue_elsewhere).result()
        until(lambda: "event=claim_blocked" in worker.text())
        until(Worker.objects.filter(claim_failures__gt=0).exists, what="the heartbeat writes it")
    assert until_status(job, "succeeded").attempt == 1
    assert list(Worker.objects.values_list("pk", flat=True)) == [boot.pk]


def test_a_lock_on_a_running_job_delays_no_heartbeat_and_no_settle(
    start_worker: Start, path: Path
) -> None:
    start_worker("--lease-seconds", "2", TEST_DJANGO_JOBS=REAPS_NEVER)
    held = jobs.hold.enqueue(str(path))
    until_marked(path)
    worker = running_worker()
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held.pk]):
        let_go(path)
        until(lambda: Effect.objects.exists(), what="the handler has ended")
        # One after the other: were the locked row tried again with each, they would take minutes.
        for number in range(60):
            until_status(jobs.add.enqueue(number), "succeeded")
        later = worker.heartbeat_at + timedelta(seconds=3)
        beats_on = Worker.objects.filter(pk=worker.pk, heartbeat_at__gt=later)
        until(beats_on.exists, what="heartbeats go on for longer than a lease")
        assert Job.objects.get(pk=held.pk).status == "running"
    until_status(held, "succeeded")
    assert Worker.objects.get(pk=worker.pk).status == "running"
    assert Run.objects.filter(job=held).count() == 1


def test_a_lock_on_the_row_of_one_worker_stops_no_other_of_its_tree(
    start_worker: Start, path: Path
) -> None:
    """The one is fenced once its lease is over; of the other nothing is to be seen."""
    worker = start_worker("--processes", "2", "--threads", "1", "--lease-seconds", "3")
    held = database_jobs.hold_without_a_database.enqueue(str(path))
    until_marked(path)
    locked = Job.objects.get(pk=held.pk).worker_id
    # Before the one is fenced: its successor may start within 30 ms.
    other = until(Worker.objects.exclude(pk=locked).filter(status="running").first)
    with transaction.atomic():
        Worker.objects.select_for_update().get(pk=locked)
        until(lambda: "event=fenced" in worker.text())
        other.refresh_from_db()
        until(
            Worker.objects.filter(
                pk=other.pk, heartbeat_at__gt=other.heartbeat_at + timedelta(seconds=3)
            ).exists
        )
    let_go(path)
    until_status(held, "succeeded")
    assert "event=renewal_blocked" in worker.text()
    assert worker.text().count("event=fenced") == 1
    assert Worker.objects.filter(pk=other.pk, status="running").exists()


def test_a_heartbeat_process_that_hangs_is_replaced(start_worker: Start, tmp_path: Path) -> None:
    rounds = itertools.count()

    def runs_while_it_hangs(lease: int) -> int:
        path = tmp_path / f"job-{next(rounds)}"
        worker = start_worker("--lease-seconds", str(lease), TEST_DJANGO_JOBS=REAPS_NEVER)
        job = jobs.hold.enqueue(str(path))
        pid = until_marked(path)
        beat = Worker.objects.get(status="running")
        # Just after a beat: it is found hung before the lease is over, and the next one renews it.
        until(lambda: Worker.objects.filter(pk=beat.pk, heartbeat_at__gt=beat.heartbeat_at))
        (heart,) = [child for child in worker.children() if child.pid != pid]
        heart.suspend()
        until(lambda: "event=heartbeat_hangs" in worker.text())
        let_go(path)
        until_status(job, "succeeded")
        after = jobs.noop.enqueue()
        until_status(after, "succeeded")
        assert worker.drain() == 0
        return Run.objects.filter(job=job).count()

    # More than one where the machine stood still meanwhile, until the lease was over: then it is
    # tried again, at last with a lease that takes its time and leaves nine seconds for that.
    assert any(runs_while_it_hangs(lease) == 1 for lease in (8, 8, 40))


def test_handlers_of_lost_jobs_are_stopped(start_worker: Start, path: Path) -> None:
    first = start_worker("--lease-seconds", "2", TEST_DJANGO_JOBS=REAPS_NEVER)
    job = jobs.sleep_deaf.enqueue(str(path), 600)
    pid = until_marked(path)
    start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    first.signal_all(signal.SIGSTOP)
    until_marked(path, times=2)
    first.signal_all(signal.SIGCONT)
    until(lambda: not psutil.pid_exists(pid), what="the process of the stale handler is gone")
    after = [jobs.noop.enqueue() for _ in range(10)]
    for one in after:
        until_status(one, "succeeded")
    # One more where the machine stood still for longer than the first one's lease.
    assert Job.objects.get(pk=job.pk).attempt in (2, 3)


def test_no_backend_is_shared_between_processes_that_use_a_pool(
    start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker("--processes", "2", TEST_DATABASE_POOL="1")
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    many = [jobs.tell_connection.enqueue() for _ in range(20)]
    for job in many:
        until_status(job, "succeeded")
    owners: dict[str, set[int]] = {}
    for process in [psutil.Process(worker.pid), *worker.children()]:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:  # closed meanwhile
                continue
            if target.startswith("socket:"):
                owners.setdefault(target, set()).add(process.pid)
    inherited = set(os.listdir(f"/proc/{worker.pid}/fd"))
    assert inherited
    shared = {
        socket: pids for socket, pids in owners.items() if len(pids) > 1 and worker.pid not in pids
    }
    assert not shared


def test_a_worker_runs_with_its_output_closed(start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker()
    worker.end()  # the harness gives every worker a log; this one is started without any
    job = jobs.noop.enqueue()
    import subprocess
    import sys

    closed = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m django jobworker --skip-checks --burst >&- 2>&-'],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
        },
        timeout=PATIENCE,
    )
    assert closed.returncode == 0
    assert Job.objects.get(pk=job.pk).status == "succeeded"


def test_each_process_of_an_idle_tree_asks_one_statement_a_poll(start_worker: Start) -> None:
    start_worker("--poll-seconds", "0.5", "--lease-seconds", "60")
    running_worker()

    def transactions() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database "
                "WHERE datname = current_database()"
            )
            return int(cursor.fetchone()[0])

    def in_two_seconds() -> float:
        before, begun = transactions(), time.monotonic()
        time.sleep(2)  # the time itself is what is measured
        return (transactions() - before) * 2 / (time.monotonic() - begun)

    # Four at this poll, of the worker process, and four of the one that fires schedules; the rest
    # is a beat, a sweep, and what is asked here. The server's own autovacuum counts too when it
    # comes by, for many tables longer than these seconds, and so do the statements of the boot:
    # one quiet time counts.
    until(lambda: in_two_seconds() < 14)


def test_a_drain_of_a_thousand_jobs_takes_at_most_sixty_statements(start_worker: Start) -> None:
    def transactions() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database "
                "WHERE datname = current_database()"
            )
            return int(cursor.fetchone()[0])

    def in_a_drain() -> int:
        jobs.noop.enqueue_many({} for _ in range(1_000))
        transactions()
        before = transactions()
        assert start_worker("--burst").wait() == 0
        return transactions() - before - 3

    # The server's own autovacuum counts too when it comes by, and on a machine that is busy a write
    # that waits for company finds less of it. One drain in quiet is enough.
    counted = [in_a_drain()]
    while min(counted) > 60 and len(counted) < 8:
        counted.append(in_a_drain())
    assert Run.objects.count() == 1_000 * len(counted)
    assert min(counted) <= 60, f"{counted} statements"
