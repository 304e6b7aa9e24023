"""Keys that are held, pauses, breakers and quarantines that were forgotten."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from django_jobs.doctor.incidents import examine_breakers, examine_keys, examine_pauses
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.models import Resource, Tenant
from tests.app.jobs import noop
from tests.factories import claim_ready, copies_of, register_worker, run_sql

from .finding import findings

pytestmark = pytest.mark.django_db


def back_in_time(table: str, column: str, hours: float = 2.0) -> None:
    """As if it had happened hours ago."""
    run_sql(
        f"UPDATE django_jobs_{table} SET {column} = now() - make_interval(secs => %s)"
        f" WHERE {column} IS NOT NULL",
        [hours * 3600],
    )


def test_a_job_that_holds_a_key_before_a_long_line_is_found() -> None:
    keyed = noop.using(concurrency_key="account:7")
    holder, waiting = keyed.enqueue(), keyed.enqueue()
    run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE id = %s", [holder.pk])
    copies_of(waiting, 999, status="blocked")
    (held,) = claim_ready(register_worker())
    assert not findings(examine_keys, "D321")
    back_in_time("job", "claimed_at")
    (stuck,) = findings(examine_keys, "D321")
    assert (stuck.facts["job"], stuck.facts["key"]) == (held.id, "account:7")
    assert stuck.facts["waiting"] == 1_000
    run_sql("DELETE FROM django_jobs_job WHERE id = %s", [waiting.pk])
    assert not findings(examine_keys, "D321")


def test_a_queue_that_was_paused_for_long_with_ready_jobs_is_found() -> None:
    noop.using(queue="bulk").enqueue_many([{}] * 3)
    job_operations.pause(["bulk", "emails"], reason="the importer is broken")
    assert not findings(examine_pauses, "D322")
    back_in_time("queue", "paused_at")
    (forgotten,) = findings(examine_pauses, "D322")
    assert forgotten.facts["queue"] == "bulk"  # nothing waits in the other
    assert "the importer is broken" in forgotten.problem
    job_operations.resume(["bulk"])
    assert not findings(examine_pauses, "D322")


@pytest.mark.parametrize("kind", ["resource", "tenant"])
def test_a_resource_or_tenant_that_was_paused_for_long_with_waiting_jobs_is_found(
    kind: str,
) -> None:
    Resource.objects.create(name="acme"), Resource.objects.create(name="idle")
    Tenant.objects.create(name="acme"), Tenant.objects.create(name="idle")
    pause = limits.pause_resources if kind == "resource" else limits.pause_tenants
    pause(["acme", "idle"], reason="moves house")
    (noop.using(resources="acme") if kind == "resource" else noop.using(tenant="acme")).enqueue()
    assert not findings(examine_pauses, "D322")
    back_in_time(kind, "paused_at")
    (forgotten,) = findings(examine_pauses, "D322")
    assert (forgotten.facts["kind"], forgotten.facts["waiting"]) == (kind, 1)
    assert forgotten.commands == (f"manage.py joblimit resume {kind} acme",)
    call_command("joblimit", "resume", kind, "acme", stdout=StringIO())
    assert not findings(examine_pauses, "D322")


def test_a_quarantine_that_blocks_jobs_for_long_is_found() -> None:
    noop.enqueue_many([{}] * 3)
    quarantines.quarantine("app.noop", reason="crashes")
    quarantines.quarantine("app.add", reason="crashes")
    assert not findings(examine_pauses, "D324")
    back_in_time("quarantine", "since")
    (forgotten,) = findings(examine_pauses, "D324")
    assert (forgotten.facts["job_type"], forgotten.facts["blocked"]) == ("app.noop", 3)
    assert forgotten.commands == ("manage.py jobquarantine lift app.noop",)


def test_a_quarantine_of_jobs_that_wait_at_their_gates_is_found() -> None:
    noop.using(concurrency_key="one").enqueue_many([{}] * 3)
    quarantines.quarantine("app.noop", reason="crashes")
    back_in_time("quarantine", "since")
    (forgotten,) = findings(examine_pauses, "D324")
    assert forgotten.facts["blocked"] == 3


def test_a_breaker_that_holds_back_jobs_for_long_is_found() -> None:
    Resource.objects.create(name="stripe")
    limits.open_breaker(["stripe"], reason="maintenance", by="olga")
    noop.using(resources="stripe").enqueue_many([{}] * 3)
    assert not findings(examine_breakers, "D323")
    back_in_time("resource", "breaker_changed_at")
    (open_,) = findings(examine_breakers, "D323")
    assert (open_.facts["resource"], open_.facts["state"]) == ("stripe", "open")
    assert open_.facts["waiting"] == 3
    assert open_.commands == ("manage.py joblimit close stripe",)
    limits.close_breaker(["stripe"], reason="done", by="olga")
    assert not findings(examine_breakers, "D323")


def test_a_breaker_that_has_no_job_to_try_with_is_no_finding() -> None:
    Resource.objects.create(name="stripe", breaker_failures=3, breaker_state="half_open")
    run_sql("UPDATE django_jobs_resource SET breaker_changed_at = now() - interval '8 hours'")
    assert not findings(examine_breakers, "D323")
