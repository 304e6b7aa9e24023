"""What holds up one ending holds up no other, and every ending is written at last."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import OperationalError

from django_jobs import cancel
from django_jobs.domain.admission import FairShares
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Outcome, Succeeded
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.job_columns import ClaimedJob, Fence
from django_jobs.lifecycle.settling import NO_RESULT, Ending, HandOver, Settled
from django_jobs.lifecycle.settling_rows import give_back_unlocked, settle_with_fallback
from django_jobs.models import Job
from django_jobs.models.database import fetch
from django_jobs.signals import job_finished, worker_event
from django_jobs.worker.ipc.scoreboard import Scoreboard, StartedJob
from django_jobs.worker.pools.claimed_jobs import ClaimedJobs
from django_jobs.worker.process import settler as module
from django_jobs.worker.process.settler import Settler
from django_jobs.worker.statement_timeout import StatementTimedOut, StatementTimeout
from tests.app.gate_jobs import charge_account
from tests.app.jobs import noop
from tests.factories import (
    another_connection,
    claim_ready,
    end_own_session,
    open_elsewhere,
    register_worker,
)
from tests.patience import PATIENCE
from tests.worker.processes import until
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 12


@pytest.fixture
def held() -> list[ClaimedJob]:
    noop.enqueue_many([{}] * COUNT)
    return claim_ready(register_worker())


@pytest.fixture
def settler(held: list[ClaimedJob]) -> Iterator[Settler]:
    """One that runs. Ended, with all that it was given, when the test ends."""
    slot, claimed_jobs = Scoreboard(1).slots[0], ClaimedJobs()
    claimed_jobs.new_line()
    slot.register(held[0].worker, time.monotonic() + 600)
    made = Settler(slot, claimed_jobs)
    made.thread.start()
    yield made
    made.finish()
    made.thread.join(PATIENCE)
    assert not made.thread.is_alive()


def end(settler: Settler, held: Sequence[ClaimedJob], outcome: Outcome = NO_RESULT) -> None:
    settler._claimed.add(held)
    settler._claimed.lines[0].add(held)
    for job in settler._claimed.take_unstarted():
        entry = settler._slot.start(job.id, job.attempt, job.worker)
        settler.add(Ending(job, outcome, started=time.monotonic()), entry)


def test_a_batch_too_large_for_one_statement_is_split(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cuts it short, and nobody holds a lock."""

    def write_few(endings: Sequence[Ending], *rest: HandOver) -> list[Settled]:
        if len(endings) > 2:
            raise StatementTimedOut("statement_timeout")
        return settle_with_fallback(endings, *rest)

    monkeypatch.setattr(module, "settle_with_fallback", write_few)
    end(settler, held)
    until(lambda: Job.objects.filter(status="succeeded").count() == COUNT)
    until(lambda: settler._claimed.ended == COUNT)
    assert not settler._claimed


def test_a_locked_row_is_settled_once_free_under_any_load(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(endings: Sequence[Ending], *rest: HandOver) -> list[Settled]:
        ids = [ending.job.id for ending in endings]
        if locked.id in ids and not written:
            raise StatementTimedOut("a lock")
        done = settle_with_fallback(endings, *rest)
        written.extend(ids)
        if locked.id not in written:
            settler.add(Ending(held[1], Succeeded()), StartedJob())  # there is always more
        return done

    locked = held[0]
    monkeypatch.setattr(module, "settle_with_fallback", write)
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked.id]):
        end(settler, [locked, held[1]])
        until(lambda: held[1].id in written)
        assert locked.id not in written
    until(lambda: locked.id in written)
    assert Job.objects.get(pk=locked.id).status == "succeeded"


def settled_by(deadline: StatementTimeout) -> int:
    deadline.enforce()  # as the main thread of a worker does
    return Job.objects.filter(status="scheduled").count()


def test_a_retry_waits_for_no_key_that_an_open_transaction_holds(settler: Settler) -> None:
    """It stays in its queue, and delays no other ending."""
    settler.deadline = StatementTimeout(0.3)
    keyed = noop.using(idempotency_key="k").enqueue()
    noop.enqueue()
    held = claim_ready(register_worker())
    outcome = Failed(error=ErrorReport.plain("Retry", "busy"), queue="bulk")
    with open_elsewhere(
        "INSERT INTO django_jobs_job (queue, idempotency_key, job_type, payload,"
        " payload_version, status, priority, rank, available_at, max_attempts, max_crashes,"
        " headers, created_at)"
        " VALUES ('bulk', 'k', 'app.noop', '{}', 1, 'ready', 0, 0, now(), 5, 3, '{}', now())"
    ):
        end(settler, held, outcome)
        until(lambda: settled_by(settler.deadline) == len(held) > 1)
    job = Job.objects.get(pk=keyed.pk)
    assert (job.queue, job.idempotency_key) == ("default", "k")
    assert "its idempotency key may be held there" in job.last_error


def test_a_locked_job_delays_no_other_give_back(held: list[ClaimedJob], settler: Settler) -> None:
    claimed_jobs = settler._claimed
    claimed_jobs.add(held)
    claimed_jobs.lines[0].add(held)
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held[1].id]):
        settler.give_back(claimed_jobs.take_unstarted())
        until(lambda: len(claimed_jobs) == 1)
        assert held[1] in claimed_jobs
        ready = Job.objects.filter(status="ready").values_list("pk", flat=True)
        assert {*ready} == {job.id for job in held} - {held[1].id}
    until(lambda: not claimed_jobs)
    assert not Job.objects.exclude(status="ready").exists()


def test_a_job_without_a_cancel_waits_for_no_round_trip(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads find it while what was cancelled is given back."""
    there: list[int] = []

    def give_back(fences: Collection[Fence]) -> set[Fence]:
        there.append(settler._claimed.waiting)
        return give_back_unlocked(fences)

    monkeypatch.setattr(module, "give_back_unlocked", give_back)
    for job in held[1:3]:
        assert cancel(job.id)
    settler._claimed.add(held)
    settler._claimed.lines[0].add(held)
    settler.look_soon()
    until(lambda: Job.objects.filter(status="cancelled").count() == 2)
    until(lambda: len(settler._claimed) == COUNT - 2)
    assert there == [COUNT - 2]
    waiting = settler._claimed.take_unstarted()
    assert waiting == [held[0], *held[3:]]
    settler.give_back(waiting)


def test_unstarted_jobs_are_left_to_the_reaper_once_the_lease_is_lost(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fences: Collection[Fence]) -> set[Fence]:
        raise OperationalError("the server is away")

    monkeypatch.setattr(module, "give_back_unlocked", fail)
    settler._claimed.add(held)
    settler._claimed.lines[0].add(held)
    settler._slot.lose_lease(held[0].worker)
    settler.give_back(settler._claimed.take_unstarted())
    until(lambda: not settler._claimed)
    assert Job.objects.filter(status="running").count() == COUNT


def test_an_error_on_its_connection_is_raised_in_the_caller(settler: Settler) -> None:
    def fail() -> None:
        raise ValueError("of the one who asked")

    with pytest.raises(ValueError, match="of the one who asked"):
        settler.submit(fail).result(PATIENCE)
    assert settler.submit(lambda: "still there").result(PATIENCE) == "still there"


def test_unstarted_jobs_are_dropped_in_an_outage_longer_than_the_lease(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain waits for it, and the settler waits for the database."""

    def refuse(*_: object) -> set[Fence]:
        pings.append(1)
        raise OperationalError("the server is away")

    pings: list[int] = []
    for name in ("ping", "give_back_unlocked"):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(module, "has_news", lambda connection: True)
    settler._claimed.add(held)
    settler._claimed.lines[0].add(held)
    until(lambda: pings, what="it waits for the database")
    settler.give_back(settler._claimed.take_unstarted())
    settler._slot.renewed(held[0].worker, time.monotonic())
    until(lambda: not settler._claimed)


def test_a_receiver_finds_its_other_database_again_after_an_outage(
    held: list[ClaimedJob], settler: Settler, other_database: str
) -> None:
    sessions: list[int] = []

    def export(**keywords: object) -> None:
        sessions.append(end_own_session(other_database))

    job_finished.connect(export)
    try:
        while len(sessions) < 2:
            end(settler, [held.pop()])
            until(lambda: settler._claimed.ended == COUNT - len(held))
    finally:
        job_finished.disconnect(export)
    # A job is let go before its signals are sent, so a third one may have ended meanwhile.
    assert len(set(sessions)) == len(sessions)


def test_the_slots_of_each_line_are_compared_once_a_second_whatever_else_ends(
    settler: Settler,
) -> None:
    register = register_worker()
    for account in range(3):
        charge_account.enqueue(account)
    admit({"default": 10}, FairShares())
    first, second, other = (Ending(job, NO_RESULT) for job in claim_ready(register))
    assert settler._compared([first, second]) == set()
    settler._compared_at = {gates: at - 1.0 for gates, at in settler._compared_at.items()}
    assert settler._compared([other]) == set()  # it has just been seen
    assert settler._compared([first]) == {first.job.gates}
    assert settler._compared([first]) == set()
    assert settler._compared([second, other]) == {second.job.gates}


@contextmanager
def locked_run(worker: int) -> Iterator[list[ClaimedJob]]:
    """Two steps that run, each the last of its own run, which another session has locked."""
    runs = [start_graph({"a": ""}).pk for _ in range(2)]
    steps = claim_ready(worker)
    with open_elsewhere(
        "SELECT 1 FROM django_jobs_workflowrun WHERE id = ANY(%s) FOR UPDATE", [runs]
    ):
        yield steps


def test_a_locked_run_delays_no_give_back_but_those_of_its_steps(
    held: list[ClaimedJob], settler: Settler
) -> None:
    settler.deadline = StatementTimeout(0.3)

    def ready() -> int:
        settler.deadline.enforce()
        return Job.objects.filter(pk__in=[job.id for job in held], status="ready").count()

    with locked_run(held[0].worker) as steps:
        for step in steps:
            assert cancel(step.id)
        settler._claimed.add([*steps, *held])
        settler.give_back([*steps, *held])
        until(lambda: ready() == COUNT)
        assert Job.objects.filter(status="running").count() == len(steps) == 2
    until(lambda: not settler._claimed)
    assert Job.objects.filter(status="cancelled").count() == 2


def test_a_locked_run_delays_no_ending_but_those_of_its_steps(
    held: list[ClaimedJob], settler: Settler
) -> None:
    settler.deadline = StatementTimeout(0.3)

    def settled() -> int:
        settler.deadline.enforce()
        return Job.objects.filter(pk__in=[job.id for job in held], status="succeeded").count()

    with locked_run(held[0].worker) as steps:
        end(settler, [*steps, *held])
        until(lambda: settled() == COUNT)
        assert Job.objects.filter(status="running").count() == len(steps) == 2
    until(lambda: settler._claimed.ended == COUNT + 2)
    assert not Job.objects.exclude(status="succeeded").exists()


@pytest.mark.parametrize("what", ["row", "run", "table", "size"])
def test_it_says_whether_a_lock_or_its_size_holds_an_ending_up(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    settler.deadline = StatementTimeout(0.3)
    alone, free = threading.Event(), threading.Event()

    def write(endings: Sequence[Ending], handed: HandOver, lock_seconds: Any) -> list[Settled]:
        if lock_seconds is not None:
            alone.set()
        if what == "size" and not free.is_set():
            fetch("SELECT pg_sleep(3600)", {})
        return settle_with_fallback(endings, handed, lock_seconds)

    def enforced() -> bool:
        # What waits for a lock alone is ended by PostgreSQL, however late this thread looks.
        if what == "size" or free.is_set() or not alone.is_set():
            settler.deadline.enforce()
        return bool(reasons)

    def note(sender: str, fields: dict[str, Any], **rest: Any) -> None:
        if sender == "settle_blocked":
            reasons.append(fields["reason"])

    def ended() -> bool:
        settler.deadline.enforce()
        return settler._claimed.ended == len(ending)

    reasons: list[str] = []
    monkeypatch.setattr(module, "settle_with_fallback", write)
    worker_event.connect(note)
    ending = held[:1]
    with ExitStack() as stack:
        stack.callback(worker_event.disconnect, note)
        if what == "run":
            ending = stack.enter_context(locked_run(held[0].worker))
        elif what != "size":
            cursor = stack.enter_context(stack.enter_context(another_connection()).cursor())
            cursor.execute("BEGIN")
            cursor.execute(
                f"SELECT 1 FROM django_jobs_job WHERE id = {held[0].id} FOR UPDATE"
                if what == "row"
                else "LOCK TABLE django_jobs_run IN SHARE MODE"
            )
            stack.callback(cursor.execute, "ROLLBACK")
        end(settler, ending)
        until(enforced)
    free.set()
    until(ended)
    expected = "it takes longer than 0.3 s" if what == "size" else "another session holds a lock"
    assert reasons[0] == expected


def test_a_batch_has_a_bound_in_bytes_of_results(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    may_write = threading.Event()

    def write(endings: Sequence[Ending], *rest: Any) -> list[Settled]:
        assert may_write.wait(PATIENCE)
        written.append(len(endings))
        return settle_with_fallback(endings, *rest)

    monkeypatch.setattr(module, "settle_with_fallback", write)
    monkeypatch.setattr(module, "BATCH_BYTES", 300_000)
    end(settler, held[:1])
    until(lambda: not settler._pending)  # it is being written
    end(settler, held[1:], Succeeded(result=f'"{"x" * 99_998}"'))
    assert settler._claimed.bytes == 1_100_000
    may_write.set()
    until(lambda: settler._claimed.ended == COUNT)
    assert written == [1, 3, 3, 3, 2]
    assert settler._claimed.bytes == 0
    assert Job.objects.filter(status="succeeded").count() == COUNT
