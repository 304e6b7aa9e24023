"""W17: a crash between any two steps of an attempt, by ``DJANGO_JOBS_FAULT``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from django_jobs.api.job_type import JobType
from django_jobs.models import Job, Run, Worker
from tests.app import fault_jobs, jobs
from tests.worker.processes import Start, let_go, lines, outcomes, until_marked

from .watching import effects, said, settled, until

pytestmark = pytest.mark.processes

COMMITTED = fault_jobs.leave_one_effect
ONCE = fault_jobs.leave_one_effect_once
ALONE = fault_jobs.leave_one_effect_alone

CLEAN = ["succeeded"]
LOST = ["lost", "succeeded"]
RELEASED = ["released", "succeeded"]
AGAIN = ["lost or released", "succeeded"]

CRASHES = [
    # Not begun: as if it had never been claimed.
    ("after_claim:kill", COMMITTED, CLEAN, 1),
    ("before_isolate:kill", ALONE, RELEASED, 1),
    # Begun: one of its attempts was lost.
    ("before_handler:kill", COMMITTED, LOST, 1),
    ("before_handler:kill", ALONE, LOST, 1),
    # The effect is committed by itself, and made again; or it goes with its attempt.
    ("after_handler:kill", COMMITTED, AGAIN, 2),
    ("after_handler:exit", COMMITTED, AGAIN, 2),
    ("after_handler:kill", ONCE, AGAIN, 1),
    ("before_settle:kill", COMMITTED, AGAIN, 2),
    ("before_settle:kill", ONCE, AGAIN, 1),
    ("before_settle:kill", ALONE, AGAIN, 2),
    # Settled: the process died before it knew.
    ("after_settle:kill", COMMITTED, CLEAN, 1),
    ("after_settle:kill", ONCE, CLEAN, 1),
    ("after_settle:kill", ALONE, CLEAN, 1),
]


@pytest.mark.parametrize(
    "fault, job_type, ends, left",
    CRASHES,
    ids=[f"{fault}-{job_type.name}" for fault, job_type, _, _ in CRASHES],
)
def test_a_crash_at_any_step_loses_no_job_and_no_run(
    start_worker: Start,
    path: Path,
    fault: str,
    job_type: JobType[..., None],
    ends: list[str],
    left: int,
) -> None:
    job = job_type.enqueue(str(path))
    worker = start_worker(DJANGO_JOBS_FAULT=fault)
    said(worker, f"event=fault_made fault={fault}:1")
    done = settled(job)
    after = settled(jobs.add.enqueue(1, 2))  # the tree goes on, and makes the fault no more
    assert after.result == 3
    assert all(ended in end for ended, end in zip(outcomes(job), ends, strict=True))
    assert effects(job) == left
    assert 1 <= len(lines(path)) <= done.attempt
    assert done.attempt == len(ends)
    assert outcomes(after) == CLEAN
    assert worker.text().count("event=fault_made") == 1


LOST_ANSWERS = [
    ("after_claim:raise", "event=stranded_jobs"),
    ("before_settle:raise", "event=database_error"),
    ("after_settle:raise", "event=database_error"),
    ("before_beat:raise", "event=beat_failed"),
    ("after_beat:raise", "event=beat_failed"),
]


@pytest.mark.parametrize("fault, line", LOST_ANSWERS)
def test_an_error_of_the_database_at_any_statement_costs_no_attempt(
    start_worker: Start, path: Path, fault: str, line: str
) -> None:
    job = COMMITTED.enqueue(str(path))
    worker = start_worker("--lease-seconds", "12", DJANGO_JOBS_FAULT=fault)
    said(worker, f"event=fault_made fault={fault}:1")
    said(worker, line)
    assert settled(job).failures == 0
    assert outcomes(job) == CLEAN
    assert effects(job) == len(lines(path)) == 1


@pytest.mark.parametrize("fault", ["before_beat:kill", "after_beat:exit"])
def test_a_crash_of_the_heartbeat_at_any_step_stops_no_handler(
    start_worker: Start, path: Path, fault: str
) -> None:
    job = jobs.hold.enqueue(str(path))
    worker = start_worker("--lease-seconds", "12", DJANGO_JOBS_FAULT=fault)
    until_marked(path)
    said(worker, f"event=fault_made fault={fault}:1")
    said(worker, "event=heartbeat_died")
    seen = Worker.objects.get().heartbeat_at
    until(lambda: Worker.objects.get().heartbeat_at > seen, "another one beats")
    let_go(path)
    settled(job)
    assert outcomes(job) == CLEAN
    assert worker.drain() == 0


def test_a_heartbeat_that_dies_during_crash_recovery_is_asked_again(
    start_worker: Start, tmp_path: Path
) -> None:
    path, other = tmp_path / "job", tmp_path / "other"
    job = jobs.hold_in_transaction.enqueue(str(path))
    worker = start_worker(
        "--processes", "2", "--threads", "1", DJANGO_JOBS_FAULT="before_recovery:kill"
    )
    victim = until_marked(path)
    neighbour = jobs.hold.enqueue(str(other))
    assert until_marked(other) != victim
    os.kill(victim, signal.SIGKILL)
    said(worker, "event=fault_made fault=before_recovery:kill:1")
    said(worker, "event=heartbeat_died")
    until_marked(path, times=2)
    let_go(path)
    let_go(other)
    settled(job)
    settled(neighbour)
    assert outcomes(job) == LOST
    assert effects(job) == 1
    assert outcomes(neighbour) == CLEAN


def test_a_process_stopped_before_its_settle_writes_it_when_resumed(
    start_worker: Start, path: Path
) -> None:
    job = COMMITTED.enqueue(str(path))
    worker = start_worker(DJANGO_JOBS_FAULT="before_settle:stop")
    said(worker, "event=fault_made fault=before_settle:stop:1")
    process = psutil.Process(until_marked(path))
    until(lambda: process.status() == psutil.STATUS_STOPPED, "the process is stopped")
    assert Job.objects.get(pk=job.pk).status == "running"
    process.resume()
    settled(job)
    assert outcomes(job) == CLEAN
    assert effects(job) == 1


def test_the_passage_is_counted_over_the_whole_tree(start_worker: Start, path: Path) -> None:
    many = [COMMITTED.enqueue(str(path)) for _ in range(8)]
    worker = start_worker(
        "--processes", "2", "--threads", "1", DJANGO_JOBS_FAULT="before_handler:kill:4"
    )
    for job in many:
        settled(job)
    assert worker.text().count("event=fault_made") == 1
    assert Run.objects.filter(outcome="lost").count() == 1
    # What had ended and was not written yet when its process died was run once more.
    assert len(lines(path)) == len(many) + Run.objects.filter(outcome="released").count()
