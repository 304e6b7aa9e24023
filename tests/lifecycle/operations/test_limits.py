"""Resources and tenants: pause, resume, and breakers by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from pytest_django import Settings

from django_jobs.exceptions import OperationRefused
from django_jobs.lifecycle.notifying import GATES
from django_jobs.lifecycle.operations import limits
from django_jobs.models import Resource, Tenant
from django_jobs.signals import worker_event
from tests.factories import heard, listening, make_user

pytestmark = pytest.mark.django_db

OPERATIONS: list[tuple[str, Callable[[Any], list[str]]]] = [
    ("pause_resource", lambda actor: limits.pause_resources(["stripe"], actor=actor)),
    ("pause_resource", lambda actor: limits.resume_resources(["stripe"], actor=actor)),
    ("pause_tenant", lambda actor: limits.pause_tenants(["acme"], actor=actor)),
    ("pause_tenant", lambda actor: limits.resume_tenants(["acme"], actor=actor)),
    ("change_resource", lambda actor: limits.open_breaker(["stripe"], actor=actor)),
    ("change_resource", lambda actor: limits.close_breaker(["stripe"], actor=actor)),
]


def stripe(**fields: Any) -> Resource:
    return Resource.objects.create(name="stripe", **fields)


@pytest.mark.parametrize("permission, operation", OPERATIONS)
def test_each_operation_requires_exactly_its_permission(
    permission: str, operation: Callable[[Any], list[str]]
) -> None:
    others = {name for name, _ in OPERATIONS} - {permission}
    with pytest.raises(PermissionDenied, match=f"olga lacks .*{permission}"):
        operation(make_user("view_resource", "view_tenant", "change_tenant", *others))
    operation(make_user(permission, name="otto"))
    operation(None)


def test_a_resource_is_paused_with_a_reason_and_resumed() -> None:
    stripe()
    assert limits.pause_resources(["stripe", "nowhere"], reason="r" * 500) == ["stripe"]
    assert limits.pause_resources(["stripe"], reason="again") == []
    paused = Resource.objects.get()
    assert (paused.paused, paused.paused_reason) == (True, "r" * 300)
    assert limits.resume_resources(["stripe"]) == ["stripe"]
    assert limits.resume_resources(["stripe"]) == []
    resumed = Resource.objects.get()
    assert (resumed.paused, resumed.paused_reason) == (False, "")


def test_a_pause_without_a_reason_says_by_whom() -> None:
    stripe()
    limits.pause_resources(["stripe"], actor=make_user("pause_resource"))
    paused = Resource.objects.get()
    assert (paused.paused_reason, paused.paused_by) == ("paused by olga", "olga")


def test_a_tenant_without_a_row_is_paused_by_creating_it() -> None:
    assert limits.pause_tenants(["acme"], reason="unpaid") == ["acme"]
    acme = Tenant.objects.get()
    assert (acme.name, acme.weight, acme.max_concurrency) == ("acme", 1.0, None)
    assert (acme.paused, acme.paused_reason) == (True, "unpaid")
    assert limits.pause_tenants(["acme"], reason="again") == []
    assert Tenant.objects.get().paused_reason == "unpaid"


def test_a_tenant_with_a_row_keeps_its_settings() -> None:
    Tenant.objects.create(name="acme", weight=3.0, max_concurrency=7)
    assert limits.pause_tenants(["acme", "acme"]) == ["acme"]
    assert limits.resume_tenants(["acme", "nobody"]) == ["acme"]
    acme = Tenant.objects.get()
    assert (acme.weight, acme.max_concurrency, acme.paused) == (3.0, 7, False)


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ({}, 0),
        ({"weight": 1.0, "max_concurrency": None}, 0),
        ({"weight": 2.0}, 1),
        ({"max_concurrency": 7}, 1),
    ],
)
def test_a_row_that_the_pause_made_goes_when_the_tenant_is_resumed(
    choice: dict[str, Any], left: int, settings: Settings
) -> None:
    Tenant.objects.create(name="added")
    limits.pause_tenants(["acme", "added"])
    if choice:
        Tenant.objects.filter(name="acme").update(**choice)
    assert limits.resume_tenants(["acme", "added", "nobody"]) == ["acme", "added"]
    assert not Tenant.objects.exclude(paused_at=None).exists()
    assert list(Tenant.objects.names()) == ["acme", "added"][1 - left :]
    assert limits.resume_tenants(["acme", "added"]) == []
    settings.DJANGO_JOBS = {
        **settings.DJANGO_JOBS,
        "TENANTS": {"acme": {"weight": 5, "max_concurrency": 2}},
    }
    call_command("migrate", verbosity=0)
    acme = Tenant.objects.get(name="acme")
    if not left:
        assert (acme.weight, acme.max_concurrency) == (5.0, 2)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\0b"])
def test_what_cannot_be_a_tenant_is_refused(name: str) -> None:
    with pytest.raises(OperationRefused, match="the name of a tenant has "):
        limits.pause_tenants(["acme", name])
    assert not Tenant.objects.exists()


def test_a_breaker_is_opened_and_closed_with_an_event_each() -> None:
    stripe()
    olga = make_user("change_resource")
    with heard(worker_event) as events:
        assert limits.open_breaker(["stripe"], actor=olga, reason="5xx for an hour") == ["stripe"]
        opened = Resource.objects.get()
        assert limits.open_breaker(["stripe"]) == []
        assert limits.close_breaker(["stripe"], actor=olga) == ["stripe"]
        closed = Resource.objects.get()
        assert limits.close_breaker(["stripe"]) == []
    assert (opened.breaker_state, opened.breaker_reason) == ("open", "5xx for an hour")
    assert (closed.breaker_state, closed.breaker_reason) == ("closed", "closed by olga")
    assert opened.breaker_changed_at < closed.breaker_changed_at
    assert [(event["sender"], event["level"], event["fields"]) for event in events] == [
        (
            "breaker_opened",
            logging.WARNING,
            {"resource": "stripe", "reason": "5xx for an hour", "by": "olga"},
        ),
        (
            "breaker_closed",
            logging.INFO,
            {"resource": "stripe", "reason": "closed by olga", "by": "olga"},
        ),
    ]


def test_a_half_open_breaker_can_be_opened_and_closed() -> None:
    stripe(breaker_state="half_open")
    assert limits.open_breaker(["stripe"]) == ["stripe"]
    Resource.objects.update(breaker_state="half_open")
    assert limits.close_breaker(["stripe"]) == ["stripe"]


@pytest.mark.django_db(transaction=True)
def test_each_change_wakes_the_workers_to_look_at_gates() -> None:
    stripe()
    for _, operation in (*OPERATIONS[2:4], *OPERATIONS[:2], *OPERATIONS[4:]):
        with listening() as notified:
            assert operation(None)
            assert notified() == [GATES]
            assert not operation(None)
            assert notified() == []
