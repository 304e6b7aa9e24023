"""Breakers open and close by what attempts report, and failures meanwhile are not counted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_jobs.domain.admission import FairShares
from django_jobs.domain.breaker import PROBES
from django_jobs.domain.outcomes import Lost, Outcome, Snoozed, Succeeded, TimedOut
from django_jobs.lifecycle import pruning
from django_jobs.lifecycle.gates import admission, breakers
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import limits
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job, Resource, ResourceOutcome, Run
from django_jobs.signals import worker_event
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    explain,
    failure,
    heard,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _stripe() -> None:
    Resource.objects.create(name="stripe", breaker_failures=3)


def admit() -> admission.Admission:
    return admission.admit({"default": 99}, FairShares())


def running(count: int = 1, **options: Any) -> list[ClaimedJob]:
    """Jobs that use the resource, claimed."""
    for number in range(count):
        refund_payment.using(**options).enqueue(number)
    admit()
    return claim_ready(register_worker())


def end(held: list[ClaimedJob], outcome: Outcome) -> None:
    settle([Ending(one, outcome) for one in held])


def later(seconds: float) -> None:
    """Let time pass for the breaker and for what it counted."""
    run_sql(
        f"UPDATE django_jobs_resource SET breaker_changed_at = breaker_changed_at"
        f" - interval '{seconds} s'"
    )
    run_sql(
        f"UPDATE django_jobs_resourceoutcome SET happened_at = happened_at - interval '{seconds} s'"
    )


def state() -> str:
    return Resource.objects.get().breaker_state


def half_opened(**options: Any) -> list[ClaimedJob]:
    """Jobs that try while the breaker is half open."""
    limits.open_breaker(["stripe"])
    for number in range(PROBES + 2):
        refund_payment.using(**options).enqueue(number)
    admit()
    assert not claim_ready(register_worker())
    later(30)
    admit()
    assert state() == "half_open"
    return claim_ready(register_worker())


@pytest.mark.parametrize("outcome", [failure(), TimedOut(seconds=1.0)])
def test_it_opens_at_the_failures_of_its_window_with_an_event(outcome: Outcome) -> None:
    end(running(2), outcome)
    admit()
    assert state() == "closed"
    end(running(1), outcome)
    refund_payment.enqueue(9)
    with heard(worker_event) as events:
        admit()
        admit()
    row = Resource.objects.get()
    assert (row.breaker_state, row.breaker_reason) == ("open", "3 failures in 60 s")
    assert [(one["sender"], one["level"], one["fields"]) for one in events] == [
        (
            "breaker_opened",
            logging.WARNING,
            {"resource": "stripe", "reason": "3 failures in 60 s"},
        )
    ]
    assert not Job.objects.filter(status="ready").exists()
    assert Job.objects.get(status="blocked").blocked_by.startswith("the breaker of stripe is open")


def test_failures_before_the_window_are_not_counted() -> None:
    end(running(2), failure())
    later(61)
    end(running(2), failure())
    admit()
    assert state() == "closed"


@pytest.mark.parametrize("seconds", [1e13, 1e99])
def test_a_window_of_ages_stops_no_admission(seconds: float) -> None:
    Resource.objects.update(breaker_window=seconds, breaker_open_for=seconds)
    end(running(3), failure())
    running()
    assert Resource.objects.get().breaker_state == "open"
    assert running() == []


@pytest.mark.parametrize("outcome", [failure(final=True), Snoozed(seconds=9), Succeeded()])
def test_what_says_nothing_about_the_dependency_is_not_recorded(outcome: Outcome) -> None:
    end(running(3), outcome)
    assert not ResourceOutcome.objects.exists()


def test_an_attempt_that_lost_its_lease_is_not_recorded() -> None:
    (held,) = running()
    settle_one(held, Succeeded())
    settle_one(held, failure())
    assert not ResourceOutcome.objects.exists()


def test_a_failure_while_it_is_open_is_not_counted_and_waits_at_the_gate() -> None:
    (held,) = running(max_attempts=1)
    limits.open_breaker(["stripe"])
    settled = settle_one(held, failure())
    job, run = Job.objects.get(), Run.objects.get()
    assert (job.status, job.failures, job.attempt, job.reason) == ("blocked", 0, 1, "")
    assert run.outcome == "failed"
    assert run.error_message == "boom (not counted: the breaker of stripe is not closed)"
    assert settled.decision is not None
    assert not ResourceOutcome.objects.exists()
    admit()
    assert Job.objects.get().status == "blocked"
    limits.close_breaker(["stripe"])
    admit()
    (held,) = claim_ready(register_worker())
    settle_one(held, failure())
    assert Job.objects.get().status == "dead"  # closed: it is counted


def test_what_fails_meanwhile_goes_behind_those_that_wait() -> None:
    held = half_opened()
    first = held[0]
    settle_one(first, failure())
    waiting = Job.objects.filter(status="blocked").order_by("rank", "id")
    assert [row.pk for row in waiting][-1] == first.id


def test_probes_that_their_worker_lost_try_again() -> None:
    """The breaker would stay half open for ever if what they took were not free."""
    held = half_opened()
    end(held, Lost(reason="killed"))
    assert state() == "half_open"
    again = claim_ready(register_worker())
    assert [one.id for one in again] == [one.id for one in held]
    end(again, Succeeded())
    admit()
    assert state() == "closed"
    assert claim_ready(register_worker())


def test_half_open_it_lets_few_try_and_opens_at_the_first_failure() -> None:
    held = half_opened()
    assert len(held) == PROBES
    settle_one(held[0], Succeeded())
    settle_one(held[1], failure())
    with heard(worker_event) as events:
        admit()
    assert state() == "open"
    assert [event["sender"] for event in events] == ["breaker_opened"]
    assert not Job.objects.filter(status="ready").exists()
    settle_one(held[2], Succeeded())  # too late
    admit()
    assert state() == "open"


def test_jobs_that_hang_since_before_leave_room_for_those_that_try() -> None:
    hanging = running(PROBES + 1)
    limits.open_breaker(["stripe"])
    for number in range(PROBES + 1):
        refund_payment.enqueue(number)
    later(30)
    admit()
    assert len(claim_ready(register_worker())) == PROBES
    end(hanging, TimedOut(seconds=300.0))
    admit()
    assert state() == "half_open"  # theirs says nothing about now
    assert not Job.objects.filter(status="ready").exists()


def test_as_many_successes_as_may_try_at_once_close_it() -> None:
    held = half_opened()
    end(held[:2], Succeeded())
    admit()
    assert state() == "half_open"
    end(held[2:], Succeeded())
    with heard(worker_event) as events:
        admit()
    assert state() == "closed"
    assert [event["fields"]["reason"] for event in events] == [
        "3 jobs succeeded while it was half open"
    ]
    assert not Job.objects.filter(status="blocked").exists()


@pytest.mark.parametrize("outcome", [failure(final=True), Snoozed(seconds=9)])
def test_what_says_nothing_about_the_dependency_does_not_close_it(outcome: Outcome) -> None:
    end(half_opened(), outcome)
    admit()
    assert state() == "half_open"
    end(claim_ready(register_worker()), failure())
    admit()
    assert state() == "open"


def test_it_goes_on_after_the_clock_of_the_database_went_back() -> None:
    limits.open_breaker(["stripe"])
    later(-300)
    for number in range(PROBES):
        refund_payment.enqueue(number)
    admit()
    later(30)
    admit()
    assert state() == "half_open"
    later(-300)
    admit()
    end(claim_ready(register_worker()), Succeeded())
    admit()
    assert state() == "closed"


def test_it_closes_with_nobody_waiting() -> None:
    held = half_opened()
    Job.objects.filter(status__in=("blocked", "ready")).delete()
    end(held, Succeeded())
    admit()
    assert state() == "closed"


def test_what_began_before_the_last_change_says_nothing() -> None:
    stragglers = running(2)
    limits.open_breaker(["stripe"])
    refund_payment.enqueue(9)
    later(30)
    Resource.objects.update(breaker_changed_at=Now())
    admit()
    limits.close_breaker(["stripe"])
    end(stragglers, failure())
    assert not ResourceOutcome.objects.exists()


def test_a_job_that_is_delivered_at_most_once_is_dead_even_so() -> None:
    held = running(1)[0]._replace(at_most_once=True)
    limits.open_breaker(["stripe"])
    settle_one(held, failure())
    assert Job.objects.get().status == "dead"


def test_an_open_breaker_by_hand_needs_no_rule_and_hands_no_slot_over() -> None:
    Resource.objects.update(breaker_failures=None, max_concurrency=1)
    (held,) = running(2)
    limits.open_breaker(["stripe"])
    settle_one(held, Succeeded())
    assert not Job.objects.filter(status="ready").exists()
    later(30)
    admit()
    assert state() == "half_open"


def test_jobs_without_resources_cost_nothing() -> None:
    held = enqueue_and_claim(noop)
    with CaptureQueriesContext(connection) as queries:
        settle_one(held, failure())
    assert len(queries) == 1


def test_outcomes_that_no_breaker_counts_are_pruned() -> None:
    end(running(2), failure())
    ResourceOutcome.objects.filter(pk=F("pk")).update(happened_at="2026-01-01T00:00Z")
    end(running(1), failure())
    assert pruning.prune_old(pruning.PRUNE_RESOURCE_OUTCOMES) == 2
    assert ResourceOutcome.objects.count() == 1


@pytest.mark.usefixtures("fresh_tables")
def test_counts_and_pruning_read_no_more_than_they_need() -> None:
    run_sql(
        "INSERT INTO django_jobs_resourceoutcome (resource, failed, happened_at)"
        " SELECT 'stripe', true, now() - make_interval(secs => 20000 - n)"
        " FROM generate_series(1, 20000) AS n"
    )
    run_sql("ANALYZE django_jobs_resourceoutcome")
    Resource.objects.update(breaker_state="half_open", breaker_changed_at=Now())
    for statement, parameters, most in (
        (breakers.COUNTED, {}, 5),
        (pruning.PRUNE_RESOURCE_OUTCOMES, {"page": 100}, 100),
    ):
        scans = [
            node
            for node in explain(statement, parameters)
            if node.get("Relation Name") == "django_jobs_resourceoutcome"
            and "Scan" in node["Node Type"]
        ]
        assert scans
        assert "Seq Scan" not in {node["Node Type"] for node in scans}
        assert max(node["Actual Rows"] for node in scans) <= most
