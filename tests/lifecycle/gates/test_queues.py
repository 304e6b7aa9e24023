"""Lines of several queues share keys and resources: a slot goes to a job that can start."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import Concurrency
from django_jobs.domain.admission import FairShares
from django_jobs.domain.gates import LoneGate
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates import admission, arrivals
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.lifecycle.pausing import give_up_slots_of_closed
from django_jobs.lifecycle.settling import Ending, HandOver, give_back, settle
from django_jobs.models import Job, Queue, Resource, Worker
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.app.jobs import noop
from tests.factories import claim_ready, declared, listening, register_worker, settle_one

pytestmark = pytest.mark.django_db(transaction=True)


def handler(account: str = "k") -> None:
    """What declared types of these tests call."""


def admit(**room: int) -> admission.Admission:
    return admission.admit(room or {"default": 100}, FairShares())


def statuses(*jobs: Job) -> list[str]:
    found = dict(Job.objects.values_list("pk", "status"))
    return [found[job.pk] for job in jobs]


def test_a_paused_queue_takes_no_slot_from_others() -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    operations.pause(["bulk"])
    waiting = [refund_payment.using(queue="bulk").enqueue(number) for number in range(3)]
    other = refund_payment.enqueue(9)
    admit(default=100, bulk=100)
    assert statuses(*waiting, other) == ["blocked"] * 3 + ["ready"]
    operations.resume(["bulk"])
    admit(default=100, bulk=100)
    assert statuses(*waiting) == ["ready", "blocked", "blocked"]


@pytest.mark.parametrize("why", ["paused", "not served"])
def test_jobs_that_became_ready_in_a_closed_queue_give_up_their_slots(why: str) -> None:
    """A worker that drains gives back what it has not started, also in a paused queue."""
    Resource.objects.create(name="stripe", max_concurrency=1)
    worker = register_worker()
    held = refund_payment.using(queue="bulk").enqueue(1)
    other = refund_payment.enqueue(9)
    admit(default=100, bulk=100)
    claimed = claim_ready(worker, queue="bulk")
    if why == "paused":
        register_worker("other", queues=["default", "bulk"])
        operations.pause(["bulk"])
    give_back([(one.id, one.attempt, one.worker) for one in claimed])
    assert statuses(held, other) == ["ready", "blocked"]
    Worker.objects.filter(pk=worker).update(queues=["default"])
    with listening() as notes:
        assert give_up_slots_of_closed() == 1
        assert give_up_slots_of_closed() == 0
    assert notes
    admit(default=100)
    assert statuses(held, other) == ["blocked", "ready"]


def test_jobs_that_are_ready_give_up_their_slots_if_their_queue_is_paused() -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    held = refund_payment.using(queue="bulk").enqueue(1)
    keyed = charge_account.using(queue="bulk").enqueue(7)
    owned = bill_tenant.using(queue="bulk").enqueue("acme")
    plain = noop.using(queue="bulk").enqueue()
    other = refund_payment.enqueue(9)
    admit(default=100, bulk=100)
    gated = held, keyed, owned
    assert statuses(*gated, plain, other) == ["ready"] * 4 + ["blocked"]
    with listening() as notes:
        operations.pause(["bulk"])
        assert ":gates" in notes()
    assert statuses(*gated, plain) == ["blocked"] * 3 + ["ready"]
    admit(default=100, bulk=100)
    assert statuses(other) == ["ready"]


def test_a_settle_hands_nothing_over_in_a_paused_queue() -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    for number in range(2):
        refund_payment.enqueue(number)
    admit()
    held = claim_ready(register_worker())
    operations.pause(["default"])
    hand_over = HandOver()
    settle([Ending(one, Succeeded()) for one in held], hand_over=hand_over)
    assert hand_over.freed
    assert not Job.objects.filter(status="ready").exists()


def test_a_queue_without_a_worker_takes_no_slot_from_others() -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    waiting = [refund_payment.using(queue="bulk").enqueue(number) for number in range(2)]
    other = refund_payment.enqueue(9)
    admit(default=100)
    assert statuses(*waiting, other) == ["blocked", "blocked", "ready"]
    Worker.objects.filter(pk=register_worker()).update(queues=["bulk"])
    assert admit(default=100).queues == {"bulk"}
    assert statuses(*waiting) == ["ready", "blocked"]


@pytest.mark.parametrize("values", [{"rate": 50.0}, {"breaker_failures": 9}, {"retry_budget": 0.5}])
def test_the_head_of_another_queue_holds_up_no_job_that_has_room(values: dict[str, Any]) -> None:
    Resource.objects.create(name="stripe", **values)
    waiting = refund_payment.using(queue="bulk").enqueue(1)
    other = refund_payment.enqueue(9)
    admit(default=1)
    assert statuses(waiting, other) == ["blocked", "ready"]


def test_a_queue_with_a_limit_takes_no_more_slots_than_it_can_start() -> None:
    Resource.objects.create(name="stripe", max_concurrency=5)
    assert Queue.objects.get(name="emails").max_concurrency == 2
    running = noop.using(queue="emails").enqueue()
    claim_ready(register_worker(), "emails", limited=True)
    waiting = [refund_payment.using(queue="emails").enqueue(number) for number in range(4)]
    others = [refund_payment.enqueue(number) for number in range(4)]
    for _ in range(2):
        admit(default=100, emails=100)
        assert statuses(running, *waiting) == ["running", "ready"] + ["blocked"] * 3
        assert statuses(*others) == ["ready"] * 4


def test_arrivals_leave_paused_and_limited_queues_to_an_admission() -> None:
    operations.pause(["bulk"])
    paused = charge_account.using(queue="bulk").enqueue(1)
    limited = charge_account.using(queue="emails").enqueue(2)
    foreign = charge_account.using(queue="strict").enqueue(3)
    found = arrivals.admit_arrivals(LoneGate.KEY, {"default": 10, "bulk": 10, "emails": 10})
    assert (found.queues, found.rest) == (set(), True)
    Job.objects.filter(pk=limited.pk).delete()
    assert not arrivals.admit_arrivals(LoneGate.KEY, {"default": 10, "bulk": 10, "emails": 10}).rest
    assert statuses(paused, foreign) == ["blocked", "blocked"]


def test_one_key_in_two_queues_is_one_key() -> None:
    first = charge_account.enqueue(7)
    second = charge_account.using(queue="bulk").enqueue(7)
    assert arrivals.admit_arrivals(LoneGate.KEY, {"default": 10, "bulk": 10}).rest
    admit(default=100, bulk=100)
    assert statuses(first, second) == ["ready", "blocked"]


def test_the_newest_job_of_a_key_replaces_those_in_other_queues() -> None:
    replacing = Concurrency("k", on_conflict="replace_waiting")
    with declared(handler, name="test.replacing", concurrency=replacing) as job_type:
        jobs = [
            job_type.using(queue=queue).enqueue()
            for queue in ("default", "bulk", "default", "bulk")
        ]
        admit(default=100, bulk=100)
    assert statuses(*jobs) == ["ready", "cancelled", "cancelled", "blocked"]


def test_only_the_lines_that_are_compared_keep_their_slots_free() -> None:
    handed = [charge_account.enqueue(7) for _ in range(2)]
    compared = [charge_account.enqueue(8) for _ in range(2)]
    admit()
    held = claim_ready(register_worker())
    hand_over = HandOver(compared={compared[0].gates or ""})
    settle([Ending(one, Succeeded()) for one in held], hand_over=hand_over)
    assert hand_over.freed
    assert statuses(handed[1], compared[1]) == ["ready", "blocked"]


def test_slots_that_are_compared_go_to_the_best_job_of_all_lines() -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    bulk = [refund_payment.enqueue(number) for number in range(6)]
    admit()
    urgent = refund_payment.using(priority=100, concurrency_key="k").enqueue(9)
    held = claim_ready(register_worker())
    hand_over = HandOver(compares=True)
    settle([Ending(one, Succeeded()) for one in held], hand_over=hand_over)
    assert hand_over.freed
    assert not hand_over.queues
    admit()
    assert statuses(urgent, *bulk[2:]) == ["ready", "ready", "blocked", "blocked", "blocked"]


@pytest.mark.parametrize("job_type", [refund_payment, bill_tenant, charge_account])
def test_a_settle_outside_of_a_worker_wakes_those_who_admit(job_type: Any) -> None:
    """A handler that is settled in its own transaction, or in a child, passes nothing on."""
    Resource.objects.create(name="stripe", max_concurrency=1, breaker_failures=3)
    job_type.enqueue("a")
    admit()
    (held,) = claim_ready(register_worker())
    with listening() as notes:
        settle_one(held, Succeeded())
        assert ":blocked:default" in notes()


def test_the_cancel_of_a_ready_job_wakes_those_who_admit() -> None:
    job = charge_account.enqueue(7)
    admit()
    with listening() as notes:
        operations.cancel([job.pk])
        assert ":gates" in notes()
