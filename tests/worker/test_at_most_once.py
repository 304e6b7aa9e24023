"""A job that is delivered at most once: whatever becomes of its attempt, there is no second."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from django_jobs.api import replay_problem
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Worker
from tests.app import once_jobs

from .processes import (
    REAPS_OFTEN,
    Start,
    end_lease,
    let_go,
    lines,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("how, ended", [("raise", "failed"), ("kill", "lost")])
def test_an_attempt_that_failed_or_killed_its_process_is_never_made_again(
    start_worker: Start, path: Path, how: str, ended: str
) -> None:
    start_worker()
    job = once_jobs.pay.enqueue(str(path), how)
    until_marked(path)
    let_go(path)
    dead = until_status(job, "dead")
    assert dead.reason.startswith("its delivery is at_most_once, and ")
    assert outcomes(job) == [ended]
    assert len(lines(path)) == 1


def test_at_most_once_jobs_of_a_lost_machine_are_dead(start_worker: Start, path: Path) -> None:
    first = start_worker()
    job = once_jobs.pay.enqueue(str(path))
    until_marked(path)
    first.signal_all(signal.SIGKILL)
    until(lambda: not first.session())
    end_lease(Worker.objects.get())
    start_worker(TEST_DJANGO_JOBS=REAPS_OFTEN)
    dead = until_status(job, "dead")
    assert "its outcome is unknown" in dead.reason
    assert outcomes(job) == ["lost"]
    assert len(lines(path)) == 1


def test_a_drain_kills_started_at_most_once_jobs_and_returns_the_others(
    start_worker: Start, tmp_path: Path
) -> None:
    path, later = tmp_path / "job", tmp_path / "later"
    first = start_worker("--threads", "1", "--drain-timeout", "0.5")
    job = once_jobs.pay.enqueue(str(path))
    until_marked(path)
    waiting = once_jobs.pay.enqueue(str(later))
    first.signal(signal.SIGTERM)
    first.wait()
    dead = Job.objects.get(pk=job.pk)
    assert (dead.status, outcomes(job)) == ("dead", ["released"])
    assert "was interrupted" in dead.reason
    let_go(later)
    start_worker()
    assert until_status(waiting, "succeeded").attempt == 1
    assert len(lines(later)) == 1


def test_an_operator_may_replay_an_at_most_once_job(start_worker: Start, path: Path) -> None:
    let_go(path)
    start_worker()
    job = once_jobs.pay.enqueue(str(path), "raise")
    until_status(job, "dead")
    assert job_operations.replay([job.pk], check=replay_problem).done == [job.pk]
    until(lambda: outcomes(job) == ["failed", "failed"])
    assert len(lines(path)) == 2
