"""``joblimit``: resources, tenants and breakers from the command line."""

from __future__ import annotations

import getpass
import json
import socket

import pytest
from django.core.management import CommandError

from django_jobs.models import Resource, Tenant
from django_jobs.signals import worker_event
from tests.app.gate_jobs import bill_tenant, refund_payment
from tests.commands import printed
from tests.factories import copies_of, heard, register_worker

pytestmark = pytest.mark.django_db

OPERATOR = f"{getpass.getuser()}@{socket.gethostname()}"


def run(*arguments: str, command: str = "joblimit") -> str:
    return printed(command, *arguments).strip()


def test_a_resource_is_paused_with_reason_and_operator_and_resumed() -> None:
    Resource.objects.create(name="stripe")
    assert run("pause", "resource", "stripe", "--reason", "maintenance") == (
        "stripe: paused. Jobs that are ready or running still run."
    )
    assert Resource.objects.get().paused_reason == f"maintenance ({OPERATOR})"
    assert run("pause", "resource", "stripe") == "stripe: already paused."
    assert run("resume", "resource", "stripe") == "stripe: resumed."
    assert run("resume", "resource", "stripe") == "stripe: not paused."


def test_a_tenant_without_a_row_is_paused() -> None:
    assert run("pause", "tenant", "acme").startswith("acme: paused.")
    paused = Tenant.objects.get()
    assert (paused.paused_reason, paused.paused_by) == (f"paused by {OPERATOR}", OPERATOR)
    assert run("resume", "tenant", "acme", "bolt") == "acme: resumed.\nbolt: not paused."


def test_a_tenant_that_nothing_knows_is_paused_and_named() -> None:
    Tenant.objects.create(name="acme")
    bill_tenant.enqueue("bolt")
    paused = "paused. Jobs that are ready or running still run."
    assert run("pause", "tenant", "acme", "bolt") == f"acme: {paused}\nbolt: {paused}"
    assert run("pause", "tenant", "acmee", "xyz") == (
        f"acmee: {paused}\nxyz: {paused}\n"
        "No tenant was named 'acmee', and no live job has it; did you mean 'acme'?\n"
        "No tenant was named 'xyz', and no live job has it."
    )
    assert run("pause", "tenant", "xyz") == "xyz: already paused."


def test_a_misspelt_resource_is_refused_before_any_is_changed() -> None:
    Resource.objects.create(name="stripe")
    with pytest.raises(CommandError, match=r"^no resource is named 'strpe'; did you mean 'stripe'"):
        run("pause", "resource", "stripe", "strpe")
    with pytest.raises(CommandError, match=r"^no resource is named 'xyz'$"):
        run("open", "xyz")
    assert not Resource.objects.get().paused


def test_what_cannot_be_a_tenant_is_refused() -> None:
    with pytest.raises(CommandError, match="the name of a tenant has 101 characters"):
        run("pause", "tenant", "x" * 101)


def test_a_breaker_is_opened_and_closed_by_hand() -> None:
    Resource.objects.create(name="stripe")
    with heard(worker_event) as events:
        assert run("open", "stripe", "--reason", "5xx") == "stripe: the breaker is open."
        assert run("open", "stripe") == "stripe: already open."
        assert run("close", "stripe") == "stripe: the breaker is closed."
    assert [event["sender"] for event in events] == ["breaker_opened", "breaker_closed"]
    assert events[0]["fields"] == {
        "resource": "stripe",
        "reason": f"5xx ({OPERATOR})",
        "by": OPERATOR,
    }


def test_the_list_shows_state_limit_and_waiting_jobs() -> None:
    assert run("list") == "There are no resources, and no tenants with live jobs."
    Resource.objects.create(name="stripe", max_concurrency=2, rate=50.0, rate_seconds=60.0)
    copies_of(refund_payment.enqueue(1), 2)
    bill_tenant.enqueue("acme")
    run("pause", "tenant", "bolt")
    run("open", "stripe", "--reason", "5xx")
    shown = [line.split(maxsplit=6) for line in run("list").splitlines() if line]
    assert shown == [
        ["RESOURCE", "STATE", "TAKEN", "LIMIT", "WAITING", "RATE", "REASON"],
        ["stripe", "breaker", "open", "2", "2", "1", f"50/60s  5xx ({OPERATOR})"],
        ["TENANT", "STATE", "TAKEN", "LIMIT", "WAITING", "WEIGHT", "REASON"],
        ["acme", "ok", "0", "-", "1", "1"],
        ["bolt", "paused", "0", "-", "0", "1", f"paused by {OPERATOR}"],
    ]


def test_jobstatus_shows_the_first_twenty_tenants_and_all_in_json() -> None:
    Resource.objects.create(name="stripe")
    bill_tenant.enqueue_many({"tenant_id": f"tenant-{number}"} for number in range(25))
    text = run(command="jobstatus")
    assert text.count("tenant-") == 20
    assert text.endswith("and 5 more tenants")
    assert "stripe" in text
    stored = json.loads(run("--json", command="jobstatus"))
    assert len(stored["tenants"]) == 25
    assert stored["resources"] == [
        {
            "name": "stripe",
            "state": "ok",
            "taken": 0,
            "limit": None,
            "waiting": 0,
            "more_wait": False,
            "max_waiting": None,
            "rate": None,
            "rate_seconds": 1.0,
            "paused_reason": "",
            "breaker": "closed",
            "breaker_reason": "",
            "breaker_seconds": None,
        }
    ]


def test_a_project_without_limits_sees_nothing_of_them() -> None:
    assert "TENANT" not in run(command="jobstatus")
    assert "RESOURCE" not in run(command="jobstatus")


def test_an_open_breaker_and_a_full_limit_are_no_problem_for_a_check() -> None:
    register_worker()
    Resource.objects.create(name="stripe", max_concurrency=1, breaker_state="open")
    copies_of(refund_payment.enqueue(1), 2, "blocked")
    assert run("--check", command="jobstatus") == "OK"
