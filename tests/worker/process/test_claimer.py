"""What a claimer holds, and how it lets go of it."""

from __future__ import annotations

import time
from multiprocessing import Pipe
from typing import Any

import pytest
from django.db import transaction

from django_jobs import cancel, enqueue_many
from django_jobs.lifecycle.claiming import Fence
from django_jobs.lifecycle.settling_rows import give_back_unlocked
from django_jobs.models import Job
from django_jobs.worker.ipc.pipes import MessagePipe
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options, QueueShare
from django_jobs.worker.process import claimer as claimer_module
from django_jobs.worker.process.cancels import Cancels
from django_jobs.worker.process.claimed_jobs import ClaimedJobs
from django_jobs.worker.process.claimer import CLAIMED_BYTES, PREFETCH_SECONDS, Claimer
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.app.jobs import noop
from tests.factories import claim_ready, in_threads, register_worker, run_sql
from tests.worker.processes import until

OPTIONS = Options(queues=(QueueShare(name="default"),))

NO_EXECUTOR: Any = None
"""Of what is asked here, nothing needs one."""


@pytest.mark.django_db(transaction=True)
def test_a_lock_on_one_job_keeps_no_other_from_being_given_back() -> None:
    for _ in range(3):
        noop.enqueue()
    worker = register_worker()
    held = claim_ready(worker)
    slot, claimed_jobs = Scoreboard(1, 4).slots[0], ClaimedJobs()
    slot.register(worker, time.monotonic() + 60)
    claimer = Claimer(OPTIONS, slot, NO_EXECUTOR, claimed_jobs, Cancels(slot))
    claimed_jobs.add(held)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held[1].id])
        (locked,) = in_threads(1, lambda _: claimer.give_back(held))
    assert locked == [held[1]]
    assert [job in claimed_jobs for job in held] == [False, True, False]
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert [statuses[job.id] for job in held] == ["ready", "running", "ready"]
    assert in_threads(1, lambda _: claimer.give_back(locked)) == [[]]
    assert not claimed_jobs


@pytest.mark.django_db(transaction=True)
def test_what_was_not_cancelled_waits_for_no_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads find it while what was cancelled is given back."""
    for _ in range(4):
        noop.enqueue()
    pipe, other = (MessagePipe(end) for end in Pipe())
    worker = WorkerProcess(pipe, Scoreboard(1, 4).slots[0], OPTIONS)
    claimer, waiting = worker._claimer, worker._executor.jobs
    worker._slot.register(register_worker(), time.monotonic() + 60)
    held = claim_ready(worker._slot.worker)
    claimer._hand_over(held)
    assert cancel(held[1].id)
    assert cancel(held[2].id)
    there: list[int] = []

    def give_back(fences: list[Fence]) -> set[Fence]:
        there.append(waiting.qsize())
        return give_back_unlocked(fences)

    monkeypatch.setattr(claimer_module, "give_back_unlocked", give_back)
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held[1].id])
        in_threads(1, lambda _: claimer._drop_cancelled())
    assert there == [2]
    assert worker._executor.take_unstarted() == [held[0], held[3], held[1]]
    for end in (pipe, other):
        end.close()


@pytest.mark.django_db(transaction=True)
def test_what_waits_for_half_a_second_goes_back_but_for_the_next_half_second_of_work() -> None:
    """The first to come stay, in their order."""
    enqueue_many("app.noop", [{}] * 12)
    pipe, other = (MessagePipe(end) for end in Pipe())
    worker = WorkerProcess(pipe, Scoreboard(1, 16).slots[0], OPTIONS)
    claimer, waiting = worker._claimer, worker._executor.jobs
    worker._slot.register(register_worker(), time.monotonic() + 600)
    held = claim_ready(worker._slot.worker)
    claimer._hand_over(held)
    began = time.monotonic()
    worker._executor.pace.saw(0.25)  # of which four threads begin eight in half a second
    claimer._return_hoarded()
    assert waiting.qsize() == 12
    until(lambda: (claimer._return_hoarded(), waiting.qsize() < 12)[1], 10)
    assert time.monotonic() - began >= PREFETCH_SECONDS
    assert Job.objects.filter(status="ready", attempt=0).count() == 4
    assert len(worker._claimed) == 8
    claimer._return_hoarded()
    assert worker._executor.take_unstarted() == held[:8]
    for end in (pipe, other):
        end.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", [0, 50])
def test_payloads_that_wait_in_a_process_are_bounded_in_bytes(first: int) -> None:
    """Also in its first claim, and where large ones come behind small ones."""
    enqueue_many("app.write_effect", [{"note": "small"}] * first)
    enqueue_many("app.write_effect", [{"note": "x" * 900_000}] * 60)
    pipe, other = (MessagePipe(end) for end in Pipe())
    worker = WorkerProcess(pipe, Scoreboard(1, 2048).slots[0], OPTIONS)
    claimer, claimed_jobs, waiting = worker._claimer, worker._claimed, worker._executor.jobs
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
    while not waiting.empty():
        claimed_jobs.end([waiting.get()])
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
    claimer, claimed_jobs, waiting = worker._claimer, worker._claimed, worker._executor.jobs
    worker._slot.register(register_worker(), time.monotonic() + 600)
    if seconds is not None:
        worker._executor.pace.saw(seconds)
    claimed: list[str] = []
    count = 120 if seconds is None else 7_200
    while len(claimed) < count:
        claimer._round()
        for _ in range(max(waiting.qsize() // 2, 1)):
            job = waiting.get()
            claimed.append(job.queue)
            claimed_jobs.end([job])
    assert count * 0.78 < claimed.count("default") < count * 0.88  # 5 of 6
    for end in (pipe, other):
        end.close()
