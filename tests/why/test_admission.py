"""What ``why`` says of a job at its gates, and what the next admission does with it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from django_jobs import Concurrency
from django_jobs.domain.admission import FairShares
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.models import Job, Queue, Resource, Tenant
from django_jobs.why.evaluation import explain
from tests.factories import copies_of, declared, register_worker, run_sql

pytestmark = pytest.mark.django_db

RESOURCES = ("ledger", "stripe")


def transfer(account: int) -> None:
    """What has all gates at once."""


def draw_limits(choice: random.Random) -> None:
    """The rows of two resources, a tenant and a queue: each with some of what closes it."""
    for name in RESOURCES:
        fields: dict[str, Any] = {"max_concurrency": choice.choice((None, None, 1, 3))}
        if choice.random() < 0.5:
            fields |= {"rate": 2.0, "rate_seconds": 3600.0, "burst": choice.choice((None, 1, 3))}
            fields |= {"tokens": choice.choice((None, 0.2, 1.0, 2.0))}
        if choice.random() < 0.3:
            fields |= {"breaker_failures": 3, "breaker_state": choice.choice(("open", "half_open"))}
        if choice.random() < 0.3:
            fields |= {"retry_budget": 0.1, "recent_starts": 10.0, "recent_retries": 9.0}
        Resource.objects.create(name=name, **fields)
    run_sql(
        "UPDATE django_jobs_resource SET refilled_at = now(), counted_at = now(),"
        " breaker_changed_at = now()"
    )
    Tenant.objects.create(name="acme", max_concurrency=choice.choice((None, None, 1, 2)))
    Queue.objects.filter(name="default").update(max_concurrency=choice.choice((None, None, 2)))


def close_some(choice: random.Random) -> None:
    if choice.random() < 0.1:
        limits.pause_resources(["stripe"])
    if choice.random() < 0.1:
        limits.pause_tenants(["acme"])
    if choice.random() < 0.1:
        quarantines.quarantine("test.transfer")


@pytest.mark.parametrize("seed", range(80))
def test_what_holds_a_job_is_what_keeps_the_admission_from_it(seed: int) -> None:
    choice = random.Random(seed)
    draw_limits(choice)
    two = Concurrency("transfer:{account}", limit=2)
    with declared(transfer, name="test.transfer", concurrency=two, resources=RESOURCES) as gated:
        worker = register_worker(threads=9)
        job = gated.using(tenant="acme").enqueue(1)
        (waits,) = copies_of(job, status="blocked")
        for status in ("ready", "running"):
            held = copies_of(job, choice.choice((0, 0, 1, 2)))
            if status == "running":
                run_sql(
                    "UPDATE django_jobs_job SET worker_id = %s, claimed_at = now(), attempt = 1,"
                    " status = 'running' WHERE id = ANY(%s)",
                    [worker, held],
                )
            for gate in ("tenant", "concurrency_key", "resources"):
                if choice.random() < 0.4:
                    run_sql(f"UPDATE django_jobs_job SET {gate} = NULL WHERE id = ANY(%s)", [held])
        Job.objects.filter(pk=job.pk).delete()
        if choice.random() < 0.3:
            Job.objects.filter(pk=waits).update(failures=1)
        close_some(choice)
        said = [one.name for one in explain(Job.objects.get(pk=waits)).gates if one.holds]
        closed = [name for name in said if name != "turn"]
        admit({"default": 9}, FairShares())
        assert (Job.objects.get(pk=waits).status == "blocked") == bool(closed), said
