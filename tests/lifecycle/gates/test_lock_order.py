"""Whoever admits, ends and operates jobs with several gates waits for nobody in a circle."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest

from django_jobs import Concurrency, JobType
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Released, Snoozed, Succeeded
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.lifecycle.operations import limits
from django_jobs.lifecycle.promoting import promote
from django_jobs.lifecycle.settling import Ending, HandOver, give_back, settle
from django_jobs.models import Job, Resource, Tenant, database
from tests.app.gate_jobs import charge_account, refund_payment
from tests.factories import claim_ready, declared, failure, in_threads, register_worker, run_sql

JOBS = 300
KEYS, TENANTS = 4, 3

TAKEN = """
SELECT max(jobs) FROM (
    SELECT count(*) AS jobs FROM django_jobs_job
    WHERE status IN ('ready', 'running') AND {gate} IS NOT NULL
    GROUP BY {gate}
) AS one
"""


def transfer(account: int, number: int) -> None:
    """What has all gates at once."""


def enqueue(all_gates: JobType[..., Any]) -> None:
    for number in range(JOBS // 3):
        account, tenant = number % KEYS, f"tenant {number % TENANTS}"
        all_gates.using(tenant=tenant).enqueue(account, number)
        charge_account.using(tenant=tenant).enqueue(account)
        refund_payment.using(tenant=tenant, priority=number % 5).enqueue(number)


@pytest.mark.django_db(transaction=True)
def test_jobs_with_several_gates_that_change_at_once_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deadlock is not repeated here, so it ends the test. Slots are never more than there are,
    whatever comes at once, and all jobs come to their end."""
    monkeypatch.setattr(database, "CONFLICTS", {"40001"})
    Resource.objects.create(name="stripe", max_concurrency=5)
    Resource.objects.create(name="ledger", max_concurrency=4)
    for number in range(TENANTS):
        Tenant.objects.create(name=f"tenant {number}", max_concurrency=3)
    done = threading.Event()
    outcomes: Counter[str] = Counter()

    def work(worker: int) -> bool:
        held = claim_ready(worker, limit=4)
        random.shuffle(held)
        given = give_back([one.fence for one in held[: random.randint(0, 1)]])  # if not locked
        ended = [
            Ending(one, random.choice([Succeeded(), failure(), Snoozed(seconds=0.0), Released()]))
            for one in held
            if one.id not in given
        ]
        outcomes.update(type(one.outcome).__name__ for one in ended)
        settle(ended, hand_over=HandOver())
        return bool(held)

    def operate() -> None:
        ids = list(Job.objects.filter(status__in=["blocked", "ready"]).values_list("pk", flat=True))
        some = random.sample(ids, min(len(ids), 9))
        operations.reprioritize(some, random.randint(-9, 9))
        operations.cancel(some[:2])
        operations.run_now(some)
        limits.pause_resources(["stripe", "ledger"])
        limits.pause_tenants(["tenant 2", "tenant 0"])
        limits.resume_tenants(["tenant 0", "tenant 2"])
        limits.resume_resources(["ledger", "stripe"])

    def act(number: int) -> None:
        try:
            act_until_done(number)
        finally:
            done.set()  # also where a deadlock has ended this thread: the others would go on

    def act_until_done(number: int) -> None:
        shares = FairShares()
        worker = register_worker()
        if number == 0:
            enqueue(all_gates)
        while not done.is_set():
            if number == 0:
                operate()
                operations.run_now(
                    Job.objects.filter(status="scheduled").values_list("pk", flat=True)
                )
            promote()
            admit({"default": 9}, shares)
            work(worker)
            for gate, slots in (("concurrency_key", 3), ("tenant", 3)):
                assert (run_sql(TAKEN.format(gate=gate))[0][0] or 0) <= slots
            if number == 0 and not Job.objects.filter(finished_at=None).exists():
                done.set()

    three = Concurrency("all:{account}", limit=3)
    with declared(
        transfer, name="test.transfer", concurrency=three, resources=("stripe", "ledger")
    ) as all_gates:
        in_threads(4, act)
    assert Job.objects.count() == JOBS
    assert outcomes.keys() == {"Succeeded", "Failed", "Snoozed", "Released"}
