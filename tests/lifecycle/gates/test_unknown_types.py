"""Jobs that no running worker can run hold no slots that others could use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_jobs import Concurrency, registry
from django_jobs.domain.admission import FairShares
from django_jobs.domain.gates import LoneGate
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import known_types
from django_jobs.lifecycle.gates import admission, arrivals
from django_jobs.lifecycle.pausing import give_up_slots_of_closed
from django_jobs.lifecycle.settling import Ending, HandOver, settle
from django_jobs.models import Job, Resource, Worker
from tests.app.gate_jobs import refund_payment
from tests.factories import claim_ready, declared, listening, register_worker

pytestmark = pytest.mark.django_db(transaction=True)

ROOM = {"default": 100}
REMOVED = "test.removed"


def handler(number: int = 0) -> None:
    """What declared types of these tests call."""


def unknown(count: int = 1, **gates: Any) -> list[Job]:
    """Jobs of a type that was removed."""
    with declared(handler, name=REMOVED, **(gates or {"resources": ["stripe"]})) as job_type:
        return [job_type.enqueue(number) for number in range(count)]


def admit() -> None:
    admission.admit(ROOM, FairShares())


def statuses(*jobs: Job) -> list[str]:
    found = dict(Job.objects.values_list("pk", "status"))
    return [found[job.pk] for job in jobs]


def a_worker_that_knows_it() -> int:
    known_types.forget_recent()
    return register_worker("newer", job_types={**registry.versions(), REMOVED: 1})


@pytest.fixture(params=[{}, {"retry_budget": 0.5}])
def stripe(request: pytest.FixtureRequest) -> Iterator[None]:
    Resource.objects.create(name="stripe", max_concurrency=1, **request.param)
    return


@pytest.mark.usefixtures("stripe")
def test_an_admission_passes_them_over_until_a_worker_knows_their_type() -> None:
    register_worker()
    (first,) = unknown()
    other = refund_payment.enqueue(9)
    admit()
    assert statuses(first, other) == ["blocked", "ready"]
    other.delete()
    admit()
    assert statuses(first) == ["blocked"]
    a_worker_that_knows_it()
    admit()
    assert statuses(first) == ["ready"]


@pytest.mark.usefixtures("stripe")
def test_a_payload_newer_than_all_workers_read_is_passed_over() -> None:
    register_worker()
    newer, other = refund_payment.enqueue(1), refund_payment.enqueue(2)
    Job.objects.filter(pk=newer.pk).update(payload_version=2)
    admit()
    assert statuses(newer, other) == ["blocked", "ready"]


def test_arrivals_are_left_to_the_workers_that_know_them() -> None:
    register_worker()
    (first,) = unknown(concurrency=Concurrency("k"))
    with declared(handler, name="test.known", concurrency=Concurrency("k")) as job_type:
        other = job_type.enqueue()
        arrivals.admit_arrivals(LoneGate.KEY, ROOM)
    assert statuses(first, other) == ["blocked", "ready"]


def test_a_settle_hands_its_slot_over_past_them() -> None:
    register_worker()
    Resource.objects.create(name="stripe", max_concurrency=1)
    refund_payment.enqueue(1)
    admit()
    held = claim_ready(register_worker())
    (first,) = unknown()
    other = refund_payment.enqueue(2)
    settle([Ending(one, Succeeded()) for one in held], hand_over=HandOver())
    assert statuses(first, other) == ["blocked", "ready"]


def test_ready_ones_give_up_their_slots() -> None:
    """The last worker that knew their type has ended."""
    Resource.objects.create(name="stripe", max_concurrency=1)
    worker = register_worker()
    newer = a_worker_that_knows_it()
    (first,) = unknown()
    other = refund_payment.enqueue(9)
    admit()
    assert statuses(first, other) == ["ready", "blocked"]
    assert give_up_slots_of_closed() == 0
    Worker.objects.filter(pk=newer).update(status="stopped")
    with listening() as notes:
        assert give_up_slots_of_closed() == 1
        assert ":gates" in notes()
    known_types.forget_recent()
    admit()
    assert statuses(first, other) == ["blocked", "ready"]
    assert Worker.objects.get(pk=worker).status == "running"


def test_what_it_waits_for_is_said() -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    register_worker()
    (first,) = unknown()
    admit()
    first.refresh_from_db()
    assert first.blocked_by == "no live worker of this queue knows this job type"
