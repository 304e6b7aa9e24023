"""Pauses, limits and breakers are obeyed by workers that run, with real processes."""

from __future__ import annotations

import pytest

from django_jobs.lifecycle.operations import limits
from django_jobs.models import Job, Resource
from tests.app.gate_jobs import bill_tenant, refund_payment
from tests.app.jobs import noop

from .processes import Start, until_status

pytestmark = pytest.mark.processes

NEVER = "3600"
"""Seconds between polls, so that only a hint can wake the worker in time."""


def still_blocked_by(job: Job) -> str:
    """What ``job`` waits for, after the worker has looked at its queue several times."""
    for _ in range(3):
        until_status(noop.enqueue(), "succeeded")
    job.refresh_from_db()
    assert job.status == "blocked"
    return job.blocked_by


def test_a_resumed_resource_and_tenant_start_their_jobs_at_once(start_worker: Start) -> None:
    Resource.objects.create(name="stripe")
    limits.pause_resources(["stripe"], reason="maintenance")
    limits.pause_tenants(["acme"])
    start_worker("--poll-seconds", NEVER)
    refund, bill = refund_payment.enqueue(1), bill_tenant.enqueue("acme")
    assert still_blocked_by(refund) == "the resource stripe is paused: maintenance"
    assert still_blocked_by(bill) == "the tenant acme is paused: paused"
    limits.resume_resources(["stripe"])
    until_status(refund, "succeeded")
    limits.resume_tenants(["acme"])
    until_status(bill, "succeeded")


def test_a_breaker_that_is_opened_by_hand_holds_jobs_until_it_is_closed(
    start_worker: Start,
) -> None:
    Resource.objects.create(name="stripe", breaker_open_for=3_600.0)
    limits.open_breaker(["stripe"])
    start_worker("--poll-seconds", NEVER)
    refund = refund_payment.enqueue(1)
    assert still_blocked_by(refund).startswith("the breaker of stripe is open until ")
    limits.close_breaker(["stripe"])
    until_status(refund, "succeeded")
