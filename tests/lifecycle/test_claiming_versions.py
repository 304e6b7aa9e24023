"""What a claim leaves to others: newer payloads, and what is quarantined."""

from __future__ import annotations

import pytest

from django_jobs import registry
from django_jobs.lifecycle import claiming
from django_jobs.lifecycle.operations import quarantines
from django_jobs.models import Job
from tests.app.jobs import add, noop
from tests.app.version_jobs import greet
from tests.factories import claim_ready, register_worker, run_sql

pytestmark = pytest.mark.django_db


def of_version(version: int, job_type: str = "app.greet") -> int:
    """A ready job whose payload is of this version."""
    job = noop.enqueue()
    run_sql(
        "UPDATE django_jobs_job SET job_type = %s, payload_version = %s WHERE id = %s",
        [job_type, version, job.pk],
    )
    return job.pk


def test_a_job_has_the_version_of_its_handler() -> None:
    assert Job.objects.get(pk=greet.enqueue("Ada", "Lovelace").pk).payload_version == 3
    (many,) = greet.enqueue_many([{"first": "Ada", "last": "Lovelace"}])
    assert Job.objects.get(pk=many).payload_version == 3
    keyed = greet.using(idempotency_key="k", delay=5).enqueue("Ada", "Lovelace")
    assert Job.objects.get(pk=keyed.pk).payload_version == 3


def test_a_claim_takes_payloads_up_to_the_version_of_its_handler() -> None:
    ids = [of_version(version) for version in (1, 2, 3, 4)]
    held = claim_ready(register_worker(), job_types={"app.greet": 3})
    assert [one.id for one in held] == ids[:3]
    assert [one.payload_version for one in held] == [1, 2, 3]
    assert Job.objects.get(pk=ids[3]).status == "ready"
    (newest,) = claim_ready(register_worker(), job_types={"app.greet": 4})
    assert newest.id == ids[3]


def test_a_worker_of_old_code_skips_newer_payloads() -> None:
    newer, other = of_version(2), noop.enqueue().pk
    old = {"app.greet": 1, "app.noop": 1}
    assert [one.id for one in claim_ready(register_worker(), job_types=old)] == [other]
    assert Job.objects.get(pk=newer).status == "ready"


def test_jobs_of_an_old_name_are_claimed_through_the_alias() -> None:
    old = of_version(1, "app.old_name")
    assert claim_ready(register_worker(), job_types={"app.present_name": 1}) == []
    (held,) = claim_ready(register_worker(), job_types=registry.versions())
    assert (held.id, held.job_type) == (old, "app.old_name")


def test_a_quarantined_type_is_not_claimed_and_all_others_are() -> None:
    held, other = noop.enqueue().pk, add.enqueue(1).pk
    quarantines.quarantine("app.noop", seconds=0)
    worker = register_worker()
    assert [one.id for one in claim_ready(worker)] == [other]
    assert Job.objects.get(pk=held).status == "ready"
    quarantines.lift("app.noop")
    assert [one.id for one in claim_ready(worker)] == [held]


def test_a_limited_claim_skips_them_too() -> None:
    noop.using(queue="emails").enqueue()
    greet.using(queue="emails").enqueue("Ada", "Lovelace")
    quarantines.quarantine("app.noop", seconds=0)
    known = {"app.noop": 1, "app.greet": 2}
    assert (
        claiming.claim("emails", worker=register_worker(), job_types=known, limit=5, limited=True)
        == []
    )
