"""Stopping a running job by force, with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from django_jobs import cancel
from django_jobs.models import Job, Run
from tests.app import jobs, limit_jobs
from tests.app.models import Effect

from .processes import (
    BEATS_OFTEN,
    Start,
    in_case,
    let_go,
    lines,
    nobody_was_killed,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes

LONG_GRACE = json.dumps({"HEARTBEAT_SECONDS": 0.5, "CANCEL_GRACE_SECONDS": 600})


KILLED = "its process was killed to stop another job by force"


def test_each_handler_gets_an_exception_and_its_neighbours_go_on(
    start_worker: Start, tmp_path: Path
) -> None:
    names = (
        *("run_away", "run_away_alone", "run_away_asked", "run_away_in_time", "run_away_once"),
        *("give_in", "fail_when_stopped", "await_asked"),
    )
    running = {name: getattr(limit_jobs, name).enqueue(str(tmp_path / name)) for name in names}
    other = tmp_path / "other"
    neighbour = jobs.hold.enqueue(str(other))
    worker = start_worker("--threads", str(len(names) + 1), TEST_DJANGO_JOBS=LONG_GRACE)
    for name in (*names, "other"):
        until_marked(tmp_path / name)
    for name, job in running.items():
        with in_case(name):
            assert cancel(job.pk, reason="it loops", force=True)
            assert until_status(job, "cancelled").reason == "stopped by force: it loops"
            assert outcomes(job) == ["cancelled"]
            assert (tmp_path / f"{name}.cleaned").exists()
            assert (tmp_path / f"{name}.told").exists() is (name == "give_in")
            assert len(lines(tmp_path / name)) == 1
    let_go(other)
    until_status(neighbour, "succeeded")
    assert outcomes(neighbour) == ["succeeded"]
    assert nobody_was_killed(worker)


@pytest.mark.parametrize("name", ["run_on", "run_on_async", "compute_on"])
def test_a_handler_that_runs_on_ends_with_its_process_and_the_others_run_again(
    start_worker: Start, tmp_path: Path, name: str
) -> None:
    path, other = tmp_path / "job", tmp_path / "other"
    neighbour = jobs.hold.enqueue(str(other))
    worker = start_worker(TEST_DJANGO_JOBS=LONG_GRACE)
    until_marked(other)
    job = getattr(limit_jobs, name).enqueue(str(path))
    until_marked(path)
    assert cancel(job.pk, force=True)
    assert until_status(job, "cancelled").reason == "stopped by force"
    let_go(other)
    until_status(neighbour, "succeeded")
    assert (outcomes(job), outcomes(neighbour)) == (["cancelled"], ["released", "succeeded"])
    assert Run.objects.get(job=neighbour, attempt=1).error_message == KILLED
    assert "declare their handlers isolated=True" in worker.text()
    assert len(lines(path)) == 1


def test_an_isolated_handler_that_runs_on_ends_alone(start_worker: Start, tmp_path: Path) -> None:
    path, other = tmp_path / "job", tmp_path / "other"
    neighbour = jobs.hold.enqueue(str(other))
    job = limit_jobs.compute_on_alone.enqueue(str(path))
    worker = start_worker(TEST_DJANGO_JOBS=LONG_GRACE)
    until_marked(path)
    until_marked(other)
    assert cancel(job.pk, force=True)
    assert until_status(job, "cancelled").reason == "stopped by force"
    let_go(other)
    until_status(neighbour, "succeeded")
    assert (outcomes(job), outcomes(neighbour)) == (["cancelled"], ["succeeded"])
    assert nobody_was_killed(worker)


def test_force_follows_a_cancel_that_did_not_end_the_handler(
    start_worker: Start, tmp_path: Path
) -> None:
    worker = start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    for name in ("run_away_asked", "await_twice"):
        with in_case(name):
            path = tmp_path / name
            job = getattr(limit_jobs, name).enqueue(str(path))
            until_marked(path)
            assert cancel(job.pk, reason="no use")
            if name == "await_twice":
                until(Path(f"{path}.cancelled").exists)
            assert Job.objects.get(pk=job.pk).status == "running"
            assert cancel(job.pk, reason="it loops", force=True)
            assert cancel(job.pk, reason="again", force=True)
            assert until_status(job, "cancelled").reason == "stopped by force: it loops"
            assert Path(f"{path}.cleaned").exists()
            assert outcomes(job) == ["cancelled"]
    assert nobody_was_killed(worker)


def test_the_threads_of_stopped_handlers_serve_others(start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker("--threads", "1", TEST_DJANGO_JOBS=BEATS_OFTEN)
    for number in range(3):
        path = tmp_path / str(number)
        job = limit_jobs.run_away.enqueue(str(path))
        until_marked(path)
        assert cancel(job.pk, force=True)
        until_status(job, "cancelled")
        until_status(jobs.write_effect.enqueue(str(number)), "succeeded")
    assert Effect.objects.count() == 3
    assert nobody_was_killed(worker)


def test_without_processes_the_exception_is_all_there_is(start_worker: Start, path: Path) -> None:
    start_worker("--no-fork", TEST_DJANGO_JOBS=BEATS_OFTEN)
    job = limit_jobs.run_away.enqueue(str(path))
    until_marked(path)
    assert cancel(job.pk, force=True)
    assert until_status(job, "cancelled").reason == "stopped by force"
    assert outcomes(job) == ["cancelled"]
