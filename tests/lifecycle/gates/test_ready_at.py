"""When its gates let a job go is kept on the job and on its run, and counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.lifecycle.gates import arrivals
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.gates.arrivals import LoneGate
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.settling import Ending, HandOver, settle
from django_jobs.maintenance.tasks import Folding
from django_jobs.metrics.exposition import render
from django_jobs.models import Job, Resource, Run
from tests.app.gate_jobs import charge_account, refund_payment
from tests.app.jobs import noop
from tests.factories import claim_ready, fold_runs, register_worker, run_sql
from tests.metrics.totals import take_totals

pytestmark = pytest.mark.django_db


def by_admission() -> int:
    pk = charge_account.enqueue(7).pk
    admit({"default": 100}, FairShares())
    return pk


def by_arrival() -> int:
    pk = charge_account.enqueue(7).pk
    arrivals.admit_arrivals(LoneGate.KEY, {"default": 10})
    return pk


def by_hand_over() -> int:
    first, next_ = charge_account.enqueue(7), charge_account.enqueue(7)
    admit({"default": 100}, FairShares())
    held = claim_ready(register_worker())
    settle([Ending(one, Snoozed(seconds=60)) for one in held], hand_over=HandOver())
    assert Run.objects.get().job_id == first.pk
    return next_.pk


def within_a_budget() -> int:
    Resource.objects.create(name="stripe", retry_budget=0.5)
    pk = refund_payment.enqueue(1).pk
    admit({"default": 100}, FairShares())
    return pk


def from_quarantine() -> int:
    pk = noop.enqueue().pk
    run_sql("UPDATE django_jobs_job_live SET status = 'blocked', reason = 'quarantined'")
    quarantines.unblock(noop.name)
    return pk


@pytest.mark.parametrize(
    "let_go", [by_admission, by_arrival, by_hand_over, within_a_budget, from_quarantine]
)
def test_each_way_notes_it_on_the_job_and_its_run_has_it(let_go: Callable[[], int]) -> None:
    pk = let_go()
    job = Job.objects.get(pk=pk)
    assert job.status == "ready"
    assert job.ready_at is not None
    assert job.ready_at >= job.available_at
    for one in claim_ready(register_worker()):
        settle([Ending(one, Succeeded())])
    run = Run.objects.get(job_id=pk)
    assert (run.ready_at, run.available_at) == (job.ready_at, job.available_at)
    assert run.ready_at <= run.claimed_at


def test_a_job_without_gates_has_none() -> None:
    noop.enqueue()
    (held,) = claim_ready(register_worker())
    settle([Ending(held, Succeeded())])
    assert (Run.objects.get().ready_at, Job.objects.get().ready_at) == (None, None)


def test_the_time_at_gates_is_part_of_the_wait_and_has_a_histogram() -> None:
    noop.enqueue()
    charge_account.enqueue(7)
    admit({"default": 100}, FairShares())
    settle([Ending(one, Succeeded()) for one in claim_ready(register_worker())])
    run_sql(
        "UPDATE django_jobs_run SET available_at = claimed_at - interval '1 h',"
        " ready_at = claimed_at - interval '15 min' + (ready_at - ready_at)"
    )
    fold_runs(Folding())
    gated, plain = sorted(take_totals().types, key=lambda one: one.job_type != charge_account.name)
    assert plain.waiting.seconds == pytest.approx(3600)
    assert gated.waiting.seconds == pytest.approx(3600)
    assert (gated.gate.count, plain.gate.count) == (1, 0)
    assert gated.gate.seconds == pytest.approx(2700)
    text = render()[1].decode()
    samples = [line for line in text.splitlines() if line.startswith("django_jobs_run_gate_sec")]
    assert samples
    assert all(f'job_type="{charge_account.name}"' in line for line in samples)


def test_a_time_at_gates_of_an_earlier_attempt_does_not_count() -> None:
    charge_account.enqueue(7)
    admit({"default": 100}, FairShares())
    run_sql("UPDATE django_jobs_job_live SET ready_at = ready_at - interval '1 h'")
    settle([Ending(one, Succeeded()) for one in claim_ready(register_worker())])
    fold_runs(Folding())
    (totals,) = take_totals().types
    assert (totals.gate.count, totals.gate.seconds) == (0, 0)
