"""When the supervisor ends what did not end by itself. With real processes: test_time_limits."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from django_jobs.worker.ipc.pipes import AttemptEnd, MessagePipe
from django_jobs.worker.ipc.scoreboard import STARTED, Scoreboard, StartedJob
from django_jobs.worker.options import Options
from django_jobs.worker.supervisor.process_tree import (
    IsolatedChild,
    ProcessTree,
    WorkerProcessHandle,
)
from django_jobs.worker.supervisor.watchdog import SOFT_GRACE, _overdue

RUNNING = {
    "job": 1,
    "worker": 1,
    "attempt": 1,
    "started": 100.0,
    "deadline": 110.0,
    "silence": 5.0,
    "progress_at": 104.0,
    "state": STARTED,
}


def running(**changes: float) -> StartedJob:
    return StartedJob(**RUNNING | changes)


@pytest.mark.parametrize(
    "now, ending",
    [
        (109.0 + SOFT_GRACE, None),
        (109.1 + SOFT_GRACE, ("silent", 5.0)),
        (110.1 + SOFT_GRACE, ("timed_out", 10.0)),
    ],
)
def test_a_job_is_overdue_a_moment_after_its_time(
    now: float, ending: tuple[str, float] | None
) -> None:
    assert _overdue(running(), now) == ending


@pytest.mark.parametrize("torn", [0.0, 5e-324, 3.2])
def test_a_torn_read_of_a_deadline_ends_nothing(torn: float) -> None:
    assert _overdue(running(progress_at=torn), 109.5) is None
    assert _overdue(running(deadline=torn, progress_at=109.0), 109.5) is None


def test_of_two_children_of_one_job_that_of_the_slot_is_meant() -> None:
    """Its first attempt was lost, and both run for the same process."""
    tree, child = (
        ProcessTree(Options(queues=()), ()),
        WorkerProcessHandle(slot=Scoreboard(1).slots[0]),
    )
    ends = [MessagePipe(end) for end in Pipe()]
    try:
        for pid, index in ((71, 0), (72, 1)):
            tree.isolated[pid] = IsolatedChild(
                child=child, pid=pid, pipe=ends[index], index=index, job=1
            )
        lost, again = running(), running(index=1, attempt=2)
        assert tree.isolated_child(child, lost) is tree.isolated[71]
        assert tree.isolated_child(child, again) is tree.isolated[72]
        tree.isolated[71].end = AttemptEnd.RELEASED
        assert tree.isolated_child(child, lost) is None
    finally:
        tree.close_all()
