"""Time-outs and silence, with real processes: first an exception in the handler, then the end of
its process."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from django_jobs import enqueue
from django_jobs.models import Job, Run
from tests.app import jobs, limit_jobs
from tests.app.models import Effect
from tests.patience import UNBOUNDED

from .processes import (
    Start,
    in_case,
    let_go,
    nobody_was_killed,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes

HARD = 1.0
"""Seconds from the exception to the kill."""


def seconds_of(run: Run) -> float:
    assert run.started_at is not None
    return (run.finished_at - run.started_at).total_seconds()


def the_run_of(job: Job) -> Run:
    return Run.objects.get(job=job)


def test_a_handler_gets_an_exception_at_its_timeout_and_cleans_up(
    start_worker: Start, path: Path
) -> None:
    worker = start_worker()
    job = limit_jobs.run_for_ever.enqueue(str(path))
    assert "exceeded its time-out of 0.5 s" in until_status(job, "dead").last_error
    assert Path(f"{path}.cleaned").exists()
    run = the_run_of(job)
    assert (run.outcome, run.error_type) == ("timed_out", "TimedOut")
    assert "in run_for_ever" in run.traceback  # where it was
    assert seconds_of(run) >= 0.5
    assert nobody_was_killed(worker)


def test_an_isolated_handler_is_woken_from_its_sleep_and_cleans_up(
    start_worker: Start, path: Path
) -> None:
    worker = start_worker()
    job = limit_jobs.sleep_alone.enqueue(str(path))
    until_status(job, "dead")
    assert Path(f"{path}.cleaned").exists()
    assert the_run_of(job).outcome == "timed_out"
    assert "in sleep_alone" in the_run_of(job).traceback
    assert seconds_of(the_run_of(job)) >= 0.5
    assert nobody_was_killed(worker)


def test_a_late_handler_has_timed_out_regardless_of_its_reaction(start_worker: Start) -> None:
    late = {
        "raises": limit_jobs.react.enqueue("raise"),
        "returns": limit_jobs.react.enqueue("return"),
        "on the loop": limit_jobs.react_async.enqueue(),
        "exactly once": limit_jobs.write_too_slowly.enqueue(),
    }
    worker = start_worker()
    for name, job in late.items():
        with in_case(name):
            assert "exceeded its time-out of 0.3 s" in until_status(job, "dead").last_error
            assert outcomes(job) == ["timed_out"]
    assert Effect.objects.count() == 0
    assert nobody_was_killed(worker)


def test_a_resumed_tree_gives_its_handlers_time_to_clean_up(
    start_worker: Start, path: Path
) -> None:
    worker = start_worker()
    job = limit_jobs.run_for_ever.enqueue(str(path))
    until_marked(path)
    worker.signal_all(signal.SIGSTOP)
    time.sleep(0.5 + HARD + 2.0)  # longer than it may run, and than the supervisor ever waits
    worker.signal_all(signal.SIGCONT)
    until_status(job, "dead")
    assert Path(f"{path}.cleaned").exists()
    assert nobody_was_killed(worker)


@pytest.mark.parametrize("name", ["compute", "compute_silently", "too_slow"])
def test_a_call_that_nothing_interrupts_is_killed_and_other_jobs_run_again(
    start_worker: Start, tmp_path: Path, name: str
) -> None:
    path, endless = tmp_path / "job", tmp_path / "endless"
    neighbour = jobs.hold.enqueue(str(path))
    start_worker()
    until_marked(path)
    late = enqueue(f"app.{name}", {"path": str(endless)})
    dead = until_status(late, "dead")
    said = "reported no progress for 1 s" if name == "compute_silently" else "time-out of 0.5 s"
    assert said in dead.last_error
    assert "failed its only attempt" in dead.reason
    assert outcomes(late) == ["timed_out"]
    until_marked(path, times=2)
    let_go(path)
    job = until_status(neighbour, "succeeded")
    assert (job.failures, job.crashes) == (0, 0)
    assert outcomes(neighbour) == ["released", "succeeded"]


def test_an_isolated_call_that_holds_the_gil_is_killed_alone(
    start_worker: Start, tmp_path: Path
) -> None:
    path, endless = tmp_path / "job", tmp_path / "endless"
    neighbour = jobs.hold.enqueue(str(path))
    worker = start_worker()
    until_marked(path)
    late = limit_jobs.compute_alone.enqueue(str(endless))
    until_status(late, "dead")
    assert outcomes(late) == ["timed_out"]
    assert seconds_of(the_run_of(late)) >= 0.5 + HARD
    let_go(path)
    until_status(neighbour, "succeeded")
    assert outcomes(neighbour) == ["succeeded"]
    assert nobody_was_killed(worker)


def test_many_short_jobs_near_their_timeout_lose_no_thread(
    start_worker: Start, tmp_path: Path
) -> None:
    count, threads, timeout = 2_000, 12, 0.05
    limit_jobs.nap_within.enqueue_many(
        {"seconds": 0.1 * (number * 7_919 % count) / count} for number in range(count)
    )
    worker = start_worker("--threads", str(threads))
    until(lambda: Run.objects.count() >= count, UNBOUNDED, "all have run")
    ended = {"succeeded": 0, "timed_out": 0}
    for run in Run.objects.select_related("job"):
        if run.outcome == "released":  # its process was killed for another: a machine at a stand
            continue
        ended[run.outcome] += 1
        if run.outcome == "timed_out":
            assert seconds_of(run) >= timeout - 0.001
            assert run.job.result is None
        else:
            assert run.job.result >= run.job.payload["seconds"]
    assert sum(ended.values()) == count
    assert min(ended.values()) > count / 10
    # Every thread is there and takes a job.
    held = [tmp_path / f"held-{number}" for number in range(threads)]
    for path in held:
        jobs.hold.enqueue(str(path))
    for path in held:
        until_marked(path)
    for path in held:
        let_go(path)
    until(lambda: Job.objects.filter(job_type="app.hold", status="succeeded").count() == threads)
    assert "Traceback" not in worker.text()


def test_a_silent_handler_is_stopped(start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker()
    names = ("say_nothing", "say_nothing_async", "say_nothing_alone")
    silent = {name: getattr(limit_jobs, name).enqueue(str(tmp_path / name)) for name in names}
    for name, job in silent.items():
        with in_case(name):
            assert "reported no progress for 1 s" in until_status(job, "dead").last_error
            assert the_run_of(job).outcome == "timed_out"
            assert seconds_of(the_run_of(job)) >= 0.999
    assert nobody_was_killed(worker)


def test_a_handler_that_reports_is_not_stopped(start_worker: Start) -> None:
    names = ("keep_reporting", "keep_reporting_async", "keep_reporting_alone")
    reporting = {name: getattr(limit_jobs, name).enqueue(3.0) for name in names}
    start_worker()
    for name, job in reporting.items():
        with in_case(name):
            until_status(job, "succeeded", UNBOUNDED)
            assert seconds_of(Run.objects.filter(job=job).latest("attempt")) >= 3.0
