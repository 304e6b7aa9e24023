"""What a claimer holds, and how it lets go of it."""

from __future__ import annotations

import time
from multiprocessing import Pipe

import pytest

from django_jobs import enqueue_many
from django_jobs.worker.ipc.pipes import MessagePipe
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options, QueueShare
from django_jobs.worker.process.claimer import CLAIMED_BYTES
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.factories import register_worker

OPTIONS = Options(queues=(QueueShare(name="default"),))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", [0, 50])
def test_payloads_that_wait_in_a_process_are_bounded_in_bytes(first: int) -> None:
    """Also in its first claim, and where large ones come behind small ones."""
    enqueue_many("app.write_effect", [{"note": "small"}] * first)
    enqueue_many("app.write_effect", [{"note": "x" * 900_000}] * 60)
    pipe, other = (MessagePipe(end) for end in Pipe())
    worker = WorkerProcess(pipe, Scoreboard(1, 2048).slots[0], OPTIONS)
    claimer, claimed_jobs = worker._claimer, worker._claimed
    worker._slot.register(register_worker(), time.monotonic() + 600)
    worker._executor.pace.saw(0.0001)
    assert claimer._room() == 300
    claimed = 0
    while claimed_jobs.bytes < CLAIMED_BYTES // 2 or claimed < first:
        took = claimer._claim_all(["default"], claimer._room())
        assert took
        claimed += took
    assert CLAIMED_BYTES // 2 < claimed_jobs.bytes <= CLAIMED_BYTES
    assert claimer._room() <= 0
    assert claimer._promising == {"default"}  # there is more
    while claimed_jobs.waiting:
        claimed_jobs.end([claimed_jobs.next()])
    assert claimed_jobs.bytes == 0
    assert claimer._claim_all(["default"], claimer._room()) > 0
    assert claimed_jobs.bytes <= CLAIMED_BYTES
    for end in (pipe, other):
        end.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seconds", [0.0001, 0.05, None])
def test_the_shares_of_the_queues_hold_under_load(seconds: float | None) -> None:
    """Whether claims come by the hundred, by the dozen, or for each free thread."""
    for queue in ("default", "bulk"):
        enqueue_many("app.noop", [{}] * 7_000, queue=queue)
    pipe, other = (MessagePipe(end) for end in Pipe())
    shares = QueueShare(name="default", weight=5), QueueShare(name="bulk", weight=1)
    worker = WorkerProcess(pipe, Scoreboard(1, 2048).slots[0], Options(queues=shares))
    claimer, claimed_jobs = worker._claimer, worker._claimed
    worker._slot.register(register_worker(), time.monotonic() + 600)
    if seconds is not None:
        worker._executor.pace.saw(seconds)
    claimed: list[str] = []
    count = 120 if seconds is None else 7_200
    while len(claimed) < count:
        claimer._round()
        for _ in range(max(claimed_jobs.waiting // 2, 1)):
            job = claimed_jobs.next()
            claimed.append(job.queue)
            claimed_jobs.end([job])
    assert count * 0.78 < claimed.count("default") < count * 0.88  # 5 of 6
    for end in (pipe, other):
        end.close()
