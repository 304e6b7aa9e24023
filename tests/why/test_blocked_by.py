"""What a job waits for, in words."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from django_jobs.domain.breaker import PROBES
from django_jobs.domain.gates import Gates
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.models import (
    Dependency,
    Job,
    Queue,
    Receipt,
    Resource,
    Schedule,
    Tenant,
)
from django_jobs.why.evaluation import explain
from django_jobs.why.explanation import plain
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment, transfer_funds
from tests.app.jobs import noop
from tests.factories import copies_of, enqueue_and_claim, register_worker, run_sql

pytestmark = pytest.mark.django_db


def stripe(**fields: Any) -> Resource:
    return Resource.objects.create(name="stripe", **fields)


def test_a_job_that_is_not_blocked_waits_for_nothing() -> None:
    for job in (noop.enqueue(), noop.using(delay=100).enqueue(), Job(status="succeeded")):
        assert job.blocked_by == ""


def test_a_concurrency_key_names_the_job_that_holds_it() -> None:
    job = charge_account.enqueue(7)
    (holder,) = copies_of(job)
    assert job.blocked_by == (f"the concurrency key account:7 (limit 1): job {holder} holds it")
    assert charge_account.enqueue(8).blocked_by == "its turn"


def test_a_key_with_a_higher_limit_names_three_of_its_holders() -> None:
    job = charge_account.enqueue(7)
    Job.objects.update(gates=Gates(queue="default", key="account:7", limit=5).text)
    job.refresh_from_db()
    assert job.blocked_by == "its turn"
    first = ", ".join(map(str, sorted(copies_of(job, 5))[:3]))
    assert job.blocked_by == (
        f"the concurrency key account:7 (limit 5): jobs {first} and 2 more hold it"
    )


def test_a_resource_that_is_full_shows_its_limit() -> None:
    row = stripe(max_concurrency=2)
    job = refund_payment.enqueue(1)
    copies_of(job)
    assert job.blocked_by == "its turn"
    copies_of(job, 2)
    assert job.blocked_by == "the resource stripe (2 of 2 taken)"
    row.max_concurrency = 1  # lowered below what runs
    row.save()
    assert job.blocked_by == "the resource stripe (1 of 1 taken)"


def test_a_paused_resource_shows_the_reason() -> None:
    stripe()
    limits.pause_resources(["stripe"], reason="maintenance")
    assert refund_payment.enqueue(1).blocked_by == "the resource stripe is paused: maintenance"


def test_an_open_breaker_shows_until_when() -> None:
    stripe(breaker_open_for=3_600.0)
    job = refund_payment.enqueue(1)
    limits.open_breaker(["stripe"])
    until = timezone.localtime(Resource.objects.get().breaker_changed_at) + timedelta(hours=1)
    assert job.blocked_by.startswith("the breaker of stripe is open until ")
    assert job.blocked_by.endswith(f"{until:%H:%M:%S %Z}")
    Resource.objects.update(breaker_open_for=90_000.0)
    assert f"{until + timedelta(days=1):%Y-%m-%d}" in job.blocked_by
    run_sql("UPDATE django_jobs_resource SET breaker_changed_at = now() - interval '2 days'")
    assert job.blocked_by == "the breaker of stripe is open"


def test_a_half_open_breaker_lets_few_try() -> None:
    stripe(breaker_state="half_open")
    job = refund_payment.enqueue(1)
    copies_of(job, PROBES - 1)
    assert job.blocked_by == "its turn"
    copies_of(job)
    assert job.blocked_by == "the breaker of stripe is half open and lets few jobs try"


def test_what_hangs_since_before_a_breaker_was_half_open_does_not_count_as_a_try() -> None:
    stripe(breaker_state="half_open", breaker_changed_at=timezone.now() - timedelta(minutes=1))
    job = refund_payment.enqueue(1)
    worker, begun = register_worker(), timezone.now() - timedelta(hours=1)
    Job.objects.filter(pk__in=copies_of(job, 2)).update(
        status="running", worker_id=worker, claimed_at=begun
    )
    trying = copies_of(job, PROBES - 1)
    assert job.blocked_by == "its turn"
    trying += copies_of(job)
    (gate,) = (gate for gate in explain(job).gates if gate.name == "resource")
    named = ", ".join(f"#{one} (ready)" for one in trying)
    assert plain(gate.text) == f"{job.blocked_by}: {named}"
    assert job.blocked_by == "the breaker of stripe is half open and lets few jobs try"


def test_a_retry_beyond_the_budget_says_so() -> None:
    stripe(retry_budget=0.2, recent_starts=50.0, recent_retries=20.0)
    Resource.objects.update(counted_at=timezone.now())
    job = refund_payment.enqueue(1)
    job.refresh_from_db()
    assert job.blocked_by == "its turn"
    job.failures = 1
    assert job.blocked_by == "the retry budget of stripe is used up"
    Resource.objects.update(retry_budget=1.0)
    assert job.blocked_by == "its turn"


def test_a_rate_without_tokens_shows_the_rate() -> None:
    stripe(rate=50.0, tokens=0.5, refilled_at=timezone.now() + timedelta(hours=1))
    job = refund_payment.enqueue(1)
    assert job.blocked_by == "the rate of stripe (50 in 1 s)"
    Resource.objects.update(refilled_at=timezone.now() - timedelta(hours=1))
    assert job.blocked_by == "its turn"


def test_a_resource_without_a_row_holds_nothing() -> None:
    stripe()
    job = refund_payment.enqueue(1)
    Resource.objects.all().delete()
    assert job.blocked_by == "its turn"


def test_a_paused_tenant_and_a_full_one_are_named() -> None:
    job = bill_tenant.enqueue("acme")
    assert job.blocked_by == "its turn among the tenants of queue default"
    limits.pause_tenants(["acme"], reason="unpaid")
    assert job.blocked_by == "the tenant acme is paused: unpaid"
    limits.resume_tenants(["acme"])
    Tenant.objects.create(name="acme", max_concurrency=1)
    assert job.blocked_by == "its turn among the tenants of queue default"
    copies_of(job)
    assert job.blocked_by == "the tenant acme (1 of 1 taken)"
    later = timezone.now() + timedelta(hours=1)
    Tenant.objects.update(max_concurrency=None, rate=5.0, tokens=0.5, refilled_at=later)
    assert job.blocked_by == "the rate of acme (5 in 1 s)"
    Tenant.objects.update(tokens=5, burst=1)  # which the ready job holds
    assert job.blocked_by == "the rate of acme (5 in 1 s)"


def test_a_quarantined_job_says_so_with_and_without_gates() -> None:
    plain, gated = noop.enqueue(), charge_account.enqueue(7)
    quarantines.quarantine("app.noop", reason="leaks")
    quarantines.block("default")
    plain.refresh_from_db()
    assert plain.blocked_by == "its job type is quarantined: leaks"
    quarantines.quarantine(gated.job_type)
    assert gated.blocked_by == "its job type is quarantined"


def test_a_closed_queue_is_named_and_not_the_turn() -> None:
    job = charge_account.enqueue(7)
    operations.pause(["default"], reason="deploy")
    assert job.blocked_by.startswith("queue default is paused")
    assert job.blocked_by.endswith("deploy")
    assert "turn" not in plain(explain(job).sentence)
    copies_of(job)
    key, queue = job.blocked_by.split("; ")
    assert key.startswith("the concurrency key account:7")
    assert queue.startswith("queue default is paused")
    Job.objects.exclude(pk=job.pk).delete()
    operations.resume(["default"])
    enqueue_and_claim()
    Queue.objects.filter(name="default").update(max_concurrency=1)
    assert job.blocked_by == "the limit of queue default is full"


def test_a_waiting_job_names_its_schedule() -> None:
    schedule = Schedule.objects.create(name="nightly", job_type="app.noop", every=60.0)
    waiting = Job(status="waiting", schedule_id=schedule.pk)
    assert waiting.blocked_by == "the previous job of the schedule nightly"
    schedule.delete()
    assert waiting.blocked_by == "the previous job of its schedule"
    assert Job(status="waiting").blocked_by == "its prerequisites"


def test_all_gates_that_hold_a_job_are_named_in_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for name in ("stripe", "ledger"):
        Resource.objects.create(name=name, max_concurrency=1)
    job = transfer_funds.enqueue(7, "acme")
    copies_of(job, 3)
    limits.pause_tenants(["acme"])
    with django_assert_num_queries(1):
        text = job.blocked_by
    assert [part.split(" (")[0] for part in text.split("; ")] == [
        "the tenant acme is paused: paused",
        "the resource ledger",
        "the resource stripe",
        "the concurrency key account:7:EUR",
    ]


def receipt(job: Job, key: str, until: Any) -> None:
    text = None if until is None else until.isoformat()
    Receipt.objects.create(
        job=job, key=key, attempt=1, answer={"until": text}, made_at=timezone.now()
    )


def test_a_handler_that_waits_names_the_signal_and_its_time_out() -> None:
    job = noop.enqueue()
    job.status, job.awaits = "waiting", "approval"
    assert job.blocked_by == "the signal approval"
    receipt(job, "signal:payment", timezone.now())
    receipt(job, "signal:approval", timezone.now() + timedelta(days=2))
    date = timezone.localtime(timezone.now() + timedelta(days=2))
    assert job.blocked_by.startswith(f"the signal approval, until {date:%Y-%m-%d} ")
    Receipt.objects.update(answer={"until": None})
    assert job.blocked_by == "the signal approval"


def test_a_handler_that_sleeps_says_until_when() -> None:
    job = noop.using(delay=100).enqueue()
    job.attempt = 1
    assert job.blocked_by == "", "it waits for a retry"
    receipt(job, "sleep:over", timezone.now() - timedelta(days=1))
    assert job.blocked_by == ""
    until = timezone.now() + timedelta(days=3)
    receipt(job, "sleep:cooling", until)
    shown = f"{timezone.localtime(until):%Y-%m-%d %H:%M:%S %Z}"
    assert job.blocked_by == f"its sleep cooling, until {shown}"


def test_a_step_names_the_first_of_those_it_waits_for() -> None:
    step = noop.enqueue()
    step.status, step.prerequisites = "waiting", 5
    assert step.blocked_by == "its prerequisites"
    parents = [noop.enqueue() for _ in range(5)]
    for number, parent in enumerate(parents):
        Job.objects.filter(pk=parent.pk).update(step=f"part-{number}")
        Dependency.objects.create(workflow_run_id=1, parent=parent, child=step, when="succeeded")
    assert step.blocked_by == "the steps part-0, part-1, part-2 and more"
    Job.objects.filter(pk__in=[one.pk for one in parents[1:]]).update(status="succeeded")
    assert step.blocked_by == "the step part-0"
