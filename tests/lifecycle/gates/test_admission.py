"""Blocked jobs become ready as their gates have room, and never more than that."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.db.models.functions import Now
from pytest_django import DjangoAssertNumQueries

from django_jobs import Concurrency, JobType
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates import admission
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.promoting import peek, promote
from django_jobs.models import Job, Resource, Tenant
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.factories import (
    claim_ready,
    declared,
    failure,
    open_elsewhere,
    register_worker,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

ROOM = {"default": 1_000}


def handler(account: str = "k") -> None:
    """What declared types of these tests call."""


def admit(room: dict[str, int] | None = None, **options: Any) -> admission.Admission:
    return admission.admit(ROOM if room is None else room, FairShares(), **options)


def statuses() -> list[str]:
    return list(Job.objects.order_by("id").values_list("status", flat=True))


def resource(**values: Any) -> Resource:
    return Resource.objects.create(name="stripe", **values)


def test_a_key_admits_its_limit_in_the_order_of_rank() -> None:
    low, other = charge_account.enqueue(7), charge_account.enqueue(8)
    high = charge_account.using(priority=10).enqueue(7)
    assert admit().queues == {"default"}
    ready = set(Job.objects.filter(status="ready").values_list("pk", flat=True))
    assert ready == {high.pk, other.pk}
    admit()
    assert Job.objects.get(pk=low.pk).status == "blocked"


def test_a_job_that_another_session_has_locked_leaves_its_slot_to_the_next() -> None:
    locked, free = charge_account.enqueue(7), charge_account.enqueue(7)
    with open_elsewhere("SELECT FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked.pk]):
        admit()
    assert list(Job.objects.filter(status="ready").values_list("pk", flat=True)) == [free.pk]


def test_a_poll_says_that_jobs_wait_at_their_gates() -> None:
    assert not peek(["default"]).gated
    charge_account.enqueue(7)
    assert peek(["default"]).gated
    admit()
    assert not peek(["default"]).gated


def test_a_promoted_job_waits_at_its_gates() -> None:
    charge_account.enqueue(7)
    later = charge_account.using(delay=0.001).enqueue(7)
    admit()
    time.sleep(0.002)
    assert promote()[0] == 1
    assert Job.objects.get(pk=later.pk).status == "blocked"
    admit()
    assert Job.objects.get(pk=later.pk).status == "blocked"


def test_the_slots_of_a_resource_are_counted_from_ready_and_running_jobs() -> None:
    resource(max_concurrency=2)
    for number in range(5):
        refund_payment.enqueue(number)
    admit()
    (held, *_) = claim_ready(register_worker(), limit=1)
    admit()
    assert sorted(statuses()) == ["blocked"] * 3 + ["ready", "running"]
    Job.objects.filter(pk=held.id).delete()  # by hand: nothing settles it
    admit()
    assert sorted(statuses()) == ["blocked"] * 2 + ["ready"] * 2


@pytest.mark.parametrize("handler", [refund_payment, bill_tenant])
def test_an_admission_is_three_statements(
    handler: JobType[..., Any], django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """And two for its transaction. A job that comes alone waits for all of them."""
    resource(max_concurrency=2)
    Tenant.objects.create(name="a", weight=2)
    handler.enqueue("a")
    with django_assert_num_queries(5):
        admit()
    assert statuses() == ["ready"]


def test_a_paused_resource_admits_nothing() -> None:
    row = resource(max_concurrency=2)
    Resource.objects.filter(pk=row.pk).update(paused_at="2026-01-01T00:00Z")
    refund_payment.enqueue(1)
    assert not admit().queues
    Resource.objects.filter(pk=row.pk).update(paused_at=None)
    assert admit().queues


def test_a_limit_that_was_lowered_drains_down_and_kills_nothing() -> None:
    row = resource(max_concurrency=4)
    for number in range(6):
        refund_payment.enqueue(number)
    admit()
    held = claim_ready(register_worker())
    Resource.objects.filter(pk=row.pk).update(max_concurrency=1)
    admit()
    assert Resource.objects.get().over_limit
    for one in held[:3]:
        settle_one(one, Succeeded())
        admit()
        assert "ready" not in statuses()
    settle_one(held[3], Succeeded())
    admit()
    assert statuses().count("ready") == 1
    assert not Resource.objects.get().over_limit


def test_a_rate_spends_a_token_for_each_start_and_refills_by_the_clock() -> None:
    resource(rate=2.0, rate_seconds=10.0, burst=3)
    for number in range(6):
        refund_payment.enqueue(number)
    found = admit()
    assert statuses().count("ready") == 3
    assert found.tokens_in is not None
    assert 0 < found.tokens_in <= 5
    assert not admit().queues
    Resource.objects.update(refilled_at="2020-01-01T00:00Z")
    claim_ready(register_worker())
    admit()
    assert statuses().count("ready") == 3  # the burst again, and no more


def test_what_was_admitted_and_not_claimed_keeps_its_tokens() -> None:
    """Others may be ahead of it in the queue. All of it starts once they have ended."""
    resource(rate=2.0, rate_seconds=36_000.0, burst=3)
    for number in range(20):
        refund_payment.enqueue(number)
    for _ in range(4):
        Resource.objects.update(refilled_at="2020-01-01T00:00Z")
        admit()
    assert statuses().count("ready") == 3
    found = admit()
    assert (found.full, found.tokens_in) == (True, None)  # a claim comes first
    claim_ready(register_worker(), limit=1)
    for _ in range(4):
        admit()
    assert statuses().count("ready") == 2  # the tokens that came in meanwhile are lost
    assert Resource.objects.get().tokens == pytest.approx(0, abs=0.01)


def test_what_a_metered_resource_has_made_ready_takes_room() -> None:
    resource(rate=1_000.0)
    for number in range(20):
        refund_payment.enqueue(number)
    for _ in range(3):
        found = admit({"default": 4})
    assert statuses().count("ready") == 4
    assert found.full
    claim_ready(register_worker(), limit=3)
    assert not admit({"default": 4}).full
    assert statuses().count("ready") == 4


def test_ready_jobs_of_types_of_other_workers_take_no_room() -> None:
    for number in range(4):
        bill_tenant.enqueue(f"a{number}")
    admit({"default": 4})
    Job.objects.update(job_type="another.type")
    bill_tenant.enqueue("b")
    assert not admit({"default": 4}).full
    assert statuses().count("ready") == 5


def test_a_rate_goes_on_after_the_clock_of_the_database_went_back() -> None:
    resource(rate=1_000.0, burst=1, tokens=0.5)
    Resource.objects.update(refilled_at=Now() + timedelta(minutes=5))
    refund_payment.enqueue(1)
    until(lambda: admit().queues, what="a token comes in")


def test_a_rate_and_a_burst_that_are_edited_hold_from_the_next_admission() -> None:
    row = resource(rate=0.001, burst=2)
    for number in range(20):
        refund_payment.enqueue(number)
    admit()
    assert statuses().count("ready") == 2
    claim_ready(register_worker())
    assert not admit().queues
    Resource.objects.filter(pk=row.pk).update(rate=1_000.0, burst=6)
    until(lambda: admit().queues, what="the new rate brings tokens")
    Resource.objects.update(refilled_at="2020-01-01T00:00Z")
    admit()
    assert statuses().count("ready") == 6
    Resource.objects.filter(pk=row.pk).update(rate=0.001, burst=1)
    claim_ready(register_worker())
    admit()
    assert statuses().count("ready") <= 1
    Resource.objects.filter(pk=row.pk).update(rate=None, burst=None)
    admit()
    assert "blocked" not in statuses()


def test_a_tenant_has_a_rate_in_all_queues() -> None:
    Tenant.objects.create(name="acme", rate=2.0, rate_seconds=36_000.0, burst=3, max_concurrency=9)
    for queue in ("default", "bulk"):
        for tenant in ("acme", "acme", "acme", "otto"):
            bill_tenant.using(queue=queue).enqueue(tenant)
    found = admit({"default": 9, "bulk": 9})
    assert (found.full, found.tokens_in) == (False, pytest.approx(18_000, rel=0.01))
    ready = Job.objects.filter(status="ready").values_list("tenant", flat=True)
    assert sorted(ready) == ["acme"] * 3 + ["otto"] * 2
    Tenant.objects.update(refilled_at="2020-01-01T00:00Z")
    found = admit({"default": 9, "bulk": 9})  # what is ready has the whole burst
    assert (found.queues, found.full, found.tokens_in) == (set(), True, None)
    assert Tenant.objects.get().tokens == pytest.approx(0, abs=0.01)
    Tenant.objects.update(refilled_at="2020-01-01T00:00Z")
    for queue in ("default", "bulk"):
        claim_ready(register_worker(), queue)
    admit({"default": 9, "bulk": 9})
    assert statuses().count("ready") == 3
    Tenant.objects.update(rate=None, burst=None)
    assert admit({"default": 9, "bulk": 9}).queues == set()
    assert "blocked" not in statuses()


def test_the_rate_of_a_tenant_survives_a_clock_that_went_back() -> None:
    Tenant.objects.create(name="acme", rate=1_000.0, burst=1, tokens=0.5)
    Tenant.objects.update(refilled_at=Now() + timedelta(minutes=5))
    bill_tenant.enqueue("acme")
    until(lambda: admit().queues, what="a token comes in")


def test_a_wary_admission_passes_over_the_rate_of_a_tenant_whose_row_is_locked() -> None:
    Tenant.objects.create(name="acme", rate=5.0)
    jobs = [bill_tenant.enqueue(name) for name in ("acme", "otto")]
    with open_elsewhere("SELECT FROM django_jobs_tenant FOR UPDATE"):
        found = admit(wary=True)
    assert (found.locked, found.tokens_in) == (True, admission.LOCKED_SECONDS)
    assert [Job.objects.get(pk=job.pk).status for job in jobs] == ["blocked", "ready"]
    admit()
    assert "blocked" not in statuses()


def test_an_admission_loses_no_part_of_a_token() -> None:
    """50/s would be 45/s if each took two milliseconds that no token comes in."""
    resource(rate=500.0, burst=1_800_000, tokens=0.0)  # full after an hour
    Resource.objects.update(refilled_at=Now())
    began = Resource.objects.get().refilled_at
    for number in range(60):
        refund_payment.enqueue(number)
    while "blocked" in statuses():
        admit()
    row = Resource.objects.get()
    assert row.tokens is not None
    assert began is not None
    assert row.refilled_at is not None
    came_in = (row.refilled_at - began).total_seconds() * 500.0
    assert row.tokens + 60 == pytest.approx(came_in, abs=0.01)


def test_no_slot_is_held_by_a_job_that_waits_for_another_gate() -> None:
    resource(max_concurrency=1)
    key = Concurrency("{account}")
    refund_payment.enqueue(1)
    admit()
    with declared(handler, name="both", resources=("stripe",), concurrency=key) as both:
        waits = both.enqueue(account="k")
        admit()
    assert Job.objects.get(pk=waits.pk).status == "blocked"
    with declared(handler, name="alone", concurrency=key) as one:
        alone = one.enqueue(account="k")
        admit()
    assert Job.objects.get(pk=alone.pk).status == "ready"


def test_tenants_share_the_room_and_a_limit_or_a_pause_takes_none_from_the_others() -> None:
    for name in ["big"] * 20 + ["small"] * 2 + ["capped"] * 5 + ["paused"] * 5:
        bill_tenant.enqueue(name)
    Tenant.objects.create(name="capped", max_concurrency=1)
    Tenant.objects.create(name="paused", paused_at="2026-01-01T00:00Z")
    admit({"default": 8})
    ready = Job.objects.filter(status="ready")
    counts = {name: ready.filter(tenant=name).count() for name in ("big", "small", "capped")}
    assert counts == {"big": 5, "small": 2, "capped": 1}
    assert not admit({"default": 8}).queues  # the room is taken


def test_a_worker_admits_tenants_of_its_own_queues_only() -> None:
    bill_tenant.using(queue="bulk").enqueue("t")
    assert not admit().queues


def test_a_quarantined_type_is_passed_over_and_keeps_its_place() -> None:
    charge_account.enqueue(7)
    behind = refund_payment.using(concurrency_key="account:7", resources=()).enqueue(1)
    quarantines.quarantine(charge_account.name)
    admit()
    assert [one.id for one in claim_ready(register_worker())] == [behind.pk]
    quarantines.lift(charge_account.name)
    settle_one_running()
    admit()
    assert statuses()[0] == "ready"


def test_a_line_of_quarantined_jobs_leaves_the_slots_to_the_lines_behind_it() -> None:
    resource(max_concurrency=10)
    for _ in range(12):
        refund_payment.using(priority=10).enqueue(1)
    behind = charge_account.using(resources="stripe")
    behind.enqueue_many([{"account_id": number} for number in range(20)])
    quarantines.quarantine(refund_payment.name)
    admit()
    ready = Job.objects.filter(status="ready")
    assert set(ready.values_list("job_type", flat=True)) == {charge_account.name}
    assert ready.count() == 10


@pytest.mark.parametrize("why", ["quarantined", "unknown", "too new", "beyond the budget"])
@pytest.mark.parametrize("tenant", [None, "t"])
def test_a_free_slot_passes_any_number_of_lines_that_cannot_start(
    why: str, tenant: str | None
) -> None:
    """More than the rounds of an admission: each granted the slot to one of them."""
    resource(max_concurrency=1)
    lines = charge_account.using(resources="stripe", tenant=tenant)
    lines.enqueue_many([{"account_id": number} for number in range(admission.ROUNDS + 30)])
    match why:
        case "quarantined":
            quarantines.quarantine(charge_account.name)
        case "unknown":
            Job.objects.update(job_type="app.of_tomorrow")
        case "too new":
            Job.objects.update(payload_version=9)
        case _:
            Job.objects.update(failures=1)
            Resource.objects.update(retry_budget=0.1, recent_starts=100.0, recent_retries=99.0)
            run_sql("UPDATE django_jobs_resource SET counted_at = now()")
    behind = refund_payment.using(resources="stripe", tenant=tenant, priority=-9).enqueue(1)
    admit({"default": 4})
    assert list(Job.objects.filter(status="ready").values_list("pk", flat=True)) == [behind.pk]


def test_quarantined_tenants_do_not_use_up_the_room() -> None:
    for number in range(30):
        bill_tenant.enqueue(f"a{number}")
    quarantines.quarantine(bill_tenant.name)
    for _ in range(5):
        refund_payment.using(tenant="b", resources=()).enqueue(1)
    admit({"default": 4})
    assert list(Job.objects.filter(status="ready").values_list("tenant", flat=True)) == ["b"] * 4


def test_lines_of_one_job_share_a_resource_that_each_could_fill() -> None:
    resource(max_concurrency=100)
    options = {"concurrency": Concurrency("{account}", limit=50), "resources": "stripe"}
    with declared(handler, **options) as job_type:
        job_type.enqueue_many([{"account": str(number)} for number in range(150)])
        admit()
    assert Job.objects.filter(status="ready").count() == 100


@pytest.mark.parametrize("tenant", [None, "t"])
def test_a_job_with_a_lower_limit_of_its_key_is_not_passed_for_ever(tenant: str | None) -> None:
    """The limit was raised by a deployment, and busy workers keep more jobs under way than the job
    that came before it allows."""
    first: dict[str, Any] = {"name": "first", "tenant": tenant, "concurrency": Concurrency("k")}
    later = first | {"concurrency": Concurrency("k", limit=3)}
    with declared(handler, **later) as raised:
        for _ in range(3):
            raised.enqueue()
        admit()
        held = claim_ready(register_worker())
    with declared(handler, **first) as lower:
        waits = lower.enqueue()
    with declared(handler, **later) as raised:
        for _ in range(6):
            raised.enqueue()
        for one in held:
            assert Job.objects.get(pk=waits.pk).status == "blocked"
            settle_one(one, Succeeded())
            admit()
        assert Job.objects.get(pk=waits.pk).status == "ready"
        Job.objects.filter(pk=waits.pk).delete()
        admit()
    assert statuses().count("ready") == 3


def settle_one_running() -> None:
    running = Job.objects.get(status="running")
    operations.cancel([running.pk])
    Job.objects.filter(pk=running.pk).delete()


def test_a_replayed_or_hurried_job_waits_at_its_gates() -> None:
    charge_account.enqueue(7)
    admit()
    later = charge_account.using(delay=600).enqueue(7)
    operations.run_now([later.pk])
    dead = charge_account.enqueue(7)
    Job.objects.filter(pk=dead.pk).update(status="dead", finished_at="2026-01-01T00:00Z")
    operations.replay([dead.pk], check=lambda job: None)
    assert statuses() == ["ready", "blocked", "blocked"]


def test_one_admission_runs_at_a_time() -> None:
    charge_account.enqueue(7)
    with open_elsewhere(
        "SELECT pg_advisory_xact_lock(hashtext('django_jobs'), hashtext('admission'))"
    ):
        assert not admit().ours
    assert admit().ours


def test_a_process_that_stops_within_an_admission_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped, go_on = threading.Event(), threading.Event()
    ends: list[BaseException] = []

    def stop(*_: object, **__: object) -> None:
        stopped.set()
        go_on.wait(PATIENCE)

    def work() -> None:
        try:
            admit()
        except DatabaseError as error:
            ends.append(error)
        finally:
            connection.close()

    charge_account.enqueue(7)
    monkeypatch.setattr(admission, "_share_out_to", stop)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        stopped.wait(PATIENCE)
        monkeypatch.undo()
        assert not admit().ours
        until(lambda: admit().ours)
    finally:
        go_on.set()
        thread.join()
    assert statuses() == ["ready"]
    assert ends


STRANGE = {
    "no JSON": "no JSON",
    "an object": "{}",
    "wrong types": '["default",[],null,"k","1","wait"]',
    "deep": "[" * 100_000 + "]" * 100_000,
    "a zero byte": r'["default",[],null,"k\u0000",1,"wait"]',
    "half a character": r'["default",[],null,"k\ud800",1,"wait"]',
    "a zero byte in a resource": r'["default",["a\u0000"],null,null,1,"wait"]',
    "half a character of a tenant": r'["default",[],"\udc00",null,1,"wait"]',
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_a_line_that_was_written_by_hand_stays_blocked_and_holds_up_no_other(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    strange = charge_account.enqueue(1)
    Job.objects.filter(pk=strange.pk).update(gates=text)
    good = charge_account.enqueue(2)
    admit()
    assert Job.objects.get(pk=strange.pk).status == "blocked"
    assert Job.objects.get(pk=good.pk).status == "ready"
    assert "gates_unreadable" in caplog.text


@pytest.mark.parametrize("resources", ["stripe", {"stripe": 1}, 7])
def test_a_ready_job_whose_resources_were_written_by_hand_holds_up_no_line(
    resources: Any,
) -> None:
    Resource.objects.create(name="stripe", max_concurrency=5)
    strange = refund_payment.enqueue(1)
    Job.objects.filter(pk=strange.pk).update(resources=resources, status="ready")
    good = [refund_payment.enqueue(2), charge_account.enqueue(2)]
    admit()
    assert {Job.objects.get(pk=job.pk).status for job in good} == {"ready"}


def test_lines_are_looked_at_in_windows() -> None:
    for number in range(5):
        charge_account.enqueue(number)
    first = admit(lines=3)
    assert statuses().count("ready") == 3
    assert first.last
    assert not admit(after=first.last, lines=3).last
    assert statuses().count("ready") == 5


def test_sessions_that_admit_at_once_never_exceed_a_limit() -> None:
    resource(max_concurrency=3)
    for number in range(60):
        charge_account.using(resources=("stripe",)).enqueue(number % 7)
    most: list[int] = []

    def work() -> None:
        worker = register_worker()
        try:
            while Job.objects.filter(status__in=("blocked", "ready")).exists():
                admit()
                for held in claim_ready(worker, limit=2):
                    most.append(Job.objects.filter(status__in=("ready", "running")).count())
                    settle_one(held, Succeeded())
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses() == ["succeeded"] * 60
    assert max(most) <= 3


@pytest.mark.parametrize("policy", ["discard", "cancel_running", "replace_waiting"])
def test_a_conflict_is_resolved_as_declared(policy: str) -> None:
    key = Concurrency("k", on_conflict=policy)
    with declared(handler, name="conflicting", concurrency=key) as job_type:
        first = job_type.enqueue()
        admit()
        (held,) = claim_ready(register_worker())
        second, third = job_type.enqueue(), job_type.enqueue()
        admit()
    rows = {row.pk: row for row in Job.objects.all()}
    if policy == "discard":
        assert [rows[one.pk].status for one in (second, third)] == ["cancelled"] * 2
        assert rows[second.pk].reason.startswith("discarded: ")
        assert rows[first.pk].cancel_requested_at is None
    elif policy == "replace_waiting":
        assert rows[second.pk].reason == f"replaced: job {third.pk} has the same concurrency key k"
        assert [rows[one.pk].status for one in (second, third)] == ["cancelled", "blocked"]
        assert rows[first.pk].cancel_requested_at is None
    else:
        assert rows[first.pk].cancel_requested_at is not None
        assert [rows[one.pk].status for one in (second, third)] == ["cancelled", "blocked"]
    settle_one(held, Succeeded())
    admit()
    expected = "cancelled" if policy == "discard" else "ready"
    assert Job.objects.get(pk=third.pk).status == expected


def test_a_job_that_is_due_for_another_attempt_is_not_discarded() -> None:
    key = Concurrency("k", on_conflict="discard")
    with declared(handler, name="conflicting", concurrency=key) as job_type:
        first = job_type.enqueue()
        admit()
        (held,) = claim_ready(register_worker())
        settle_one(held, failure())
        second = job_type.enqueue()
        admit()
        Job.objects.filter(pk=first.pk).update(available_at=Now())
        promote()
        third = job_type.enqueue()
        admit()
        by_job = dict(Job.objects.values_list("pk", "status"))
        assert by_job == {first.pk: "blocked", second.pk: "ready", third.pk: "cancelled"}
        (held,) = claim_ready(register_worker())
        settle_one(held, Succeeded())
        admit()
        assert Job.objects.get(pk=first.pk).status == "ready"
