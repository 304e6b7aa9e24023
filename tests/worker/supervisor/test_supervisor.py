"""Deaths, signals and restarts, with real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone

from django_jobs import JobType
from django_jobs.lifecycle.operations.jobs import stop_commands, stop_workers
from django_jobs.models import Job, Run, Tick, Worker
from tests.app import database_jobs, jobs
from tests.app.models import Effect
from tests.factories import make_user
from tests.worker.firing import each_second, until_fired, until_fires_on
from tests.worker.processes import (
    BEATS_OFTEN,
    LONG_POLL,
    REAPS_NEVER,
    REAPS_OFTEN,
    Start,
    let_go,
    lines,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes


def test_jobs_of_a_killed_process_run_again_before_a_lease_or_a_poll(
    start_worker: Start, tmp_path: Path
) -> None:
    paths = [tmp_path / f"job-{place}" for place in range(4)]
    held = [jobs.hold_in_transaction.enqueue(str(path)) for path in paths]
    worker = start_worker("--lease-seconds", "3600", *LONG_POLL)
    pids = {until_marked(path) for path in paths}
    assert len(pids) == 1
    os.kill(pids.pop(), signal.SIGKILL)
    for path in paths:
        until_marked(path, times=2)
        let_go(path)
    for job in held:
        until_status(job, "succeeded")
        assert outcomes(job) == ["lost", "succeeded"]
        assert Effect.objects.filter(job_id=job.pk).count() == 1
    lost = Run.objects.filter(job__in=held, outcome="lost").first()
    assert lost is not None
    assert "SIGKILL" in lost.error_message
    assert worker.drain() == 0


def test_jobs_of_a_killed_group_run_elsewhere_once_the_lease_is_over(
    start_worker: Start, path: Path
) -> None:
    first = start_worker("--lease-seconds", "2", TEST_DJANGO_JOBS=REAPS_NEVER)
    job = jobs.hold_in_transaction.enqueue(str(path))
    until_marked(path)
    boot = Worker.objects.get(jobs=job)
    # It reaps from two beats after its start on, and its own lease is a long one.
    second = start_worker(*LONG_POLL, TEST_DJANGO_JOBS=REAPS_OFTEN)
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    first.signal_all(signal.SIGKILL)
    until_marked(path, times=2)
    let_go(path)
    until_status(job, "succeeded")
    *lost, last = outcomes(job)
    # Lost twice where the machine stood still for longer than the first one's lease.
    assert (set(lost), last) == ({"lost"}, "succeeded")
    assert Effect.objects.filter(job_id=job.pk).count() == 1
    boot.refresh_from_db()
    assert Run.objects.get(job=job, outcome="succeeded").claimed_at >= boot.lease_expires_at
    assert second.drain() == 0


def test_a_stopped_worker_that_wakes_after_its_lease_starts_as_a_new_one(
    start_worker: Start, path: Path
) -> None:
    first = start_worker(*("--lease-seconds", "2", "--threads", "2"), TEST_DJANGO_JOBS=REAPS_NEVER)
    job = jobs.hold_in_transaction.enqueue(str(path))
    pid = until_marked(path)
    old = Job.objects.get(pk=job.pk).worker_id
    second = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    first.signal_all(signal.SIGSTOP)
    until_marked(path, times=2)
    # Now both end their attempt; only one of them may. First the one and then the other, or the
    # woken one could be killed for its handler before this process gets to let it go.
    let_go(path)
    first.signal_all(signal.SIGCONT)
    until(lambda: "event=lease_lost" in first.text(), what="the old worker hears of it")
    until_status(job, "succeeded")
    until(lambda: "is no longer this worker's" in first.text(), what="the old settle is refused")
    *lost, last = outcomes(job)
    # Lost twice where the machine stood still for longer than the first one's lease.
    assert (set(lost), last) == ({"lost"}, "succeeded")
    assert Effect.objects.filter(job_id=job.pk).count() == 1
    assert second.drain() == 0
    after = jobs.add.enqueue(1, 2)
    assert until_status(after, "succeeded").result == 3
    run = Run.objects.get(job=after)
    assert run.worker_id not in (old, None)
    assert run.worker is not None
    assert run.worker.pid == pid  # the same process under a new row
    assert first.drain() == 0


def test_sigterm_lets_a_running_job_finish_and_exits_zero(start_worker: Start, path: Path) -> None:
    worker = start_worker("--drain-timeout", "120")
    job = jobs.hold.enqueue(str(path))
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists())
    later = jobs.noop.enqueue()
    let_go(path)
    assert worker.wait() == 0
    assert Job.objects.get(pk=job.pk).result == "went on"
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert Job.objects.get(pk=later.pk).status == "ready"
    assert set(Worker.objects.values_list("status", flat=True)) == {"stopped"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_exits_at_once(start_worker: Start, number: int) -> None:
    worker = start_worker("--drain-timeout", "3600", *LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    worker.signal_all(number)
    assert worker.wait() == 0


def test_a_job_longer_than_the_drain_is_released_and_run_by_the_next_worker(
    start_worker: Start, path: Path
) -> None:
    job = jobs.sleep_deaf.enqueue(str(path), 3600)
    worker = start_worker("--drain-timeout", "0.5", "--lease-seconds", "3600")
    until_marked(path)
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    until_status(job, "ready")
    assert worker.wait() == 143
    assert time.monotonic() - begun >= 0.5
    job.refresh_from_db()
    assert (job.failures, job.crashes) == (0, 0)
    assert outcomes(job) == ["released"]
    start_worker()
    until_marked(path, times=2)


def test_a_handler_that_holds_the_gil_for_three_leases_runs_once(
    start_worker: Start, path: Path
) -> None:
    """Without renewals its own supervisor would stop it. Nobody else takes it over, or a machine
    that stands still for longer than the lease would look the same."""
    start_worker("--lease-seconds", "4", TEST_DJANGO_JOBS=REAPS_NEVER)
    job = jobs.hold_the_gil.enqueue(str(path), 12)
    until_status(job, "succeeded")
    assert len(lines(path)) == 1
    assert outcomes(job) == ["succeeded"]


def test_a_poison_pill_dies_and_the_other_suspects_do_not(
    start_worker: Start, tmp_path: Path
) -> None:
    paths = [tmp_path / f"job-{number}" for number in range(3)]
    pill = tmp_path / "pill"
    neighbours = [jobs.hold.enqueue(str(path)) for path in paths]
    poison = jobs.kill_itself.enqueue(str(pill))
    start_worker()
    for path in (*paths, pill):
        until_marked(path)
    let_go(pill)
    dead = until_status(poison, "dead")
    assert outcomes(poison) == ["lost", "lost", "lost"]
    assert "crashed 3 times" in dead.reason
    for path, neighbour in zip(paths, neighbours, strict=True):
        let_go(path)
        job = until_status(neighbour, "succeeded")
        assert (job.crashes, job.failures) == (0, 0)
        assert outcomes(neighbour) == ["lost", "succeeded"]


def test_an_exit_of_the_process_is_not_a_success(start_worker: Start) -> None:
    job = jobs.exit_quietly.enqueue()
    start_worker()
    until_status(job, "dead")
    assert outcomes(job) == ["lost"] * 3


def test_prefetched_jobs_of_a_dead_process_are_given_back_without_a_run(
    start_worker: Start, tmp_path: Path
) -> None:
    for number in range(6):
        for _ in range(50):  # so that the worker thinks its jobs are quick and prefetches
            jobs.noop.enqueue()
        path = tmp_path / f"job-{number}"
        first = jobs.hold.using(priority=-1).enqueue(str(path))
        waiting = [jobs.add.using(priority=-2).enqueue(number) for number in range(20)]
        worker = start_worker("--threads", "1")
        pid = until_marked(path)
        if Job.objects.filter(status="running").count() > 1:
            break
        # On a machine that is held up jobs may look slow, and what was prefetched is given back
        # after half a second.
        let_go(path)
        until(lambda: not Job.objects.exclude(status="succeeded").exists())
        worker.end()
    else:
        raise AssertionError("nothing was ever prefetched")
    os.kill(pid, signal.SIGKILL)
    until_marked(path, times=2)
    let_go(path)
    for job in waiting:
        until_status(job, "succeeded")
        assert outcomes(job) == ["succeeded"]
    assert outcomes(first) == ["lost", "succeeded"]


def test_an_operator_drains_a_worker_through_its_row(start_worker: Start) -> None:
    worker = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    row = until(lambda: Worker.objects.filter(status="running").first())
    stop_workers([row.pk], actor=make_user("stop_worker", name="ada"))
    assert worker.wait() == 0
    row.refresh_from_db()
    assert (row.status, row.stop_reason) == ("stopped", "drained by ada")


@pytest.mark.parametrize(
    ("options", "ask", "reason"),
    [
        ((), signal.SIGTERM, "SIGTERM"),
        (("--no-fork",), signal.SIGINT, "SIGINT"),
        (("--burst",), None, "nothing was left to run (--burst)"),
        (("--max-rss", "1"), None, "recycled: it holds N MB"),
    ],
)
def test_a_worker_keeps_the_reason_why_it_stopped(
    start_worker: Start, options: tuple[str, ...], ask: signal.Signals | None, reason: str
) -> None:
    worker = start_worker(*options)
    if ask is not None:
        until(lambda: Worker.objects.filter(status="running").exists())
        worker.signal(ask)
        assert worker.wait() == 0
    row = until(Worker.objects.filter(status="stopped").order_by("started_at").first)
    assert re.sub(r"\d+", "N", row.stop_reason) == reason


def test_a_drained_worker_that_is_killed_keeps_the_reason_of_its_end(
    start_worker: Start, tmp_path: Path
) -> None:
    job = jobs.sleep_deaf.enqueue(str(tmp_path / "job"), 600)
    worker = start_worker("--drain-timeout", "600", TEST_DJANGO_JOBS=BEATS_OFTEN)
    until_marked(tmp_path / "job")
    stop_workers(Worker.objects.values_list("pk", flat=True))
    row = until(Worker.objects.filter(status="draining").first)
    assert row.stop_reason == "drained"
    worker.signal(signal.SIGTERM)
    until(lambda: "signal=SIGTERM" in worker.text())
    assert worker.drain() == 143
    row.refresh_from_db()
    assert row.stop_reason == "released by a second signal"
    job.refresh_from_db()
    assert (job.status, job.failures, job.crashes) == ("ready", 0, 0)
    assert outcomes(job) == ["released"]


def test_a_drained_process_is_replaced_unless_all_of_its_tree_drain(
    start_worker: Start,
) -> None:
    def running() -> list[Worker] | None:
        rows = list(Worker.objects.filter(status="running").order_by("started_at"))
        return rows if len(rows) == 2 else None

    worker = start_worker("--processes", "2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    first, second = until(running)
    Worker.objects.filter(pk=first.pk).update(drain_requested_at=timezone.now())
    until(Worker.objects.filter(pk=first.pk, status="stopped").exists)
    left, replacement = until(running)
    assert left.pk == second.pk
    assert psutil.Process(replacement.pid).ppid() == worker.pid
    Worker.objects.filter(status="running").update(drain_requested_at=timezone.now())
    assert worker.wait() == 0
    assert Worker.objects.count() == 3


def test_a_command_drains_whole_and_ends_as_after_a_signal(
    start_worker: Start, tmp_path: Path
) -> None:
    """And what its threads run, for how long and in how much memory is written with the
    heartbeat."""
    path = tmp_path / "held"
    held = jobs.hold.enqueue(str(path))
    worker = start_worker("--processes", "2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    until_marked(path)
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    busy = until(Worker.objects.filter(started_jobs__0__0=held.pk).first)
    (entry,) = busy.started_jobs
    assert entry[1] >= 0
    assert entry[2] is None
    assert busy.rss_mb >= 10
    assert busy.supervisor_pid == worker.pid
    result = stop_commands([busy.pk])
    assert len(result.done) == 2
    assert set(Worker.objects.values_list("stop_reason", flat=True)) == {"drained with its command"}
    until(lambda: Worker.objects.filter(status="stopped").count() == 1)
    let_go(path)
    assert worker.wait() == 0
    assert until_status(held, "succeeded").failures == 0
    assert Worker.objects.filter(status="stopped").count() == Worker.objects.count() == 2
    assert set(Worker.objects.values_list("stop_reason", flat=True)) == {"drained with its command"}


@pytest.mark.parametrize("job_type", [jobs.noop, jobs.alone, database_jobs.write_once])
def test_a_process_is_replaced_after_its_number_of_jobs(
    start_worker: Start, job_type: JobType[[], Any]
) -> None:
    """Whoever settles them: the process, a child, or the transaction of the handler."""
    for _ in range(15):
        job_type.enqueue()
    start_worker("--max-jobs", "5")
    until(lambda: Job.objects.filter(status="succeeded").count() == 15)
    by_worker = [Run.objects.filter(worker=worker).count() for worker in Worker.objects.all()]
    assert max(by_worker) == 5
    stopped = until(Worker.objects.filter(status="stopped").first)
    assert stopped.stop_reason == "recycled: it ran 5 jobs"


def test_the_heartbeat_is_replaced_when_it_dies(start_worker: Start, path: Path) -> None:
    schedule = each_second(catch_up="window", catch_up_limit=60)
    worker = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    job = jobs.hold.enqueue(str(path))
    running = until_marked(path)
    until_fired(schedule)
    (heart,) = [child for child in worker.children() if child.pid != running]
    heart.kill()
    until(lambda: "event=heartbeat_died" in worker.text())
    row = Worker.objects.get(status="running")
    until(lambda: Worker.objects.get(pk=row.pk).heartbeat_at > row.heartbeat_at)
    until_fires_on(schedule)
    due = list(Tick.objects.order_by("due_at").values_list("due_at", flat=True))
    assert due == [due[0] + timedelta(seconds=number) for number in range(len(due))]
    let_go(path)
    until_status(job, "succeeded")
    assert outcomes(job) == ["succeeded"]
