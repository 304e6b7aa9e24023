"""``jobworker --no-fork``, with a real process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_jobs.models import Job, Run, Worker
from django_jobs.worker.options import Options
from django_jobs.worker.supervisor.single_process import SingleProcess
from tests.app import fork_jobs, jobs, limit_jobs
from tests.worker.processes import (
    BEATS_OFTEN,
    Start,
    let_go,
    until,
    until_marked,
    until_status,
)
from tests.worker.roles import Role

pytestmark = pytest.mark.processes


def test_one_process_runs_jobs_and_logs_its_limits(start_worker: Start, path: Path) -> None:
    alone = jobs.alone.enqueue()
    held = jobs.hold.enqueue(str(path))
    worker = start_worker("--no-fork", TEST_DJANGO_JOBS=BEATS_OFTEN)
    assert until_marked(path) == worker.pid
    assert worker.session() == [worker.pid]
    row = Worker.objects.get()
    until(lambda: Worker.objects.get().heartbeat_at > row.heartbeat_at)
    let_go(path)
    until_status(held, "succeeded")
    assert until_status(jobs.add_async.enqueue(1, 2), "succeeded").result == 3
    assert "no handler can be killed" in worker.text()
    assert f'not_claimed="{alone.job_type}, ' in worker.text()
    assert alone.job_type not in row.job_types
    alone.refresh_from_db()
    assert alone.status == "ready"
    assert worker.drain() == 0
    assert Worker.objects.get().status == "stopped"


def test_one_process_waits_for_its_jobs_when_it_drains(start_worker: Start, path: Path) -> None:
    job = jobs.hold.enqueue(str(path))
    worker = start_worker("--no-fork", "--drain-timeout", "600")
    until_marked(path)
    worker.signal(signal.SIGINT)
    until(lambda: Worker.objects.get().status == "draining")  # it claims no more
    later = jobs.noop.enqueue()
    let_go(path)
    assert worker.wait() == 0
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert Job.objects.get(pk=later.pk).status == "ready"


@pytest.mark.parametrize(
    "drain_timeout, signals, heeds_the_stop",
    [("0.2", 1, False), ("600", 2, False), ("0.2", 1, True)],
)
def test_one_process_releases_jobs_that_do_not_end(
    start_worker: Start, path: Path, drain_timeout: str, signals: int, heeds_the_stop: bool
) -> None:
    held = jobs.hold.enqueue(str(path)) if heeds_the_stop else None
    job = held or jobs.sleep_deaf.enqueue(str(path), 600)
    worker = start_worker("--no-fork", "--drain-timeout", drain_timeout)
    until_marked(path)
    for _ in range(signals):
        worker.signal(signal.SIGTERM)
        until(lambda: "event=draining" in worker.text())
    assert worker.wait() == 143
    job.refresh_from_db()
    assert (job.status, job.failures, job.crashes) == ("ready", 0, 0)
    assert Run.objects.get(job=job).outcome == "released"
    assert Worker.objects.get().status == "stopped"


def test_one_process_exits_when_an_operator_asks(start_worker: Start) -> None:
    worker = start_worker("--no-fork", TEST_DJANGO_JOBS=BEATS_OFTEN)
    row = until(lambda: Worker.objects.filter(status="running").first())
    Worker.objects.filter(pk=row.pk).update(drain_requested_at=timezone.now())
    assert worker.wait() == 0


def test_one_process_exits_when_it_loses_its_jobs(start_worker: Start, path: Path) -> None:
    jobs.sleep_deaf.enqueue(str(path), 600)
    worker = start_worker("--no-fork", TEST_DJANGO_JOBS=BEATS_OFTEN)
    until_marked(path)
    Worker.objects.update(status="lost")
    assert worker.wait() == 70
    assert "event=fenced" in worker.text()


def test_one_process_exits_in_an_outage_that_its_job_outlasts(
    start_worker: Start, role: Role, path: Path
) -> None:
    job = jobs.sleep_deaf.enqueue(str(path), 3600)
    role.limit(-1)
    worker = start_worker("--no-fork", "--lease-seconds", "4", DATABASE_URL=role.url)
    until_marked(path)
    role.cut_off()
    row = Worker.objects.get(jobs=job)
    assert worker.wait() == 70
    assert "event=fenced" in worker.text()
    assert Job.objects.filter(pk=job.pk, worker=row).exists()  # for whoever reaps


def test_one_process_stops_its_jobs_and_exits_before_the_lease_ends() -> None:
    process = SingleProcess(Options(queues=(), lease=4.0))
    slot = process._child.slot
    slot.register(1, 1_000.0)
    slot.start(1, 1, 1, 0.0, False, 0.0)
    assert not process._lost(999.0)
    assert process._lost(999.5)
    assert process._gone_by() < 1_000.0


def test_one_process_says_how_many_connections_it_needs(start_worker: Start, role: Role) -> None:
    role.limit(1)
    worker = start_worker("--no-fork", DATABASE_URL=role.url)
    until(lambda: "event=no_connection_left" in worker.text())
    assert "this jobworker needs 16 connections" in worker.text()


def test_a_time_out_is_raised_in_one_process_and_pools_work(
    start_worker: Start, tmp_path: Path
) -> None:
    late = limit_jobs.run_for_ever.enqueue(str(tmp_path / "job"))
    pools = fork_jobs.make_pools.enqueue()
    start_worker("--no-fork")
    until_status(late, "dead")
    assert (tmp_path / "job.cleaned").exists()
    until_status(pools, "succeeded")


def test_a_handler_stops_in_the_debugger(start_worker: Start, tmp_path: Path) -> None:
    typed = tmp_path / "typed"
    typed.write_text("answer = 'set by hand'\ncontinue\n")
    job = fork_jobs.debug.enqueue()
    terminal = f"import os; os.dup2(os.open({str(typed)!r}, os.O_RDONLY), 0)"
    worker = start_worker("--no-fork", "--threads", "1", before=terminal)
    assert until_status(job, "succeeded").result == "set by hand"
    assert worker.drain() == 0
    assert "(Pdb)" in worker.text()


WITHOUT_FORK = """
import importlib, os, signal
for module, names in {
    "os": "fork forkpty register_at_fork setpgid killpg",
    "signal": "SIGHUP SIGCHLD SIGURG SIGALRM setitimer pthread_sigmask pthread_kill",
    "select": "poll epoll",
}.items():
    for name in names.split():
        delattr(importlib.import_module(module), name)
"""


def test_a_system_without_fork_has_one_process(start_worker: Start, path: Path) -> None:
    job = jobs.hold.enqueue(str(path))
    refused = start_worker(before=WITHOUT_FORK)
    assert refused.wait() == 1
    assert "--no-fork" in refused.text()
    worker = start_worker("--no-fork", before=WITHOUT_FORK)
    until_marked(path)
    let_go(path)
    until_status(job, "succeeded")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0


@pytest.mark.parametrize("option", ["--processes=2", "--max-jobs=5", "--max-rss=100"])
def test_options_that_need_several_processes_are_refused(option: str) -> None:
    with pytest.raises(CommandError, match="--no-fork"):
        call_command("jobworker", "--no-fork", option)


def test_a_burst_of_one_process_returns(start_worker: Start) -> None:
    ids = jobs.noop.enqueue_many({} for _ in range(50))
    assert start_worker("--no-fork", "--burst").wait() == 0
    assert Job.objects.filter(pk__in=ids, status="succeeded").count() == 50
