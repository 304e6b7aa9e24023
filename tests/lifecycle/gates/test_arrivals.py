"""Jobs that have just come and wait for a key alone become ready in one round trip."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from django_jobs import Concurrency
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates import admission, arrivals
from django_jobs.lifecycle.operations import quarantines
from django_jobs.models import Job, Resource
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.factories import another_connection, claim_ready, declared, register_worker, settle_one

pytestmark = pytest.mark.django_db(transaction=True)


def handler(account: str = "k") -> None:
    """What declared types of these tests call."""


def ready() -> set[int]:
    return set(Job.objects.filter(status="ready").values_list("pk", flat=True))


def test_a_free_key_admits_its_limit_in_the_order_of_rank(django_assert_num_queries: Any) -> None:
    with declared(handler, concurrency=Concurrency("k", limit=2)) as pairs:
        low, _ = pairs.enqueue(), pairs.enqueue()
        high = pairs.using(priority=10).enqueue()
    other = charge_account.enqueue(8)
    with django_assert_num_queries(1):
        found = arrivals.admit_arrivals(["default"])
    assert ready() == {high.pk, low.pk, other.pk}
    assert (found.queues, found.rest) == ({"default"}, False)
    assert Job.objects.filter(status="blocked").count() == 1
    assert arrivals.admit_arrivals(["default"]).queues == set()


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
        assert arrivals.admit_arrivals(["default"]).rest
        assert ready() == {alone.pk}
    admission.admit({"default": 10}, FairShares())
    assert len(ready()) == len(left)  # one of the two jobs of a key


def test_it_looks_at_few_lines() -> None:
    for number in range(arrivals.FEW):
        charge_account.enqueue(number)
    one_more = [charge_account.enqueue(number) for number in (100, 101)]
    assert arrivals.admit_arrivals(["default"]).rest
    assert len(ready()) >= arrivals.FEW
    assert not arrivals.admit_arrivals(["default"]).rest
    assert len(ready()) == arrivals.FEW + len(one_more)


def test_a_quarantined_job_and_one_with_unreadable_gates_stay_blocked() -> None:
    strange, good = charge_account.enqueue(1), charge_account.enqueue(2)
    Job.objects.filter(pk=strange.pk).update(gates='[null,"default","k","1","wait",[]]')
    assert arrivals.admit_arrivals(["default"]).rest
    assert ready() == {good.pk}
    quarantines.quarantine("app.charge_account", reason="a test")
    charge_account.enqueue(3)
    arrivals.admit_arrivals(["default"])
    assert ready() <= {good.pk}


def test_it_takes_its_turn_with_admissions() -> None:
    charge_account.enqueue(7)
    with another_connection() as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT {admission.TAKE_TURN}")
        found = arrivals.admit_arrivals(["default"])
        assert (found.queues, found.rest) == (set(), True)
        cursor.execute("ROLLBACK")
    assert arrivals.admit_arrivals(["default"]).queues == {"default"}
    assert admission.admit({"default": 10}, FairShares()).ours


def test_sessions_that_admit_arrivals_at_once_never_exceed_a_limit() -> None:
    most: list[int] = []

    def work(number: int) -> None:
        worker = register_worker()
        try:
            for turn in range(40):
                charge_account.enqueue(7)
                if (turn + number) % 4:
                    arrivals.admit_arrivals(["default"])
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
        thread.join(60)
    assert max(most) == 1


def test_a_connection_that_binds_on_the_server_admits_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charge_account.enqueue(7)
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    try:
        assert not arrivals.admit_arrivals(["default"]).rest
        assert len(ready()) == 1
    finally:
        connection.close()
