"""What holds up one ending holds up no other, and every ending is written at last."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.claiming import ClaimedJob
from django_jobs.lifecycle.settling import Ending, Settled
from django_jobs.lifecycle.settling_rows import settle_with_fallback
from django_jobs.models import Job
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.process import settler as module
from django_jobs.worker.process.claimed_jobs import ClaimedJobs
from django_jobs.worker.process.settler import Settler
from django_jobs.worker.statement_timeout import StatementTimedOut
from tests.app.jobs import noop
from tests.factories import another_connection, claim_ready, register_worker
from tests.worker.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 12


@pytest.fixture
def held() -> list[ClaimedJob]:
    noop.enqueue_many([{}] * COUNT)
    return claim_ready(register_worker())


@pytest.fixture
def settler() -> Iterator[Settler]:
    """One that runs. Ended, with all that it was given, when the test ends."""
    slot, claimed_jobs = Scoreboard(1, 64).slots[0], ClaimedJobs()
    made = Settler(
        slot,
        claimed_jobs,
        settled=lambda: None,
        give_up=lambda: False,
        more_waits=lambda: False,
    )
    made.thread.start()
    yield made
    made.finish()
    made.thread.join(60)
    assert not made.thread.is_alive()


def end(settler: Settler, held: Sequence[ClaimedJob]) -> None:
    settler._claimed.add(held)
    for job in held:
        index = settler._slot.start(job.id, job.attempt, job.worker)
        settler.add(Ending(job, Succeeded(), started=time.monotonic()), index)


def test_a_batch_that_is_too_much_for_one_statement_is_written_in_less(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cuts it short, and nobody holds a lock."""

    def write_few(endings: Sequence[Ending]) -> list[Settled]:
        if len(endings) > 2:
            raise StatementTimedOut("statement_timeout")
        return settle_with_fallback(endings)

    monkeypatch.setattr(module, "settle_with_fallback", write_few)
    end(settler, held)
    until(lambda: Job.objects.filter(status="succeeded").count() == COUNT)
    until(lambda: settler._claimed.ended == COUNT)
    assert not settler._claimed


def test_what_was_locked_is_written_once_it_is_free_however_much_else_there_is(
    held: list[ClaimedJob], settler: Settler, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(endings: Sequence[Ending]) -> list[Settled]:
        ids = [ending.job.id for ending in endings]
        if locked.id in ids and not written:
            raise StatementTimedOut("a lock")
        done = settle_with_fallback(endings)
        written.extend(ids)
        if locked.id not in written:
            settler.add(Ending(held[1], Succeeded()), 0)  # there is always more
        return done

    locked = held[0]
    monkeypatch.setattr(module, "settle_with_fallback", write)
    with another_connection() as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked.id])
        end(settler, [locked, held[1]])
        until(lambda: held[1].id in written)
        assert locked.id not in written
        cursor.execute("ROLLBACK")
    until(lambda: locked.id in written)
    assert Job.objects.get(pk=locked.id).status == "succeeded"
