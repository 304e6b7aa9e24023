"""What is claimed for the threads and for the event loop of a process, in how many statements."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs.lifecycle import claiming
from django_jobs.lifecycle.claiming import Slots
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.models import Job
from django_jobs.worker.options import QueueShare
from django_jobs.worker.pools.pool import Pool
from django_jobs.worker.process.claimer import Claimer
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.app.async_jobs import noop_async
from tests.app.jobs import noop

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def claimer(make_process: Callable[..., WorkerProcess]) -> Claimer:
    """That of a process that starts no job. Its plain jobs take a millisecond."""
    queues = QueueShare(name="default"), QueueShare(name="another")
    process = make_process(queues=queues, async_concurrency=100)
    threads, loop = process._claimer._pools
    for pool in (threads, loop):
        pool.promising.discard("another")
    threads.pace.saw(0.001)
    loop.line.on_added = lambda: None
    return process._claimer


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[Slots]:
    """For what each claim was, in their order."""
    found: list[Slots] = []

    def claim(queue: str, **options: Any) -> list[ClaimedJob]:
        found.append(options["slots"])
        return real_claim(queue, **options)

    real_claim = claiming.claim
    monkeypatch.setattr(claiming, "claim", claim)
    return found


def waiting(pool: Pool) -> list[int]:
    return [job.id for job in pool.line.take_unstarted()]


def test_one_statement_claims_for_both_in_the_order_of_the_queue(
    claimer: Claimer, claims: list[Slots]
) -> None:
    plain, on_loop = [], []
    for _ in range(3):
        plain.append(noop.enqueue().pk)
        on_loop.append(noop_async.enqueue().pk)
    claimer._round()
    threads, loop = claimer._pools
    assert claims == [Slots.ANY]
    assert (waiting(threads), waiting(loop)) == (plain, on_loop)
    assert not loop.promising


def test_a_suspect_of_an_async_type_waits_for_a_thread(
    claimer: Claimer, claims: list[Slots]
) -> None:
    suspect = noop_async.enqueue()
    Job.objects.filter(pk=suspect.pk).update(crashes=1)
    claimer._round()
    threads, loop = claimer._pools
    assert (waiting(threads), waiting(loop)) == ([suspect.pk], [])


def test_a_backlog_of_plain_jobs_is_not_read_again_for_the_loop(
    claimer: Claimer, claims: list[Slots]
) -> None:
    noop.enqueue_many([{}] * 2_000)
    last = noop_async.enqueue().pk
    threads, loop = claimer._pools
    while not loop.line:
        claimer._round()
        claimer._claimed.end(threads.line.take_unstarted())
    assert set(claims) == {Slots.ANY}
    assert waiting(loop) == [last]


def test_the_loop_looks_for_itself_once_the_threads_are_full(
    claimer: Claimer, claims: list[Slots], monkeypatch: pytest.MonkeyPatch
) -> None:
    noop.enqueue_many([{}] * 2_000)
    behind = noop_async.enqueue().pk
    threads, loop = claimer._pools
    claimer._round()
    threads.pace.saw(600)
    assert claims == [Slots.ANY]
    while not loop.line:
        claimer._wake_event.wait(claimer._round())
    assert claims[1:] == [Slots.LOOP]
    assert waiting(loop) == [behind]


def test_what_a_busy_loop_has_no_room_for_is_left_to_others(
    claimer: Claimer, claims: list[Slots]
) -> None:
    threads, loop = claimer._pools
    loop.pace.saw(600)
    noop_async.enqueue_many([{}] * 100)
    claimer._round()
    assert len(waiting(loop)) == 100
    noop_async.enqueue_many([{}] * 10)
    plain = noop.enqueue().pk
    for pool in claimer._pools:
        pool.expect(["default"])
    claimer._round()
    assert claims[1:] == [Slots.THREADS]
    assert (waiting(threads), waiting(loop)) == ([plain], [])


def test_a_loop_that_expects_jobs_elsewhere_claims_for_itself(
    claimer: Claimer, claims: list[Slots]
) -> None:
    """Otherwise the threads would decide from which queue it runs jobs."""
    threads, loop = claimer._pools
    noop.enqueue_many([{}] * 10)
    loop.promising.add("another")
    claimer._claims.claim(threads, 10)
    assert claims == [Slots.THREADS]


def test_a_claim_for_both_takes_the_threads_back_to_no_earlier_place(
    claimer: Claimer, claims: list[Slots]
) -> None:
    threads, loop = claimer._pools
    noop_async.enqueue_many([{}] * 400)
    noop.enqueue_many([{}] * 400)
    loop.promising.add("another")
    claimer._claims.claim(threads, 10)
    behind = threads.positions["default"]
    loop.promising.discard("another")
    claimer._claims.claim(threads, 10)
    assert claims == [Slots.THREADS, Slots.ANY]
    assert len(waiting(loop)) == 10
    assert threads.positions["default"] == behind


def test_a_short_rest_of_the_loop_ends_no_long_one(claimer: Claimer, claims: list[Slots]) -> None:
    threads, loop = claimer._pools
    noop.enqueue_many([{}] * 400)
    loop.rest("default", 600)
    claimer._claims.claim(threads, 10)
    assert claims == [Slots.ANY]
    assert loop._rests["default"] > time.monotonic() + 500
