"""What lost workers held is settled, once, by whoever comes first."""

from __future__ import annotations

import pytest
from django.db import transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs import enqueue_many, registry
from django_jobs.domain.outcomes import Lost, Outcome, Released, Succeeded
from django_jobs.domain.workflows import SLEEP, WAIT
from django_jobs.lifecycle import reaping
from django_jobs.lifecycle.job_columns import Fence
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job, Run, Worker
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    in_threads,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db


def expire(worker: int) -> None:
    """As if no heartbeat had come for a lease."""
    run_sql(
        "UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s' WHERE id = %s",
        [worker],
    )


def fragile() -> None: ...


def test_a_sweep_with_nothing_to_do_is_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    enqueue_and_claim()
    with django_assert_num_queries(1):
        assert reaping.reap() == []


def test_a_worker_in_its_lease_is_left_alone() -> None:
    enqueue_and_claim()
    assert reaping.reap() == []
    assert Job.objects.get().status == "running"


def test_jobs_of_an_expired_worker_are_lost_and_ready_again() -> None:
    held = enqueue_and_claim()
    expire(held.worker)
    (settled,) = reaping.reap()
    assert settled.decision is not None
    job, run, worker = Job.objects.get(), Run.objects.get(), Worker.objects.get()
    assert (job.status, job.crashes, job.failures) == ("ready", 1, 0)
    assert (run.outcome, run.worker_id, run.error_type) == ("lost", held.worker, "WorkerLost")
    assert "stopped renewing its lease" in run.error_message
    assert (worker.status, worker.stop_reason) == ("lost", "its lease ran out")
    assert claim_ready(register_worker())[0].attempt == 2


def test_jobs_of_a_worker_with_a_deleted_row_are_found() -> None:
    held = enqueue_and_claim()
    Worker.objects.all().delete()
    assert len(reaping.reap()) == 1
    assert Job.objects.get().status == "ready"
    assert Run.objects.get().worker_id == held.worker


def test_jobs_left_by_a_stopped_worker_are_found() -> None:
    held = enqueue_and_claim()
    run_sql("UPDATE django_jobs_worker SET status = 'stopped' WHERE id = %s", [held.worker])
    assert len(reaping.reap()) == 1


def test_a_job_that_loses_its_workers_three_times_is_dead() -> None:
    for _ in range(3):
        held = enqueue_and_claim(idempotency_key="pill")
        expire(held.worker)
        reaping.reap()
    job = Job.objects.get()
    assert (job.status, job.attempt, job.crashes) == ("dead", 3, 3)
    assert job.reason.startswith("crashed 3 times")
    assert Run.objects.filter(outcome="lost").count() == 3


@pytest.mark.parametrize(("name", "argument"), [(WAIT, "approval"), (SLEEP, 60.0)])
def test_a_step_that_waits_outlives_the_loss_of_all_its_workers(
    name: str, argument: object
) -> None:
    """It runs nothing of the project, so it is never the cause."""
    for _ in range(5):
        held = enqueue_and_claim(registry.get(name), argument, idempotency_key="step")
        expire(held.worker)
        reaping.reap()
    job = Job.objects.get()
    assert (job.status, job.crashes) == ("ready", 5)


def test_a_job_type_that_may_crash_once_only_is_dead_at_once() -> None:
    with declared(fragile, name="app.fragile", max_crashes=1) as job_type:
        held = enqueue_and_claim(job_type)
        expire(held.worker)
        reaping.reap()
    assert Job.objects.get().reason.startswith("crashed once")


def test_a_lost_job_with_a_cancel_request_is_cancelled() -> None:
    held = enqueue_and_claim()
    job_operations.cancel([held.id])
    expire(held.worker)
    reaping.reap()
    assert Job.objects.get().status == "cancelled"


def test_jobs_of_types_that_this_process_does_not_know_are_settled_too() -> None:
    with declared(fragile, name="app.fragile") as job_type:
        held = enqueue_and_claim(job_type)
    expire(held.worker)
    assert len(reaping.reap()) == 1
    assert Job.objects.get().status == "ready"


def test_a_large_claim_is_made_in_batches() -> None:
    enqueue_many("app.noop", [{}] * (reaping.BATCH + 10))
    worker = register_worker()
    claim_ready(worker, limit=reaping.BATCH + 10)
    expire(worker)
    assert [len(reaping.reap()) for _ in range(3)] == [reaping.BATCH, 10, 0]


@pytest.mark.django_db(transaction=True)
def test_many_reapers_at_once_settle_each_job_once() -> None:
    enqueue_many("app.noop", [{}] * 60)
    for number in range(6):
        worker = register_worker(f"w{number}")
        claim_ready(worker, limit=10)
        expire(worker)
    hauls = in_threads(6, lambda _: len(reaping.reap()))
    hauls.append(len(reaping.reap()))
    assert sum(hauls) == 60
    assert Run.objects.count() == 60
    assert not Job.objects.exclude(status="ready", crashes=1).exists()


@pytest.mark.django_db(transaction=True)
def test_a_reaper_and_a_late_settle_never_both_write() -> None:
    for _ in range(15):
        held = enqueue_and_claim()
        expire(held.worker)

        def race(number: int) -> bool:
            if number:
                return bool(reaping.reap())
            return settle_one(held, Succeeded()).decision is not None  # noqa: B023

        settled, reaped = in_threads(2, race)
        job = Job.objects.get(pk=held.id)
        assert settled != reaped
        assert job.status == ("succeeded" if settled else "ready")
        assert Run.objects.get(job=job).outcome == ("succeeded" if settled else "lost")
        if reaped:
            job_operations.cancel([held.id])


@pytest.mark.django_db(transaction=True)
def test_a_reaper_does_not_wait_for_a_running_settle() -> None:
    held = enqueue_and_claim()
    expire(held.worker)
    with transaction.atomic():
        settle([Ending(held, Succeeded())])
        assert in_threads(1, lambda _: reaping.reap()) == [[]]
    assert Job.objects.get().status == "succeeded"


def test_recovery_settles_started_jobs_and_gives_back_the_rest() -> None:
    enqueue_many("app.noop", [{}] * 3)
    worker = register_worker()
    held = claim_ready(worker)
    outcomes: dict[Fence, Outcome] = {held[0].fence: Lost(reason="SIGSEGV")}
    (settled,) = reaping.recover_process(worker, outcomes, reason="SIGSEGV")
    assert settled.ending.job.id == held[0].id
    assert list(Run.objects.values_list("job_id", "outcome")) == [(held[0].id, "lost")]
    untouched = Job.objects.exclude(pk=held[0].id)
    assert set(untouched.values_list("status", "attempt", "crashes")) == {("ready", 0, 0)}
    row = Worker.objects.get()
    assert (row.status, row.stop_reason) == ("lost", "SIGSEGV")


def test_the_end_of_an_earlier_attempt_does_not_settle_a_prefetched_one() -> None:
    """The place of the first on the scoreboard may still name it."""
    noop.enqueue()
    worker = register_worker()
    (first,) = claim_ready(worker)
    settle_one(first, Released())
    (again,) = claim_ready(worker)
    outcomes: dict[Fence, Outcome] = {first.fence: Lost(reason="SIGSEGV")}
    assert reaping.recover_process(worker, outcomes, reason="SIGSEGV") == []
    job = Job.objects.get()
    assert (job.status, job.attempt, job.crashes) == ("ready", again.attempt - 1, 0)
    assert list(Run.objects.values_list("attempt", "outcome")) == [(1, "released")]


def test_recovering_an_idle_worker_closes_its_row() -> None:
    noop.enqueue()
    worker = register_worker()
    assert reaping.recover_process(worker, {}, reason="drained", status="stopped") == []
    assert Worker.objects.get().status == "stopped"
    assert Job.objects.get().status == "ready"
