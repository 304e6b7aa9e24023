"""What a job that runs alone may do to itself, and to nobody else: memory and crashes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from django_jobs.domain.outcomes import Released
from django_jobs.models import Run, Worker
from django_jobs.worker.execution.failures import outcome_of_ending
from django_jobs.worker.ipc.pipes import MessageType
from django_jobs.worker.meters import resident_megabytes
from django_jobs.worker.options import Options
from django_jobs.worker.supervisor import process_tree
from django_jobs.worker.supervisor.process_tree import ProcessTree
from tests.app import jobs, limit_jobs

from .processes import Start, in_case, let_go, outcomes, until_marked, until_status

processes = pytest.mark.processes


def test_the_memory_of_a_process_is_known_as_long_as_there_is_one() -> None:
    assert 0 < resident_megabytes() == pytest.approx(resident_megabytes(os.getpid()), abs=50)
    assert resident_megabytes(2**30) == 0


@processes
def test_a_job_above_max_rss_is_killed_until_dead_and_others_run(
    start_worker: Start, tmp_path: Path
) -> None:
    path, hog = tmp_path / "job", tmp_path / "hog"
    neighbour = jobs.hold.enqueue(str(path))
    start_worker()
    until_marked(path)
    job = limit_jobs.hold_memory.enqueue(str(hog), 300)
    dead = until_status(job, "dead")
    assert outcomes(job) == ["lost"] * 3
    assert dead.reason.startswith("crashed 3 times: held ")
    assert dead.reason.endswith(" MB, more than its max_rss of 250 MB")
    assert set(Run.objects.filter(job=job).values_list("error_type", flat=True)) == {"Crashed"}
    let_go(path)
    until_status(neighbour, "succeeded")
    assert outcomes(neighbour) == ["succeeded"]
    assert Worker.objects.count() == 1


@processes
def test_a_job_with_max_rss_runs_isolated_and_may_stay_below_it(
    start_worker: Start, tmp_path: Path
) -> None:
    job = limit_jobs.hold_memory.enqueue(str(tmp_path / "job"), 20)
    start_worker()
    pid = until_status(job, "succeeded").result
    assert pid not in Worker.objects.values_list("pid", flat=True)


@processes
def test_a_job_that_crashes_alone_is_dead_after_the_third_time(
    start_worker: Start, path: Path
) -> None:
    neighbour = jobs.hold.enqueue(str(path))
    start_worker()
    until_marked(path)
    for how in ("SIGSEGV", "SIGKILL", "exit"):
        with in_case(how):
            dead = until_status(limit_jobs.crash.enqueue(how), "dead")
            assert outcomes(dead) == ["lost"] * 3
            end = "exit code 0" if how == "exit" else how
            assert dead.reason == f"crashed 3 times: its process ended with {end}"
            assert {run.error_type for run in Run.objects.filter(job=dead)} == {"Crashed"}
    let_go(path)
    until_status(neighbour, "succeeded")
    assert outcomes(neighbour) == ["succeeded"]
    assert Worker.objects.count() == 1


class Told:
    """The supervisor's end of a pipe."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, **message: Any) -> bool:
        """Keep what was sent."""
        self.messages.append(message)
        return True


def test_a_job_that_could_not_be_forked_has_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_fork(*_: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(process_tree, "fork", no_fork)
    pipe: Any = Told()
    made = ProcessTree(Options(queues=()), ())
    made.children[0].pipe = pipe
    made.isolate(made.children[0], {"job": 1, "worker": 2, "index": 3, "max_rss": None})
    made.children[0].pipe = None
    made.close_all()
    (message,) = pipe.messages
    assert message["type"] is MessageType.ISOLATED
    outcome = outcome_of_ending(message["end"], message["reason"], message["seconds"])
    assert outcome == Released(reason="no more processes", began=False)
    assert not made.isolated
