"""Jobs that have just come and wait for one gate alone become ready in one round trip."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from django_jobs import Concurrency
from django_jobs.domain.admission import FairShares
from django_jobs.domain.gates import LoneGate
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates import admission, arrivals
from django_jobs.lifecycle.operations import quarantines
from django_jobs.models import Job, Resource, Tenant
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.factories import (
    claim_ready,
    declared,
    in_threads,
    open_elsewhere,
    register_worker,
    settle_one,
)
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


def handler(account: str = "k") -> None:
    """What declared types of these tests call."""


def admit_arrivals(
    gate: LoneGate = LoneGate.KEY, room: dict[str, int] | None = None
) -> arrivals.Arrivals:
    return arrivals.admit_arrivals(gate, room or {"default": 10})


def ready() -> set[int]:
    return set(Job.objects.filter(status="ready").values_list("pk", flat=True))


def test_a_free_key_admits_its_limit_in_the_order_of_rank(django_assert_num_queries: Any) -> None:
    with declared(handler, concurrency=Concurrency("k", limit=2)) as pairs:
        low, _ = pairs.enqueue(), pairs.enqueue()
        high = pairs.using(priority=10).enqueue()
        other = charge_account.enqueue(8)
        with django_assert_num_queries(1):
            found = admit_arrivals()
    assert ready() == {high.pk, low.pk, other.pk}
    assert (found.queues, found.rest) == ({"default"}, False)
    assert Job.objects.filter(status="blocked").count() == 1
    assert admit_arrivals().queues == set()


def test_what_it_does_not_decide_is_left_to_an_admission() -> None:
    Resource.objects.create(name="stripe")
    waits = Concurrency("k", on_conflict="discard")
    with declared(handler, concurrency=waits) as discarding:
        left = [
            refund_payment.enqueue(1),
            bill_tenant.enqueue("t"),
            charge_account.using(resources=("stripe",)).enqueue(1),
            charge_account.enqueue(1),  # of the same key as the one before
            discarding.enqueue(),
        ]
        alone = charge_account.enqueue(2)
        for _ in range(2):
            assert admit_arrivals().rest
            assert ready() == {alone.pk}
        admission.admit({"default": 10}, FairShares())
    assert len(ready()) == len(left)  # one of the two jobs of a key


def test_a_free_resource_admits_its_limit_in_the_order_of_rank(
    django_assert_num_queries: Any,
) -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    low, _ = refund_payment.enqueue(1), refund_payment.enqueue(2)
    high = refund_payment.using(priority=10).enqueue(3)
    with django_assert_num_queries(1):
        found = admit_arrivals(LoneGate.RESOURCE)
    assert (found.queues, found.rest) == ({"default"}, False)
    assert ready() == {high.pk, low.pk}
    assert admit_arrivals(LoneGate.RESOURCE).queues == set()


@pytest.mark.parametrize(
    "values",
    [
        {"max_concurrency": None},
        {"rate": 50.0},
        {"breaker_failures": 9},
        {"breaker_state": "open"},
        {"retry_budget": 0.5},
        {"paused_at": "2026-01-01T00:00:00Z"},
        {"over_limit": True},
    ],
)
def test_a_resource_with_more_than_slots_is_left_to_an_admission(values: dict[str, Any]) -> None:
    resource = Resource.objects.create(name="stripe", max_concurrency=2)
    Resource.objects.filter(pk=resource.pk).update(**values)
    refund_payment.enqueue(1)
    found = admit_arrivals(LoneGate.RESOURCE)
    assert (found.queues, found.rest) == (set(), True)


def test_lines_that_share_a_resource_are_left_to_an_admission() -> None:
    for name in ("stripe", "ledger"):
        Resource.objects.create(name=name, max_concurrency=2)
    refund_payment.enqueue(1)
    refund_payment.using(resources=("ledger", "stripe")).enqueue(2)
    found = admit_arrivals(LoneGate.RESOURCE)
    assert (found.queues, found.rest) == (set(), True)


def test_a_tenant_that_is_alone_in_its_queue_gets_the_room(django_assert_num_queries: Any) -> None:
    jobs = [bill_tenant.enqueue("acme") for _ in range(3)]
    with django_assert_num_queries(1):
        found = admit_arrivals(LoneGate.TENANT, {"default": 2})
    assert (found.queues, found.rest) == ({"default"}, True)  # the third one waits for room
    assert ready() == {job.pk for job in jobs[:2]}
    assert admit_arrivals(LoneGate.TENANT, {"default": 2}).queues == set()
    found = admit_arrivals(LoneGate.TENANT, {"default": 9})
    assert (found.queues, found.rest) == ({"default"}, False)
    assert ready() == {job.pk for job in jobs}


@pytest.mark.parametrize(
    ("values", "admitted"),
    [({"max_concurrency": 2}, 2), ({"paused_at": "2026-01-01T00:00:00Z"}, 0), ({"weight": 9}, 3)],
)
def test_a_tenant_is_held_to_its_limit(values: dict[str, Any], admitted: int) -> None:
    Tenant.objects.create(name="acme", **values)
    bulk = bill_tenant.using(queue="bulk")
    for enqueue in (bulk.enqueue, bill_tenant.enqueue, bill_tenant.enqueue):
        enqueue("acme")
        admit_arrivals(LoneGate.TENANT, {"default": 10, "bulk": 10})
    assert len(ready()) == admitted


def test_a_tenant_with_a_rate_is_left_to_an_admission() -> None:
    Tenant.objects.create(name="acme", rate=50.0)
    bill_tenant.enqueue("acme")
    found = admit_arrivals(LoneGate.TENANT)
    assert (found.queues, found.rest) == (set(), True)


def test_a_tenant_that_waits_in_two_queues_is_held_to_its_limit() -> None:
    Tenant.objects.create(name="acme", max_concurrency=1)
    jobs = [bill_tenant.using(queue=queue).enqueue("acme") for queue in ("default", "bulk")]
    room = {"default": 10, "bulk": 10}
    found = admit_arrivals(LoneGate.TENANT, room)
    assert (found.queues, found.rest) == (set(), True)
    admission.admit(room, FairShares())
    assert ready() == {jobs[0].pk}


def test_tenants_that_share_a_queue_take_turns_by_an_admission() -> None:
    bill_tenant.enqueue("acme")
    other = bill_tenant.enqueue("globex")
    found = admit_arrivals(LoneGate.TENANT)
    assert (found.queues, found.rest) == (set(), True)
    Job.objects.filter(pk=other.pk).delete()
    charge_account.using(queue="bulk").enqueue(1)  # of no tenant, in another queue
    assert admit_arrivals(LoneGate.TENANT).queues == {"default"}


def test_among_many_lines_a_tenant_waits_for_an_admission() -> None:
    """Its rivals may be in lines that were not looked at."""
    for number in range(arrivals.FEW):
        bill_tenant.using(queue="bulk").enqueue(f"tenant {number}")
    bill_tenant.enqueue("acme")
    found = admit_arrivals(LoneGate.TENANT)
    assert (found.queues, found.rest) == (set(), True)


def test_it_looks_at_few_lines() -> None:
    for number in range(arrivals.FEW):
        charge_account.enqueue(number)
    one_more = [charge_account.enqueue(number) for number in (100, 101)]
    assert admit_arrivals().rest
    assert len(ready()) >= arrivals.FEW
    assert not admit_arrivals().rest
    assert len(ready()) == arrivals.FEW + len(one_more)


def test_a_quarantined_job_and_one_with_unreadable_gates_stay_blocked() -> None:
    strange, good = charge_account.enqueue(1), charge_account.enqueue(2)
    Job.objects.filter(pk=strange.pk).update(gates='["default",[],null,"k","1","wait"]')
    assert admit_arrivals().rest
    assert ready() == {good.pk}
    quarantines.quarantine("app.charge_account", reason="a test")
    charge_account.enqueue(3)
    admit_arrivals()
    assert ready() <= {good.pk}


def test_a_locked_job_is_skipped() -> None:
    locked, free = charge_account.enqueue(7).pk, charge_account.enqueue(7).pk
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked]):
        in_threads(1, lambda _: admit_arrivals())
    assert ready() == {free}


def test_it_takes_its_turn_with_admissions() -> None:
    charge_account.enqueue(7)
    with open_elsewhere(f"SELECT {admission.TAKE_TURN}"):
        found = admit_arrivals()
        assert (found.queues, found.rest) == (set(), True)
    assert admit_arrivals().queues == {"default"}
    assert admission.admit({"default": 10}, FairShares()).ours


def test_sessions_that_admit_arrivals_at_once_never_exceed_a_limit() -> None:
    most: list[int] = []

    def work(number: int) -> None:
        worker = register_worker()
        try:
            for turn in range(40):
                charge_account.enqueue(7)
                if (turn + number) % 4:
                    admit_arrivals()
                else:
                    admission.admit({"default": 10}, FairShares())
                for held in claim_ready(worker, limit=2):
                    most.append(Job.objects.filter(status__in=("ready", "running")).count())
                    settle_one(held, Succeeded())
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert max(most) == 1


def test_a_connection_that_binds_on_the_server_admits_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charge_account.enqueue(7)
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    try:
        assert not admit_arrivals().rest
        assert len(ready()) == 1
    finally:
        connection.close()
