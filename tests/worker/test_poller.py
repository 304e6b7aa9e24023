"""When an idle worker looks for work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest

from django_jobs import Concurrency
from django_jobs.domain.gates import Gates, LoneGate
from django_jobs.lifecycle.notifying import THROTTLE_SECONDS, blocked_hint, read_blocked
from django_jobs.lifecycle.operations import limits
from django_jobs.lifecycle.settling import HandOver
from django_jobs.models import Job, Queue, Resource
from django_jobs.worker import poller as module
from django_jobs.worker.poller import LINGER_SECONDS, NEVER, Admitter, Poller
from tests.app import jobs
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.factories import (
    declared,
    listening,
    open_elsewhere,
    register_worker,
    run_sql,
)
from tests.worker.processes import until


def run() -> None:
    """What a declared type of these tests calls."""


@pytest.mark.django_db
def test_it_polls_if_nothing_is_due() -> None:
    poller = Poller(["default"], poll=5.0)
    now = time.monotonic()
    assert poller.next_at <= now
    assert poller.poll(now) == frozenset()
    assert poller.next_at == now + 5.0
    assert poller.due_at == NEVER
    poller.poll_now()
    assert poller.next_at <= now


@pytest.mark.django_db
def test_it_polls_again_after_a_hint() -> None:
    poller = Poller(["default"], poll=600.0)
    heard = time.monotonic()
    poller.poll_again_soon()
    poller.poll(heard + 0.001)
    again = poller.next_at
    assert heard + THROTTLE_SECONDS < again <= time.monotonic() + LINGER_SECONDS
    poller.poll(again)
    assert poller.next_at == again + 600.0


@pytest.mark.django_db
def test_it_polls_when_the_next_job_is_due() -> None:
    job = jobs.noop.using(delay=60).enqueue()
    poller = Poller(["default"], poll=600.0)
    now = time.monotonic()
    assert poller.poll(now) == frozenset()
    assert now < poller.next_at <= now + 60
    Job.objects.filter(pk=job.pk).update(available_at=job.created_at)
    assert poller.poll(poller.next_at) == {"default"}
    assert Job.objects.get(pk=job.pk).status == "ready"


@pytest.mark.django_db
def test_it_finds_new_queues_in_the_same_look(
    django_assert_num_queries: Callable[[int], AbstractContextManager[Any]],
) -> None:
    names = list(Queue.objects.order_by("name").values_list("name", flat=True))
    every, some = (Poller(names, poll=5.0, every=every) for every in (True, False))
    with django_assert_num_queries(1):
        assert every.poll(time.monotonic()) == frozenset()
    Queue.objects.create(name="later", max_concurrency=1)
    jobs.noop.using(queue="later").enqueue()
    for poller in every, some:
        found = poller.poll(time.monotonic())
        assert ("later" in found, "later" in poller.limited) == (poller is every,) * 2
        assert ("later" in poller.queues) == (poller is every)


@pytest.mark.django_db(transaction=True)
def test_an_admission_that_the_database_refuses_holds_up_nothing_else() -> None:
    charge_account.enqueue(7)
    admitter = Admitter(1.0)
    admitter.look_now(None)
    run_sql("ALTER TABLE django_jobs_quarantine RENAME TO quarantine_of_a_test")
    try:
        assert admitter.admit({"default": 5}) == set()
    finally:
        run_sql("ALTER TABLE quarantine_of_a_test RENAME TO django_jobs_quarantine")
    admitter.look_now(None)
    assert admitter.admit({"default": 5}) == {"default"}


@pytest.mark.django_db(transaction=True)
def test_it_rests_while_a_lock_is_in_the_way_of_all_resources(
    django_assert_num_queries: Callable[[int], AbstractContextManager[Any]],
) -> None:
    Resource.objects.create(name="stripe", rate=10.0)
    refund_payment.enqueue(1)
    admitter = Admitter(1.0)
    admitter.look_now(None)
    with open_elsewhere("LOCK TABLE django_jobs_resource IN EXCLUSIVE MODE"):
        assert admitter.admit({"default": 5}) == set()
        assert admitter.next_at <= time.monotonic()
        assert admitter.admit({"default": 5}) == set()
        before = time.monotonic()
    admitter.hand_over(HandOver(freed=True))
    with django_assert_num_queries(0):
        assert admitter.admit({"default": 5}) == set()
    assert not admitter.is_done
    assert before < admitter.next_at <= before + module.FAILED_SECONDS
    until(lambda: time.monotonic() >= admitter.next_at)
    assert admitter.admit({"default": 5}) == {"default"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("also_another_gate", [False, True])
def test_a_job_that_came_for_a_free_key_is_admitted_in_one_statement(
    django_assert_num_queries: Callable[[int], AbstractContextManager[Any]],
    also_another_gate: bool,
) -> None:
    if also_another_gate:
        Resource.objects.create(name="stripe")
        refund_payment.enqueue(1)
    job = charge_account.enqueue(7)
    admitter = Admitter(1.0)
    admitter.look_now(LoneGate.KEY)
    with django_assert_num_queries(1):
        assert admitter.admit({"default": 5}) == {"default"}
    assert [one.pk for one in Job.objects.filter(status="ready")] == [job.pk]
    # What waits at other gates is looked at next, without a poll.
    assert admitter.admit({"default": 5}) == ({"default"} if also_another_gate else set())
    assert not Job.objects.filter(status="blocked").exists()


@pytest.mark.django_db(transaction=True)
def test_a_slot_that_is_free_comes_to_lines_of_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "admit", partial(module.admit, lines=3))
    Resource.objects.create(name="stripe", max_concurrency=1)
    register_worker()
    for number in range(27):
        refund_payment.using(concurrency_key=f"key {number % 9}").enqueue(number)
    admitter = Admitter(1.0)
    given = []
    for _ in range(9):
        admitter.hand_over(HandOver(freed=True))
        while not Job.objects.filter(status="ready").exists():
            admitter.admit({"default": 5})
        while admitter.next_at <= time.monotonic():
            admitter.admit({"default": 5})
        ended = Job.objects.filter(status="ready")
        given += [int((job.concurrency_key or "")[4:]) // 3 for job in ended]
        ended.delete()
    assert Counter(given) == {0: 3, 1: 3, 2: 3}


@pytest.mark.django_db(transaction=True)
def test_it_rests_where_one_queue_has_no_room_and_another_nothing_to_admit() -> None:
    """A ready job takes the room of one queue, such as one with a limit that another job takes; in
    the other a tenant is paused."""
    limits.pause_tenants(["paused"])
    bill_tenant.enqueue("paused")
    for _ in range(2):
        bill_tenant.using(queue="bulk").enqueue("acme")
    admitter = Admitter(1.0)
    admitter.hand_over(HandOver(freed=True))
    assert admitter.admit({"default": 1, "bulk": 1}) == {"bulk"}
    admitter.note_claimed(0, is_full=False)
    admitter.hand_over(HandOver(freed=True))
    before = time.monotonic()
    assert admitter.admit({"default": 1, "bulk": 1}) == set()
    assert admitter.next_at >= before + module.FULL_SECONDS


@pytest.mark.django_db(transaction=True)
def test_conflicts_are_resolved_by_a_process_without_room(
    django_assert_num_queries: Callable[[int], AbstractContextManager[Any]],
) -> None:
    with declared(run, concurrency=Concurrency("k", on_conflict="discard")) as job_type:
        job_type.enqueue()
        admitter = Admitter(1.0)
        admitter.look_now(None)
        admitter.admit({"default": 1})
        register_worker()
        second = job_type.enqueue()
        admitter.look_now(LoneGate.KEY)
        with django_assert_num_queries(0):
            admitter.resolve_conflicts()
        admitter.look_now(None)
        free = charge_account.enqueue(7)
        admitter.resolve_conflicts()
        with django_assert_num_queries(0):
            admitter.resolve_conflicts()
    second.refresh_from_db()
    free.refresh_from_db()
    assert (second.status, free.status) == ("cancelled", "blocked")


ARRIVALS: dict[LoneGate, Callable[[], Job]] = {
    LoneGate.KEY: lambda: charge_account.enqueue(7),
    LoneGate.RESOURCE: lambda: refund_payment.enqueue(1),
    LoneGate.TENANT: lambda: bill_tenant.enqueue("acme"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("gate", LoneGate)
def test_the_hint_of_an_enqueue_says_by_which_statement_the_job_is_admitted(
    django_assert_num_queries: Callable[[int], AbstractContextManager[Any]], gate: LoneGate
) -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    with listening() as heard:
        job = ARRIVALS[gate]()
        (hint,) = heard()
    assert read_blocked(hint) == ("default", gate)
    admitter = Admitter(1.0)
    admitter.look_now(gate)
    with django_assert_num_queries(1):
        assert admitter.admit({"default": 5}) == {"default"}
        assert admitter.admit({"default": 5}) == set()
    job.refresh_from_db()
    assert job.status == "ready"


def test_a_job_with_several_gates_is_left_to_an_admission() -> None:
    hint = blocked_hint("bulk", Gates(queue="bulk", key="k", resources=("stripe",)).alone)
    assert read_blocked(hint) == ("bulk", None)
    assert read_blocked("bulk") is None
