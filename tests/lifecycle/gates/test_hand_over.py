"""A settle hands the slots of ended jobs over to the jobs that wait for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import Concurrency
from django_jobs.domain.admission import FairShares
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Lost, Outcome, Released, Snoozed, Succeeded
from django_jobs.lifecycle import settling
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.settling import Ending, HandOver, settle
from django_jobs.models import Job, Resource
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    declared,
    in_threads,
    open_elsewhere,
    register_worker,
)

pytestmark = pytest.mark.django_db


def run() -> None:
    """What declared types of these tests call."""


FAILED = Failed(error=ErrorReport.plain("Error", "no"))


def settled(outcome: Outcome) -> HandOver:
    """End the jobs that are ready now."""
    admit({"default": 100}, FairShares())
    held = claim_ready(register_worker())
    hand_over = HandOver()
    settle([Ending(one, outcome) for one in held], hand_over=hand_over)
    return hand_over


def ready() -> list[int]:
    return list(Job.objects.filter(status="ready").order_by("id").values_list("pk", flat=True))


@pytest.mark.parametrize("outcome", [Succeeded(), FAILED, Snoozed(seconds=60)])
def test_the_best_job_of_the_line_gets_the_slot(outcome: Outcome) -> None:
    charge_account.enqueue(7)
    charge_account.enqueue(7)
    best = charge_account.using(priority=5).enqueue(7)
    other = charge_account.enqueue(8)
    charge_account.enqueue(8)
    first = Job.objects.earliest("id")
    Job.objects.filter(pk=best.pk).update(rank=first.rank + 1e-6)
    hand_over = settled(outcome)
    assert best.pk in ready()
    assert len(ready()) == 2
    assert hand_over.queues == {"default"}
    assert not hand_over.freed
    assert Job.objects.get(pk=other.pk).status != "ready"


@pytest.mark.parametrize("outcome", [Released(), Lost(reason="gone")])
def test_a_job_that_is_ready_again_keeps_its_slot(outcome: Outcome) -> None:
    first = charge_account.enqueue(7)
    charge_account.enqueue(7)
    hand_over = settled(outcome)
    assert ready() == [first.pk]
    assert not hand_over.queues


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_is_skipped() -> None:
    ended, locked, free = (charge_account.enqueue(7).pk for _ in range(3))
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked]):
        in_threads(1, lambda _: settled(Succeeded()))
    assert Job.objects.get(pk=ended).status == "succeeded"
    assert ready() == [free]


def test_the_slots_of_a_resource_pass_on_unless_more_jobs_use_it_than_may() -> None:
    row = Resource.objects.create(name="stripe", max_concurrency=2)
    for number in range(6):
        refund_payment.enqueue(number)
    settled(Succeeded())
    assert len(ready()) == 2
    Resource.objects.filter(pk=row.pk).update(max_concurrency=1)
    hand_over = settled(Succeeded())
    assert hand_over.freed
    assert not ready()


@pytest.mark.parametrize(
    "values",
    [
        {"rate": 5.0},
        {"breaker_failures": 3},
        {"paused_at": "2026-01-01T00:00Z", "max_concurrency": 9},
    ],
)
def test_a_resource_with_more_than_slots_hands_nothing_over(values: dict[str, object]) -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    refund_payment.enqueue(1)
    refund_payment.enqueue(2)
    admit({"default": 100}, FairShares())
    held = claim_ready(register_worker())
    Resource.objects.update(**values)
    hand_over = HandOver()
    settle([Ending(one, Succeeded()) for one in held], hand_over=hand_over)
    assert not ready()
    assert hand_over.freed


def test_a_settle_of_tenants_does_not_look_for_heirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its statement is that of jobs without gates."""
    monkeypatch.setattr(settling, "SETTLE_FEW_AND_HAND_OVER", "SELECT fails")
    bill_tenant.enqueue("a")
    assert settled(Succeeded()).freed


def test_tenants_take_turns_and_hand_nothing_over() -> None:
    bill_tenant.enqueue("a")
    bill_tenant.enqueue("a")
    admit({"default": 1}, FairShares())
    held = claim_ready(register_worker())
    hand_over = HandOver()
    settle([Ending(one, Succeeded()) for one in held], hand_over=hand_over)
    assert not ready()
    assert hand_over.freed


def test_a_quarantined_job_gets_no_slot() -> None:
    charge_account.enqueue(7)
    admit({"default": 100}, FairShares())
    held = claim_ready(register_worker())
    charge_account.enqueue(7)
    quarantines.quarantine(charge_account.name)
    settle([Ending(one, Succeeded()) for one in held])
    assert not ready()


def test_a_job_that_goes_on_in_another_queue_gives_its_slot_to_its_old_line() -> None:
    charge_account.enqueue(7)
    waiting = charge_account.enqueue(7)
    charge_account.using(queue="bulk").enqueue(7)
    hand_over = settled(replace(FAILED, queue="bulk", retry_after=600.0))
    assert hand_over.freed
    assert not ready()
    admit({"default": 100}, FairShares())
    assert ready() == [waiting.pk]


@pytest.mark.parametrize("policy", ["discard", "cancel_running", "replace_waiting"])
def test_no_slot_passes_to_a_job_that_may_be_one_too_many(policy: str) -> None:
    with declared(run, name="conflicting", concurrency=Concurrency("k", on_conflict=policy)) as one:
        one.enqueue()
        admit({"default": 100}, FairShares())
        held = claim_ready(register_worker())
        one.enqueue()
        one.enqueue()
        hand_over = HandOver()
        settle([Ending(each, Succeeded()) for each in held], hand_over=hand_over)
    assert hand_over.freed
    assert not ready()


def test_a_slot_without_an_heir_is_noted_beside_one_that_was_handed_over() -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    refund_payment.enqueue(1)
    charge_account.enqueue(7)
    charge_account.enqueue(7)
    hand_over = settled(Succeeded())
    assert hand_over.queues == {"default"}
    assert hand_over.freed


def test_a_settle_with_gates_is_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    charge_account.enqueue(7)
    charge_account.enqueue(7)
    noop.enqueue()
    admit({"default": 100}, FairShares())
    held = claim_ready(register_worker())
    assert len(held) == 2
    with django_assert_num_queries(1):
        settle([Ending(one, Succeeded()) for one in held], hand_over=HandOver())
