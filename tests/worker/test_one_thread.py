"""A process of one thread runs handlers in its main thread."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_jobs import cancel
from django_jobs.models import Job, Run, Worker
from tests.app import jobs, limit_jobs

from .processes import Start, in_case, let_go, until, until_marked, until_status

pytestmark = pytest.mark.processes
ONE_THREAD = [("--prefork", "3"), ("--threads", "1"), ("--threads", "1", "--processes", "2")]


@pytest.mark.parametrize("options", ONE_THREAD)
def test_a_handler_has_the_main_thread_and_the_process_for_itself(
    start_worker: Start, options: tuple[str, ...]
) -> None:
    limit_jobs.set_a_signal_handler.enqueue_many({"number": number} for number in range(12))
    start_worker(*options, "--burst").wait()
    assert set(Job.objects.values_list("status", flat=True)) == {"succeeded"}
    assert all(job.result == str(job.payload["number"]) for job in Job.objects.all())


def test_a_lost_process_costs_one_job(start_worker: Start, tmp_path: Path) -> None:
    paths = [tmp_path / f"held-{number}" for number in range(2)]
    held = [jobs.hold.enqueue(str(path)) for path in paths]
    start_worker("--prefork", "3")
    pids = [until_marked(path) for path in paths]
    until(lambda: Worker.objects.filter(status="running").count() == 3)
    assert set(Worker.objects.values_list("threads", flat=True)) == {1}
    late = limit_jobs.run_for_ever.enqueue(str(tmp_path / "late"))
    assert "exceeded its time-out" in until_status(late, "dead").last_error
    asleep = jobs.sleep_deaf.enqueue(str(tmp_path / "asleep"), 3600.0)
    os.kill(until_marked(tmp_path / "asleep"), signal.SIGKILL)
    until(lambda: Run.objects.filter(job=asleep.pk, outcome="lost").exists())
    for path in paths:
        let_go(path)
    for job in held:
        assert until_status(job, "succeeded").attempt == 1
    assert len(set(pids)) == 2


def test_a_time_out_ends_a_wait(start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker("--prefork", "1")
    for how in ("sleep", "socket", "lock", "statement"):
        with in_case(how):
            job = limit_jobs.wait_in_c.enqueue(str(tmp_path / how), how)
            assert "exceeded its time-out" in until_status(job, "dead").last_error
            assert (tmp_path / f"{how}.cleaned").exists()
            assert Run.objects.get(job=job.pk).outcome == "timed_out"
            assert until_status(jobs.noop.enqueue(), "succeeded")
    assert Worker.objects.count() == 1
    assert "event=process_" not in worker.text()


def test_a_forced_stop_ends_a_wait(start_worker: Start, path: Path) -> None:
    worker = start_worker("--prefork", "1")
    job = jobs.sleep_deaf.enqueue(str(path), 3600.0)
    until_marked(path)
    assert cancel(job.pk, force=True)
    until_status(job, "cancelled")
    assert Worker.objects.count() == 1
    assert "event=process_" not in worker.text()


def test_a_drain_waits_for_the_handler(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "held"
    job = jobs.hold.enqueue(str(path))
    worker = start_worker("--prefork", "2")
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until(lambda: "event=draining" in worker.text())
    let_go(path)
    assert worker.wait() == 0
    assert Job.objects.get(pk=job.pk).status == "succeeded"
    assert not Worker.objects.filter(status__in=["running", "draining"]).exists()


def test_a_handler_is_stopped_when_the_time_to_drain_is_over(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    job = jobs.hold.enqueue(str(path))
    worker = start_worker("--prefork", "1", "--drain-timeout", "0.2")
    until_marked(path)
    assert worker.drain() == 143
    assert Job.objects.get(pk=job.pk).status == "ready"


def test_a_process_is_replaced_after_its_jobs(start_worker: Start) -> None:
    jobs.noop.enqueue_many({} for _ in range(30))
    worker = start_worker("--prefork", "1", "--max-jobs", "10", "--burst")
    assert worker.wait() == 0
    assert Job.objects.filter(status="succeeded").count() == 30
    assert worker.text().count("event=worker_recycled") >= 2
    assert "event=process_died" not in worker.text()


@pytest.mark.parametrize(
    "other",
    [("--threads", "2"), ("--processes", "2"), ("--pool", "default:1"), ("--no-fork",)],
)
@pytest.mark.django_db
def test_prefork_replaces_other_options(other: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="--prefork N is N processes of one thread each"):
        call_command("jobworker", "--prefork", "2", *other)
