"""running -> waiting, unless the signal is there by then."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from django_jobs import cancel
from django_jobs.domain.outcomes import Snoozed
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.promoting import promote
from django_jobs.lifecycle.settling import Ending, HandOver, settle
from django_jobs.models import Job, Resource, Run
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    in_threads,
    listening,
    register_worker,
    run_sql,
    settle_one,
)
from tests.moments import moment
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db

expiring = replace(noop, max_age=500.0)
WAITS = Snoozed(seconds=3600.0, awaits="approval")


def test_a_job_waits_for_its_signal_until_the_time_out() -> None:
    held = enqueue_and_claim()
    with moment() as now:
        settle_one(held, WAITS)
    job = Job.objects.get(pk=held.id)
    assert (job.status, job.awaits, job.failures, job.worker_id) == ("waiting", "approval", 0, None)
    assert job.available_at - timedelta(hours=1) in now
    assert Run.objects.get().outcome == "snoozed"
    assert job.signal("approval")
    (again,) = claim_ready(register_worker())
    assert (again.id, again.attempt) == (held.id, 2)


def test_a_signal_that_came_before_the_settle_makes_the_job_ready() -> None:
    held = enqueue_and_claim()
    assert Job.objects.get(pk=held.id).signal("approval", 7)
    with moment() as now:
        settle_one(held, WAITS)
    job = Job.objects.get(pk=held.id)
    assert (job.status, job.awaits, job.signals) == ("ready", None, {"approval": 7})
    assert job.available_at in now
    assert job.rank == pytest.approx(job.available_at.timestamp(), abs=1e-3)
    assert Run.objects.get().outcome == "snoozed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("gated", [False, True])
def test_a_settle_that_finds_the_signal_wakes_a_worker(gated: bool) -> None:
    Resource.objects.create(name="stripe")
    job = refund_payment.enqueue(7) if gated else noop.enqueue()
    Job.objects.filter(pk=job.pk).update(status="ready")
    (held,) = claim_ready(register_worker())
    assert job.signal("approval")
    handed = HandOver()
    with listening() as notified:
        settle([Ending(held, WAITS)], hand_over=handed)
        assert notified() == ([":blocked:default"] if gated else [])
    assert (handed.queues, handed.freed) == ((set(), True) if gated else ({"default"}, False))


@pytest.mark.django_db(transaction=True)
def test_a_settle_for_another_process_notifies_of_it() -> None:
    held = enqueue_and_claim()
    assert Job.objects.get(pk=held.id).signal("approval")
    with listening() as notified:
        settle([Ending(held, WAITS)])
        assert notified() == ["default"]


def test_another_signal_does_not_end_the_wait() -> None:
    held = enqueue_and_claim()
    assert Job.objects.get(pk=held.id).signal("payment")
    settle_one(held, WAITS)
    assert Job.objects.get(pk=held.id).status == "waiting"


def test_a_job_with_gates_frees_its_slot_and_waits_at_them_after_its_signal() -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    ids = [refund_payment.enqueue(number).pk for number in range(2)]
    run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE id = %s", [ids[0]])
    (held,) = claim_ready(register_worker())
    settle([Ending(held, WAITS)], hand_over=HandOver())
    waits, heir = Job.objects.order_by("pk")
    assert (waits.status, heir.status) == ("waiting", "ready")
    assert waits.signal("approval")
    assert Job.objects.get(pk=ids[0]).status == "blocked"


def test_a_cancel_ends_the_wait() -> None:
    held = enqueue_and_claim()
    settle_one(held, WAITS)
    assert cancel(held.id)
    job = Job.objects.get(pk=held.id)
    assert (job.status, job.awaits) == ("cancelled", None)


def test_a_cancel_that_was_asked_for_wins_over_the_wait() -> None:
    held = enqueue_and_claim()
    job_operations.cancel([held.id])
    settle_one(held, WAITS)
    assert Job.objects.get(pk=held.id).status == "cancelled"


def test_a_wait_without_a_time_out_ends_with_the_max_age_of_its_job() -> None:
    held = enqueue_and_claim(expiring)
    settle_one(held, Snoozed(seconds=float("inf"), awaits="approval"))
    job = Job.objects.get(pk=held.id)
    assert job.status == "waiting"
    assert job.expires_at is not None
    assert 0 <= (job.available_at - job.expires_at).total_seconds() < 60


def test_the_time_out_makes_the_job_ready() -> None:
    held = enqueue_and_claim()
    settle_one(held, Snoozed(seconds=0.0, awaits="approval"))
    assert promote() == (1, {"default"})
    job = Job.objects.get(pk=held.id)
    assert (job.status, job.awaits) == ("ready", None)


@pytest.mark.django_db(transaction=True)
def test_a_signal_during_the_settle_is_never_lost() -> None:
    """A thousand times: whichever of the two locks the row first, the job ends up ready."""
    worker, rounds = register_worker(), 1_000
    noop.enqueue_many([{}] * rounds)
    held = claim_ready(worker, limit=rounds)
    assert len(held) == rounds
    begin = threading.Barrier(2)

    def take_part(number: int) -> None:
        for claimed in held:
            begin.wait(PATIENCE)
            if random.random() < 0.5:
                time.sleep(random.random() / 2_000)
            if number:
                assert Job(pk=claimed.id).signal("approval", claimed.id)
            else:
                settle([Ending(claimed, WAITS)])

    in_threads(2, take_part)
    after = Job.objects.values_list("status", "awaits", "signals", "id")
    assert {row[:2] for row in after} == {("ready", None)}
    assert all(signals == {"approval": id_} for _, _, signals, id_ in after)
