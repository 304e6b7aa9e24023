"""What a claimer holds, and how it lets go of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError
from pytest_django import DjangoAssertNumQueries

from django_jobs import enqueue_many
from django_jobs.domain.gates import Gates
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import claiming
from django_jobs.lifecycle.job_columns import ClaimedJob, Fence
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.settling_rows import give_back_unlocked
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Job
from django_jobs.worker.options import QueueShare
from django_jobs.worker.process import settler
from django_jobs.worker.process.claims import CLAIMED_BYTES
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.app.jobs import noop
from tests.factories import claim_ready
from tests.patience import PATIENCE
from tests.worker.processes import until
from tests.workflows import states, step, steps_of

Make = Callable[..., WorkerProcess]


def end_settler(process: WorkerProcess) -> None:
    process._settler.finish()
    process._settler.thread.join(PATIENCE)
    assert not process._settler.thread.is_alive()


def test_a_job_claimed_again_during_its_return_costs_no_lease(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same worker claims it as the same attempt. Here the answer to its return was lost."""
    noop.enqueue()
    claimer, claimed_jobs, worker = process._claimer, process._claimed, process._slot.worker
    held = claim_ready(worker)
    claimed_jobs.add(held)
    claimed_jobs.lines[0].add(held)
    given, go_on = threading.Event(), threading.Event()

    def give_back(fences: Collection[Fence]) -> set[Fence]:
        left = give_back_unlocked(fences)
        if not given.is_set():
            given.set()
            assert go_on.wait(PATIENCE)
            raise OperationalError("the answer was lost")
        return left

    monkeypatch.setattr(settler, "give_back_unlocked", give_back)
    process._settler.thread.start()
    process._settler.give_back(claimed_jobs.take_unstarted())
    assert given.wait(PATIENCE)
    again = claim_ready(worker)
    claimer._claimed.lines[0].add(claimer._claims.accept(again))
    assert (claimed_jobs.waiting, claimer._stranded_jobs._due_at) == (0, 0.0)
    go_on.set()
    assert claimer._stranded_jobs.give_back_if_due()
    assert not claimed_jobs
    assert not process._slot.lease_lost
    job = Job.objects.get(pk=again[0].id)
    assert (job.status, job.attempt) == ("ready", 0)
    end_settler(process)


def test_claiming_an_attempt_twice_costs_the_lease(process: WorkerProcess) -> None:
    noop.enqueue()
    held = claim_ready(process._slot.worker)
    process._claimed.add(held)
    assert process._claimer._claims.accept(held) == []
    assert process._slot.lease_lost


def test_a_claim_that_fails_costs_no_job_of_the_claim_before(
    make_process: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two queues in one round. The jobs of the first are claimed, so they have to run."""
    for queue in ("default", "bulk"):
        enqueue_many("app.noop", [{}] * 10, queue=queue)
    shares = QueueShare(name="default"), QueueShare(name="bulk")
    worker = make_process(queues=shares)
    claims: list[str] = []

    def claim(queue: str, **options: Any) -> list[ClaimedJob]:
        claims.append(queue)
        if len(claims) == 2:
            raise OperationalError("the server went away")
        return real_claim(queue, **options)

    real_claim = claiming.claim
    monkeypatch.setattr(claiming, "claim", claim)
    pool, _ = worker._claimer._pools  # of threads, and of the loop
    with pytest.raises(OperationalError):
        worker._claimer._round()
    assert len(set(claims)) == 2
    assert (
        len(pool.line) == len(worker._claimed) == Job.objects.filter(status="running").count() == 2
    )


def test_a_burst_asks_for_nothing_while_its_threads_have_enough_to_do(
    make_process: Make, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """The event loop has room all the time. In a drain of 50,000 it polled 160 times, not 7."""
    noop.enqueue_many([{}] * 50)
    process = make_process(burst=True)
    while len(process._claimed) < 4 or process._pools[1].promising:
        process._claimer._round()
    with django_assert_num_queries(0):
        pauses = [process._claimer._round() for _ in range(3)]
    assert min(pauses) > 0.1


@pytest.mark.parametrize("first", [0, 50])
def test_payloads_that_wait_in_a_process_are_bounded_in_bytes(
    make_process: Make, first: int
) -> None:
    """Also in its first claim, and where large ones come behind small ones."""
    enqueue_many("app.write_effect", [{"note": "small"}] * first)
    enqueue_many("app.write_effect", [{"note": "x" * 900_000}] * 60)
    worker = make_process()
    claimer, claimed_jobs = worker._claimer, worker._claimed
    pool, _ = claimer._pools  # of threads, and of the loop
    pool.pace.saw(0.0001)
    assert claimer._claims.room(pool) == 300
    claimed = 0
    while claimed_jobs.bytes < CLAIMED_BYTES // 2 or claimed < first:
        took = claimer._claims.claim(pool, claimer._claims.room(pool))
        assert took
        claimed += took
    assert CLAIMED_BYTES // 2 < claimed_jobs.bytes <= CLAIMED_BYTES
    assert claimer._claims.room(pool) <= 0
    assert pool.promising == {"default"}  # there is more
    while claimed_jobs.waiting:
        ended = pool.line.next()
        assert ended is not None
        claimed_jobs.end([ended])
    assert claimed_jobs.bytes == 0
    assert claimer._claims.claim(pool, claimer._claims.room(pool)) > 0
    assert claimed_jobs.bytes <= CLAIMED_BYTES


@pytest.mark.parametrize("seconds", [0.0001, 0.05, None])
def test_the_weights_of_the_queues_hold_under_load(
    make_process: Make, seconds: float | None
) -> None:
    """Whether claims come by the hundred, by the dozen, or for each free thread."""
    for queue in ("default", "bulk"):
        enqueue_many("app.noop", [{}] * 7_000, queue=queue)
    shares = QueueShare(name="default", weight=5), QueueShare(name="bulk", weight=1)
    worker = make_process(queues=shares)
    claimer, claimed_jobs = worker._claimer, worker._claimed
    pool, _ = claimer._pools  # of threads, and of the loop
    if seconds is not None:
        pool.pace.saw(seconds)
    claimed: list[str] = []
    count = 120 if seconds is None else 7_200
    while len(claimed) < count:
        claimer._round()
        for _ in range(max(claimed_jobs.waiting // 2, 1)):
            job = pool.line.next()
            assert job is not None
            claimed.append(job.queue)
            claimed_jobs.end([job])
    assert count * 0.78 < claimed.count("default") < count * 0.88  # 5 of 6


def test_a_burst_admits_the_step_that_its_last_job_opened(make_process: Make) -> None:
    """Also if no notification of it arrives in time."""
    gates = Gates(tenant="acme", queue="default")
    steps = [replace(one, gates=gates) for one in steps_of({"a": "", "b": "a"})]
    run = start(NewRun(name="chain"), steps)
    process = make_process(burst=True)

    def has_claimed_or_ends() -> bool:
        process._claimer._round()
        return len(process._claimed) > 0 or process._claimer.draining

    for name in "ab":
        until(has_claimed_or_ends)
        for _ in range(5):  # while the job runs
            process._claimer._round()
        assert not process._claimer.draining
        (held,) = process._claimed.take_unstarted()
        assert held.id == step(run, name).pk
        settle([Ending(held, Succeeded())])
        process._claimed.end([held])
    until(has_claimed_or_ends)
    assert process._claimer.draining
    assert set(states(run).values()) == {"succeeded"}
