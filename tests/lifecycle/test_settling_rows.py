"""A row that cannot be settled holds up no other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import transaction

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Lost, Outcome, Succeeded
from django_jobs.lifecycle import reaping, settling_rows
from django_jobs.lifecycle.claiming import claimed_by
from django_jobs.lifecycle.job_columns import ClaimedJob, Fence
from django_jobs.lifecycle.settling import Ending
from django_jobs.lifecycle.settling_rows import (
    give_back_row_by_row,
    give_back_unlocked,
    locked_by_others,
    settle_row_by_row,
    settle_with_fallback,
)
from django_jobs.models import Job, Run, Worker
from tests.factories import claim_ready, in_threads, register_worker, run_sql
from tests.triggers import refused

pytestmark = pytest.mark.django_db

SPOILT = [
    "UPDATE django_jobs_job SET available_at = 'infinity' WHERE id = %s",
    "UPDATE django_jobs_job SET crashes = 32767 WHERE id = %s",
    "UPDATE django_jobs_job SET claimed_at = NULL WHERE id = %s",
    "INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at, finished_at,"
    " error_type, error_message, traceback, fingerprint)"
    " VALUES (%s, 1, 'failed', now(), now(), now(), '', '', '', '')",
]


def three_held() -> tuple[int, list[ClaimedJob]]:
    enqueue_many("app.noop", [{}] * 3)
    worker = register_worker()
    return worker, claim_ready(worker)


def forget(worker: int) -> None:
    run_sql("UPDATE django_jobs_worker SET status = 'lost' WHERE id = %s", [worker])


def statuses(held: Sequence[ClaimedJob]) -> list[str]:
    found = dict(Job.objects.values_list("pk", "status"))
    return [found[one.id] for one in held]


@pytest.mark.parametrize("spoil", SPOILT)
def test_reaping_ends_an_unreadable_row_and_settles_the_rest(spoil: str) -> None:
    worker, held = three_held()
    run_sql(spoil, [held[1].id])
    forget(worker)
    assert len(reaping.reap()) == 3
    assert statuses(held) == ["ready", "dead", "ready"]
    dead = Job.objects.get(pk=held[1].id)
    assert dead.reason.startswith("its end could not be written: ")
    assert "\n" not in dead.reason
    assert Run.objects.filter(job=dead, attempt=1).count() == 1
    assert reaping.reap() == []


@pytest.mark.parametrize("spoil", SPOILT)
def test_recovery_ends_an_unreadable_row_and_settles_the_rest(spoil: str) -> None:
    worker, held = three_held()
    run_sql(spoil, [held[0].id])
    outcomes: dict[Fence, Outcome] = {one.fence: Lost(reason="SIGSEGV") for one in held[:2]}
    settled = reaping.recover_process(worker, outcomes, reason="SIGSEGV")
    assert {one.ending.job.id: str(one.decision.status) for one in settled if one.decision} == {
        held[0].id: "dead",
        held[1].id: "ready",
    }
    assert statuses(held) == ["dead", "ready", "ready"]
    assert Worker.objects.get().status == "lost"


def test_a_job_that_cannot_be_given_back_is_left_for_the_next_sweep() -> None:
    worker, held = three_held()
    run_sql("UPDATE django_jobs_job SET attempt = 0 WHERE id = %s", [held[1].id])
    assert reaping.recover_process(worker, {}, reason="SIGKILL") == []
    assert statuses(held) == ["ready", "running", "ready"]
    assert len(reaping.reap()) == 1
    assert statuses(held) == ["ready", "ready", "ready"]


def test_a_row_that_cannot_even_be_ended_is_left_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, held = three_held()
    run_sql(SPOILT[0], [held[1].id])
    forget(worker)
    monkeypatch.setattr(settling_rows, "END_UNSETTLEABLE", "SELECT 1 / 0 WHERE 1 = %(id)s OR true")
    assert len(reaping.reap()) == 2
    assert statuses(held) == ["ready", "running", "ready"]
    assert f"event=unsettleable job_id={held[1].id} attempt=1" in caplog.text


def test_an_unreadable_row_of_another_attempt_is_not_touched() -> None:
    worker, held = three_held()
    run_sql(SPOILT[0], [held[0].id])
    (spoilt, *_) = claimed_by(worker)
    run_sql("UPDATE django_jobs_job SET attempt = 2 WHERE id = %s", [spoilt.id])
    (settled,) = settle_row_by_row([Ending(spoilt, Succeeded())])
    assert settled.decision is None
    assert statuses(held)[0] == "running"
    give_back_row_by_row([])


@pytest.mark.django_db(transaction=True)
def test_locked_rows_are_returned_without_waiting() -> None:
    _, held = three_held()
    fences = [job.fence for job in held]
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held[0].id])
        ids = [job.id for job in held]
        assert in_threads(1, lambda _: locked_by_others([*ids, -1])) == [{held[0].id}]
        assert in_threads(1, lambda _: give_back_unlocked(fences)) == [{held[0].fence}]
    assert statuses(held) == ["running", "ready", "ready"]
    assert locked_by_others(ids) == set()
    assert give_back_unlocked(fences) == set()
    assert statuses(held) == ["ready"] * 3


@pytest.mark.django_db(transaction=True)
def test_reaping_and_recovery_do_not_wait_for_a_locked_row() -> None:
    worker, held = three_held()
    with transaction.atomic():
        run_sql("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held[0].id])
        outcomes: dict[Fence, Outcome] = {one.fence: Lost(reason="SIGSEGV") for one in held[:2]}
        recover_process = lambda _: reaping.recover_process(worker, outcomes, reason="SIGSEGV")  # noqa: E731
        (settled,) = in_threads(1, recover_process)
        assert [one.ending.job.id for one in settled] == [held[1].id]
        assert in_threads(1, lambda _: reaping.reap()) == [[]]
    assert statuses(held) == ["running", "ready", "ready"]
    assert len(reaping.reap()) == 1
    assert statuses(held) == ["ready", "ready", "ready"]


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_end_a_trigger_refuses_ends_dead_and_delays_no_other() -> None:
    _, held = three_held()
    endings = [Ending(job, Succeeded()) for job in held]
    with refused(f"NEW.id = {held[1].id} AND NEW.status = 'succeeded'"):
        assert len(settle_with_fallback(endings)) == 3
    assert statuses(held) == ["succeeded", "dead", "succeeded"]
    assert Job.objects.get(pk=held[1].id).reason.endswith("not on Sundays")


@pytest.mark.django_db(transaction=True)
def test_a_lost_job_that_a_trigger_lets_nobody_change_delays_no_other() -> None:
    worker, held = three_held()
    forget(worker)
    with refused(f"NEW.id = {held[1].id}"):
        assert len(reaping.reap()) == 2
        assert statuses(held) == ["ready", "running", "ready"]
    assert len(reaping.reap()) == 1


@pytest.mark.django_db(transaction=True)
def test_a_give_back_that_a_trigger_refuses_delays_no_other() -> None:
    _, held = three_held()
    with refused(f"NEW.id = {held[1].id}"):
        assert give_back_unlocked([job.fence for job in held]) == set()
    assert statuses(held) == ["ready", "running", "ready"]
