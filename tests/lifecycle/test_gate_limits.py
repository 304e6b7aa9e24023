"""A gate with ``max_waiting`` refuses new jobs, or drops the lowest that waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, InternalError, OperationalError, transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs import (
    Concurrency,
    DuplicateJob,
    JobType,
    Pressure,
    QueueFull,
    cancel,
    chain,
    enqueue_many,
    group,
    queue_pressure,
)
from django_jobs.api import sql_defaults
from django_jobs.domain.admission import FairShares
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.lifecycle.promoting import promote
from django_jobs.models import Job, Queue, Resource, Tenant, Tick, UniqueKey, WorkflowRun
from django_jobs.testing import run_jobs
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    declared,
    due_schedule,
    in_threads,
    look,
    register_worker,
    run_sql,
)

pytestmark = pytest.mark.django_db

ALREADY = "is full: its max_waiting of {} is reached"


@pytest.fixture(autouse=True)
def _resources(db: None) -> None:
    Resource.objects.bulk_create([
        Resource(name="stripe", rate=1.0, rate_seconds=1.0, max_waiting=100),
        Resource(name="ledger"),
    ])  # fmt: skip


@pytest.fixture
def drops() -> Iterator[None]:
    """The queues drop their lowest jobs."""
    Queue.objects.update(on_full="drop_lowest")
    Queue.objects.forget_recent()
    yield
    Queue.objects.update(on_full="raise")


def refunds(count: int, **using: Any) -> list[int]:
    jobs = refund_payment.using(**using) if using else refund_payment
    return jobs.enqueue_many([{"payment_id": number} for number in range(count)])


def waiting() -> set[int]:
    return set(Job.objects.filter(status="blocked").values_list("pk", flat=True))


def reasons() -> dict[int, str]:
    return dict(Job.objects.filter(status="cancelled").values_list("pk", "reason"))


# Refusing, in each way to ask


@pytest.mark.parametrize("fill", [False, True])
def test_python_is_refused_the_101st(fill: bool) -> None:
    if fill:
        refunds(100)
    else:
        for number in range(100):
            assert refund_payment.enqueue(number).status == "blocked"
    ways: list[Callable[[], Any]] = [
        lambda: refund_payment.enqueue(7),
        lambda: async_to_sync(refund_payment.aenqueue)(7),
        lambda: refund_payment.using(queue="bulk").enqueue(7),
        lambda: refund_payment.using(delay=60).enqueue(7),
        lambda: refund_payment.using(idempotency_key="k").enqueue(7),
        lambda: refund_payment.using(idempotency_key="k", unique_for=60).enqueue(7),
        lambda: refund_payment.using(idempotency_key="k", on_duplicate="replace").enqueue(7),
        lambda: refund_payment.using(tenant="acme", resources=("ledger", "stripe")).enqueue(7),
        lambda: noop.using(resources="stripe").enqueue(),
        lambda: refunds(1),
        lambda: enqueue_many("app.refund_payment", [{"payment_id": 7}], idempotency_keys=["k"]),
    ]
    for way in ways:
        with pytest.raises(QueueFull, match=f"resource 'stripe' {ALREADY.format(100)}$"):
            way()
    assert len(waiting()) == Job.objects.count() == 100
    assert not UniqueKey.objects.exists()
    assert noop.using(resources="ledger").enqueue().status == "blocked"
    assert noop.enqueue().status == "ready"


def test_many_jobs_that_do_not_all_fit_are_refused_together() -> None:
    refunds(98)
    with pytest.raises(QueueFull, match="has room for 2 of 3 waiting jobs; its max_w"):
        refunds(3)
    assert len(refunds(2)) == 2


@pytest.mark.parametrize("missed", [1, 3])
def test_a_schedule_is_suppressed(missed: int) -> None:
    refunds(100)
    due_schedule(
        seconds_ago=3_600 * missed - 60, job_type="app.refund_payment", payload={"payment_id": 7},
        catch_up="at_most", catch_up_limit=5, overlap="allow",
    )  # fmt: skip
    look()
    ticks = Tick.objects.values_list("outcome", "reason")
    assert len(ticks) == missed
    assert {outcome for outcome, _ in ticks} == {"suppressed"}
    assert all(reason.endswith(ALREADY.format(100)) for _, reason in ticks)
    assert len(waiting()) == 100


def test_a_workflow_is_refused_by_its_first_steps_alone() -> None:
    first = [refund_payment.step(payment_id=number) for number in range(2)]
    first.append(refund_payment.using(queue="bulk").step(payment_id=2))
    refunds(98)
    with pytest.raises(QueueFull, match="has room for 2 of 3 waiting jobs"):
        group(*first).start()
    assert not WorkflowRun.objects.exists()
    assert chain(*first).start().status == "running"
    assert group(first[0]).start().status == "running"
    assert len(waiting()) == 100


def test_sql_is_refused_by_the_limit_of_a_tenant() -> None:
    Tenant.objects.create(name='a"c,me', max_waiting=2)
    sql_defaults.synchronise("default")
    call = "SELECT django_jobs_enqueue('app.noop', queue => %s, tenant => %s)"
    for queue in ("default", "bulk"):
        run_sql(call, [queue, 'a"c,me'])
    noop.using(tenant='a"c,me ').enqueue()
    for queue in ("default", "bulk", "emails"):
        with (
            pytest.raises((InternalError, OperationalError), match=ALREADY.format(2)),
            transaction.atomic(),
        ):
            run_sql(call, [queue, 'a"c,me'])
        with pytest.raises(QueueFull, match=ALREADY.format(2)):
            noop.using(tenant='a"c,me', queue=queue).enqueue()
    run_sql(call, ["default", "other"])
    assert len(waiting()) == 4


def test_sql_counts_what_waits_at_gates_towards_the_limit_of_a_queue() -> None:
    Queue.objects.filter(name="default").update(max_backlog=3)
    sql_defaults.synchronise("default")
    noop.using(tenant="acme").enqueue()
    refunds(1)
    run_sql("SELECT django_jobs_enqueue('app.noop')")
    with (
        pytest.raises((InternalError, OperationalError), match="have reached its max_backlog of 3"),
        transaction.atomic(),
    ):
        run_sql("SELECT django_jobs_enqueue('app.noop')")
    run_sql("SELECT django_jobs_enqueue('app.noop', queue => 'bulk')")


# What counts


def test_a_tenant_counts_what_waits_in_all_queues_whatever_else_it_waits_for() -> None:
    Tenant.objects.create(name="acme", max_waiting=4)
    bill_tenant.enqueue("acme")
    bill_tenant.using(queue="bulk").enqueue("acme")
    refund_payment.using(tenant="acme").enqueue(1)
    charge_account.using(tenant="acme", concurrency_key="k").enqueue(1)
    for other in ("acm", "acmf", "Acme", "acme,", 'acme"'):
        bill_tenant.enqueue(other)
    for refused in (bill_tenant, bill_tenant.using(queue="emails")):
        with pytest.raises(QueueFull, match="tenant 'acme' " + ALREADY.format(4)):
            refused.enqueue("acme")
    assert charge_account.enqueue(1).status == "blocked"


@pytest.fixture
def keyed() -> Iterator[JobType[..., Any]]:
    """Two jobs of a key may wait."""

    def hold(account_id: int) -> None: ...

    rule = Concurrency("account:{account_id}", max_waiting=2)
    with declared(hold, name="app.keyed", concurrency=rule) as job_type:
        yield job_type


def test_a_key_counts_its_jobs_in_all_queues_by_tenant(keyed: JobType[..., Any]) -> None:
    keyed.enqueue(7)
    charge_account.using(queue="bulk", resources="ledger").enqueue(7)
    for other in (6, 77):
        keyed.enqueue(other)
    for refused in (keyed, keyed.using(queue="bulk"), keyed.using(resources="stripe")):
        with pytest.raises(QueueFull, match="concurrency key 'account:7' " + ALREADY.format(2)):
            refused.enqueue(7)
    assert charge_account.enqueue(7).status == "blocked"  # its declaration has no limit
    assert len(keyed.using(tenant="acme").enqueue_many([{"account_id": 7}] * 2)) == 2
    with pytest.raises(QueueFull):
        keyed.using(tenant="acme").enqueue(7)
    with pytest.raises(QueueFull, match="account:9' has room for 2 of 3 waiting jobs"):
        keyed.enqueue_many([{"account_id": number} for number in (8, 9, 9, 9)])
    named = keyed.using(concurrency_key='a"],null,"\\%_')
    named.enqueue_many([{"account_id": 1}] * 2)
    with pytest.raises(QueueFull):
        named.enqueue(1)


def test_only_jobs_that_wait_are_counted() -> None:
    Resource.objects.filter(name="stripe").update(max_waiting=2, rate=None, max_concurrency=1)
    first, second = refunds(2)
    admit({"default": 10}, FairShares())
    assert waiting() == {second}
    refunds(1)
    assert claim_ready(register_worker())[0].id == first
    with pytest.raises(QueueFull):
        refunds(1)
    Job.objects.filter(pk=second).update(status="scheduled")
    refunds(1)
    with pytest.raises(QueueFull):
        refunds(1)


def test_what_passes_a_full_gate_counts_from_then_on() -> None:
    """A job that becomes due."""
    Resource.objects.filter(name="stripe").update(max_waiting=2)
    due = refund_payment.using(delay=60).enqueue(1)
    refunds(2)
    run_sql("UPDATE django_jobs_job SET available_at = now() WHERE id = %s", [due.pk])
    promote()
    assert due.pk in waiting()
    assert len(waiting()) == 3
    with pytest.raises(QueueFull):
        refunds(1)


def test_a_queue_counts_what_waits_at_gates() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=3)
    bulk = noop.using(queue="bulk")
    bulk.enqueue()
    charge_account.using(queue="bulk").enqueue(7)
    with pytest.raises(QueueFull, match="has room for 1 of 2 jobs, ready or at"):
        charge_account.using(queue="bulk").enqueue_many([{"account_id": one} for one in (7, 8)])
    bill_tenant.using(queue="bulk").enqueue("acme")
    for full in (bulk, bulk.using(tenant="t"), bulk.using(resources="ledger")):
        with pytest.raises(QueueFull, match="have reached its max_backlog of 3"):
            full.enqueue()
    assert noop.using(queue="default", tenant="acme").enqueue().status == "blocked"
    assert queue_pressure("bulk") == Pressure(
        "full", ready=1, oldest_seconds=ANY, drain_seconds=None, gated=2
    )


def test_neither_a_text_that_is_none_of_gates_nor_a_quarantined_job_is_counted() -> None:
    Queue.objects.filter(name="default").update(max_backlog=4)
    Resource.objects.filter(name="stripe").update(max_waiting=2)
    ids = refunds(2)
    for id_, text in zip(ids, ("no JSON", '["default'), strict=True):
        Job.objects.filter(pk=id_).update(gates=text)
    for text in ('["default"', "[[]]", ""):
        noop.using(queue="bulk", resources="stripe", tenant=text or "x").enqueue()
        Job.objects.filter(pk=max(waiting())).update(gates=text)
    assert len(refunds(2)) == 2
    noop.enqueue()
    quarantines.quarantine("app.noop", reason="a test")
    assert len(charge_account.enqueue_many([{"account_id": 1}] * 2)) == 2


# Dropping


@pytest.mark.usefixtures("drops")
def test_the_lowest_that_waits_for_a_resource_is_dropped_whatever_its_line() -> None:
    Resource.objects.filter(name="stripe").update(max_waiting=3)
    kept = refunds(2)
    lowest = refund_payment.using(queue="bulk", tenant="acme", priority=-5).enqueue(1)
    other = noop.using(resources="ledger", priority=-50).enqueue()
    better = refund_payment.using(priority=5, idempotency_key="k").enqueue(1)
    assert reasons() == {lowest.pk: "dropped: resource stripe was full"}
    assert waiting() == {*kept, other.pk, better.pk}
    worse = refund_payment.using(priority=-9, idempotency_key="l").enqueue(1)
    assert (worse.status, worse.reason) == ("cancelled", "dropped: resource stripe was full")
    many = refunds(5, priority=1)
    assert waiting() == {other.pk, better.pk, *many[:2]}


@pytest.mark.usefixtures("drops")
def test_each_gate_of_a_job_that_is_full_drops_its_lowest(keyed: JobType[..., Any]) -> None:
    Tenant.objects.create(name="acme", max_waiting=2)
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    low = [keyed.using(tenant="acme", priority=-9 + one).enqueue(7).pk for one in range(2)]
    plain = [noop.using(queue="bulk", priority=-20 + one).enqueue().pk for one in range(5)]
    new = keyed.using(tenant="acme", queue="bulk").enqueue(7)
    assert reasons() == {
        plain[0]: "dropped: queue bulk was full",
        low[0]: "dropped: tenant acme was full",
    }
    assert {low[1], new.pk} == waiting()


@pytest.mark.usefixtures("drops")
def test_a_full_queue_drops_the_lowest_of_the_ready_and_of_all_lines() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=4)
    jobs = {
        priority: job_type.using(queue="bulk", priority=priority).enqueue(*arguments).pk
        for priority, job_type, arguments in (
            (1, noop, ()), (2, charge_account, (7,)), (3, charge_account, (8,)),
            (4, bill_tenant, ("acme",)),
        )
    }  # fmt: skip
    elsewhere = charge_account.using(priority=-50).enqueue(1)
    for expected in (1, 2, 3, 4):
        new = charge_account.using(queue="bulk", priority=50).enqueue(9)
        assert jobs[expected] in reasons(), expected
        assert len(reasons()) == expected
        assert new.status == "blocked"
    assert elsewhere.pk in waiting()


@pytest.mark.usefixtures("drops")
def test_a_dropped_job_frees_its_key_in_its_own_queue() -> None:
    Resource.objects.filter(name="stripe").update(max_waiting=1)
    unique = refund_payment.using(idempotency_key="k", unique_for=3_600, queue="bulk")
    first = unique.enqueue(1)
    refund_payment.using(priority=5).enqueue(2)
    assert first.pk in reasons()
    assert not UniqueKey.objects.exists()


@pytest.mark.usefixtures("drops")
def test_a_first_step_and_the_job_of_a_schedule_can_be_dropped() -> None:
    Resource.objects.filter(name="stripe").update(max_waiting=2)
    run = group(*(refund_payment.step(payment_id=number) for number in range(3))).start()
    states = Job.objects.filter(workflow_run=run).order_by("pk").values_list("status", "reason")
    assert list(states) == [("blocked", "")] * 2 + [("dead", "dropped: resource stripe was full")]
    due_schedule(job_type="app.refund_payment", payload={"payment_id": 7}, priority=9)
    look()
    assert Job.objects.get(schedule__isnull=False).status == "blocked"
    assert len(waiting()) == 2


# What it costs


@pytest.mark.parametrize("kinds", [1, 0])
def test_a_gate_without_a_limit_takes_one_statement(
    kinds: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """Also while others have one."""
    if not kinds:
        Resource.objects.update(max_waiting=None)
    Tenant.objects.create(name="other", max_waiting=3 if kinds else None)
    job_types = (noop.using(resources="ledger", tenant="acme"), charge_account.using(tenant="t"))
    for job_type, *arguments in ((job_types[0],), (job_types[1], 7), (noop,)):
        job_type.enqueue(*arguments)
        with django_assert_num_queries(1):
            job_type.enqueue(*arguments)


def test_all_limits_of_a_job_and_of_many_are_counted_by_one_statement(
    keyed: JobType[..., Any], django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    Tenant.objects.create(name="acme", max_waiting=300)
    jobs = keyed.using(tenant="acme", resources="stripe")
    jobs.enqueue(1)
    with django_assert_num_queries(2):
        jobs.enqueue(2)
    with django_assert_num_queries(3):  # a COPY of which the ids are taken before
        jobs.enqueue_many([{"account_id": number} for number in range(10, 60)])


ENQUEUE = """
SELECT django_jobs_enqueue('app.noop', idempotency_key => %(key)s, tenant => 'acme',
    unique_for => %(unique_for)s)
"""


@pytest.mark.parametrize("where", ["queue", "gate"])
@pytest.mark.parametrize("unique_for", [None, 3600])
def test_a_job_whose_key_another_holds_needs_no_room(where: str, unique_for: float | None) -> None:
    first = noop.using(tenant="acme", idempotency_key="a", unique_for=unique_for)
    held = first.enqueue()
    if unique_for:
        run_jobs()  # it has ended, and holds its key
    full = noop.using(tenant="acme").enqueue()
    if where == "gate":
        Tenant.objects.create(name="acme", max_waiting=1)
    else:
        Queue.objects.update(max_backlog=1)
    Queue.objects.forget_recent()
    again = first.enqueue()
    assert (again.pk, again.deduplicated) == (held.pk, True)
    with pytest.raises(DuplicateJob):
        first.using(on_duplicate="raise").enqueue()
    assert first.enqueue_many([{}, {}], idempotency_keys=["a", "a"]) == [held.pk, held.pk]
    lasting = None if unique_for is None else timedelta(seconds=unique_for)
    assert run_sql(ENQUEUE, {"key": "a", "unique_for": lasting}) == [(held.pk,)]
    if unique_for is None:
        replaced = first.using(on_duplicate="replace", priority=7).enqueue()
        assert (replaced.priority, Job.objects.count()) == (7, 2)
    with pytest.raises(QueueFull):
        first.using(idempotency_key="b").enqueue()
    with pytest.raises(QueueFull):
        first.enqueue_many([{}, {}], idempotency_keys=["a", "b"])
    with pytest.raises((InternalError, OperationalError)), transaction.atomic():
        run_sql(ENQUEUE, {"key": "b", "unique_for": lasting})
    cancel(full.pk)
    if unique_for is None:
        cancel(replaced.pk)
    assert len(set(first.enqueue_many([{}, {}], idempotency_keys=["c", "c"]))) == 1


@pytest.mark.django_db(transaction=True)
def test_eight_producers_leave_no_more_above_the_limit_than_were_about_to_commit() -> None:
    Resource.objects.filter(name="stripe").update(max_waiting=20)
    Resource.objects.forget_recent()

    def act(number: int) -> int:
        refused = 0
        for _ in range(20):
            try:
                refund_payment.enqueue(number)
            except QueueFull:
                refused += 1
        return refused

    refused = in_threads(8, act)
    assert 20 <= len(waiting()) <= 20 + 7
    assert sum(refused) == 160 - len(waiting())


# Declaring


@pytest.mark.parametrize("wrong", [0, -1, 2**31, 1.5, "7", True])
def test_a_key_refuses_what_is_no_limit(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_waiting is a whole number from 1 to"):
        Concurrency("k", max_waiting=wrong)


@pytest.mark.parametrize("on_conflict", ["discard", "cancel_running", "replace_waiting"])
def test_a_key_for_which_none_waits_has_no_limit_of_those_that_wait(on_conflict: str) -> None:
    with pytest.raises(ValueError, match=f"wait': with '{on_conflict}' no more jobs wait"):
        Concurrency("k", on_conflict=on_conflict, max_waiting=3)


@pytest.mark.parametrize("model", [Resource, Tenant])
def test_a_row_refuses_what_is_no_limit(model: Any) -> None:
    with pytest.raises(IntegrityError, match="max_waiting"), transaction.atomic():
        model.objects.create(name="new", max_waiting=0)


def test_the_lines_are_compared_byte_by_byte_in_all_partitions() -> None:
    rows = run_sql(
        "SELECT DISTINCT collation_name FROM information_schema.columns"
        " WHERE table_name LIKE 'django_jobs_job%' AND column_name = 'gates'"
    )
    assert rows == [("C",)]


def test_a_tenant_that_was_paused_by_name_keeps_the_limit_that_it_got() -> None:
    limits.pause_tenants(["acme", "newt"])
    Tenant.objects.filter(name="acme").update(max_waiting=7)
    limits.resume_tenants(["acme", "newt"])
    assert list(Tenant.objects.values_list("name", "max_waiting")) == [("acme", 7)]
