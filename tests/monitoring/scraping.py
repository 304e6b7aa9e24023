"""Scrapes of the state that a test made."""

from __future__ import annotations

from django_jobs import chain
from django_jobs.domain.outcomes import Lost
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations.quarantines import quarantine
from django_jobs.metrics.exposition import render
from django_jobs.models import Resource, Tenant
from django_jobs.testing import run_jobs
from tests.app.gate_jobs import bill_tenant, post_to_ledger
from tests.app.jobs import add, fail, noop
from tests.app.workflow_jobs import fail_at_once, pass_by
from tests.factories import (
    claim_ready,
    due_schedule,
    enqueue_and_claim,
    fold_runs,
    register_worker,
    run_sql,
    settle_one,
)


def scrape() -> str:
    """The metrics of now, and not those that were stored before."""
    fold_runs()
    run_sql("UPDATE django_jobs_storedmetrics SET taken_at = 'epoch'")
    return stored()


def stored() -> str:
    """What a target serves."""
    return render()[1].decode()


def make_everything() -> None:
    """A row of each kind that a metric shows."""
    Resource.objects.create(name="ledger", max_concurrency=2, breaker_failures=3, retry_budget=0.1)
    Tenant.objects.create(name="acme", max_concurrency=1)
    run_sql("UPDATE django_jobs_queue SET max_concurrency = 9, max_backlog = 9 WHERE name = 'bulk'")
    run_sql("UPDATE django_jobs_queue SET slo_seconds = 60 WHERE name = 'default'")
    due_schedule()
    for _ in range(4):
        post_to_ledger.enqueue("/nowhere")
        bill_tenant.enqueue("acme")
        fail.using(max_attempts=1).enqueue()
    chain(fail_at_once.step()).start()
    run_jobs()
    chain(pass_by.step(), pass_by.step()).start()
    for _ in range(3):
        post_to_ledger.enqueue("/nowhere")
        bill_tenant.enqueue("acme")
    worker = register_worker(job_types={"app.noop": 1, "app.pass_by": 1}, async_slots=2)
    workers.renew([worker], 30, looked_ago=0)
    noop.enqueue_many([{}] * 3)
    claim_ready(worker, limit=2, job_types={"app.noop": 1})
    settle_one(enqueue_and_claim(add, 1, worker=worker), Lost(reason="SIGKILL"))
    add.enqueue(1)
    fail.enqueue()
    quarantine("app.fail")
