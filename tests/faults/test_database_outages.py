"""The server stops, is killed, or cannot write its log, under load (D1, D2, D3, D9, D14)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from django.db import DatabaseError, connection
from django.db.models import Count, Sum

from django_jobs.models import Job, Run, Worker
from tests.app import async_jobs, database_jobs, jobs
from tests.app.models import Effect
from tests.clusters import FAST, IMMEDIATE
from tests.factories import run_sql
from tests.worker.firing import database_time, each_second, until_fires_on
from tests.worker.processes import let_go, lines, until, until_marked, until_status

from .stage import Stage

pytestmark = pytest.mark.processes
POLL = ("--poll-seconds", "0.2")
LEASE = 8


def load(count: int = 400) -> None:
    jobs.nap.enqueue_many({"seconds": 0.005} for _ in range(count))
    database_jobs.write_once.enqueue_many({} for _ in range(count // 4))


def each_job_ran_once(count: int = 400) -> None:
    """Apart from attempts that the handler's own lost connection made fail."""
    until(lambda: not Job.objects.exclude(status="succeeded").exists(), what="all succeeded")
    assert Job.objects.count() >= count + count // 4
    assert Effect.objects.filter(note="once").count() == count // 4
    twice = Run.objects.filter(outcome="succeeded").values("job").annotate(n=Count("id"))
    assert not twice.filter(n__gt=1).exists()
    assert Job.objects.aggregate(n=Sum("attempt"))["n"] == Run.objects.count()


@pytest.mark.parametrize("how", [FAST, IMMEDIATE], ids=["fast", "immediate"])
def test_a_database_restart_under_load_loses_and_doubles_nothing(stage: Stage, how: int) -> None:
    load()
    schedule = each_second()
    workers = [stage.start_worker(*POLL, "--lease-seconds", "60") for _ in range(2)]
    until(lambda: Run.objects.count() > 50)
    stage.restart(how)
    until_fires_on(schedule)
    schedule.delete()
    each_job_ran_once()
    assert all(worker.text().count("event=database_error") < 8 for worker in workers)
    assert set(Worker.objects.values_list("status", flat=True)) == {"running"}


@pytest.mark.parametrize("how", [FAST, IMMEDIATE], ids=["fast", "immediate"])
def test_async_handlers_outlive_a_restart_of_the_database(
    stage: Stage, tmp_path: Path, how: int
) -> None:
    """Those that await go on with another session. A call that runs meanwhile fails, and with it
    its attempt."""
    reads, keeps, calls = (tmp_path / name for name in ("reads", "keeps", "calls"))
    awaiting = [async_jobs.read_back.enqueue(str(reads)) for _ in range(5)]
    awaiting += [async_jobs.hold_session.enqueue(str(keeps))]
    calling = [async_jobs.sleep_in_a_call.enqueue(str(calls)) for _ in range(2)]
    worker = stage.start_worker(*POLL, "--lease-seconds", "60")
    for path, times in ((reads, 5), (keeps, 1), (calls, 2)):
        until_marked(path, times)
    processes = worker.session()
    stage.restart(how)
    for path in (reads, keeps):
        let_go(path)
    assert [until_status(job, "succeeded").attempt for job in awaiting] == [1] * 6
    assert [until_status(job, "succeeded").attempt for job in calling] == [2, 2]
    assert [len(lines(path)) for path in (reads, keeps, calls)] == [5, 1, 2]
    assert Effect.objects.filter(note=str(reads)).count() == 5
    assert Job.objects.aggregate(n=Sum("attempt"))["n"] == Run.objects.count()
    assert worker.session() == processes


def test_a_server_that_cannot_write_its_log_recovers_and_so_do_the_workers(stage: Stage) -> None:
    """It panics, ends every session and replays what it had written."""
    load()
    stage.start_worker(*POLL, "--lease-seconds", "60")
    until(lambda: Run.objects.count() > 50)
    log = stage.cluster.directory / "log"

    def panicked() -> bool:
        ((pid,),) = run_sql("SELECT pg_backend_pid()")
        forbid_writing(pid, stage.cluster.directory.owner())
        with contextlib.suppress(DatabaseError):
            run_sql("SELECT pg_logical_emit_message(true, 'fault', repeat('x', 100000))")
        connection.close()
        until(answers, what="it has recovered")
        return "was terminated by signal 6" in log.read_text()

    until(panicked, what="it panics and recovers")
    each_job_ran_once()


def forbid_writing(pid: int, owner: str) -> None:
    """Files of any size to one process of the server, as its owner."""
    user = owner if os.geteuid() == 0 else None
    subprocess.run(["prlimit", "--pid", str(pid), "--fsize=0"], user=user, check=True)


def answers() -> bool:
    try:
        return bool(run_sql("SELECT 1"))
    except (DatabaseError, psycopg.Error):
        connection.close()
        return False


def test_leases_that_expired_in_an_outage_are_renewed_by_live_workers(
    stage: Stage, tmp_path: Path
) -> None:
    paths = [tmp_path / f"job-{number}" for number in range(4)]
    held = [jobs.sleep_deaf.enqueue(str(path), 0.5) for path in paths]
    workers = [
        stage.start_worker(*POLL, "--lease-seconds", str(LEASE), "--threads", "2") for _ in range(2)
    ]
    until(lambda: Worker.objects.count() == 2)
    for path in paths:
        until_marked(path)
    boots = set(Worker.objects.values_list("pk", flat=True))
    stage.cluster.stop(FAST)
    down_since = time.monotonic()
    until(lambda: time.monotonic() - down_since > LEASE + 1)  # the time itself is the condition
    stage.come_back()
    for job in held:
        assert until_status(job, "succeeded").attempt == 1
    renewed = Worker.objects.filter(status="running", lease_expires_at__gt=database_time())
    until(lambda: renewed.count() == 2, what="both have renewed")
    assert set(Worker.objects.values_list("pk", flat=True)) == boots
    assert [len(lines(path)) for path in paths] == [1] * 4
    for worker in workers:
        assert worker.drain() == 0
