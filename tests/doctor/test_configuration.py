"""Settings that do not fit the fleet or the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import CheckMessage, Tags, register
from django.core.checks.registry import registry
from django.core.management import call_command
from django.db import connection
from pytest_django import Settings

from django_jobs import Backoff
from django_jobs.doctor.configuration import (
    exactly_once_for,
    examine_abandoned,
    examine_checks,
    examine_date_style,
    examine_lease,
    examine_rows,
    examine_time_outs,
    time_out_problems,
)
from django_jobs.doctor.examination import diagnose
from django_jobs.lifecycle.operations import limits
from django_jobs.models import Queue, Resource, Tenant
from tests.factories import declared, register_worker, run_sql

from .finding import diagnosis_of, findings


@pytest.fixture
def time_out(transactional_db: None) -> Iterator[None]:
    """A time-out that new sessions of this database have."""
    name = connection.settings_dict["NAME"]
    run_sql(f"ALTER DATABASE \"{name}\" SET idle_session_timeout = '20s'")
    connection.close()
    yield
    run_sql(f'ALTER DATABASE "{name}" RESET idle_session_timeout')
    connection.close()


@pytest.mark.django_db
def test_a_lease_that_lost_packets_outlast_is_found(settings: Settings) -> None:
    register_worker("web-1", lease=30)
    assert not findings(examine_lease, "D211")
    settings.DJANGO_JOBS = {"LEASE_SECONDS": 8.0}
    register_worker("web-2", lease=10)
    short = [one.facts["of"] for one in findings(examine_lease, "D211")]
    assert short == ["LEASE_SECONDS", "the worker web-2"]


@pytest.mark.django_db
def test_the_shortest_lease_of_workers_with_one_name_is_found() -> None:
    for lease in (30, 8, 9):
        register_worker("web-1", lease=lease)
    (short,) = findings(examine_lease, "D211")
    assert (short.facts["of"], short.facts["lease_seconds"]) == ("the worker web-1", 8)


@pytest.mark.django_db
@pytest.mark.parametrize(("heartbeat", "lease", "is_short"), [(2, 11, True), (10, 13, False)])
def test_a_worker_with_a_lease_of_its_own_sends_four_heartbeats_in_it(
    settings: Settings, heartbeat: float, lease: float, is_short: bool
) -> None:
    settings.DJANGO_JOBS = {"LEASE_SECONDS": 30, "HEARTBEAT_SECONDS": heartbeat}
    register_worker("web-1", lease=lease)
    short = [one.facts["of"] for one in findings(examine_lease, "D211")]
    assert short == (["the worker web-1"] if is_short else [])


@pytest.mark.django_db
def test_a_server_without_time_outs_has_no_problem() -> None:
    assert not findings(examine_time_outs, "D212")


def test_a_time_out_of_idle_sessions_is_found(time_out: None) -> None:
    (short,) = findings(examine_time_outs, "D212")
    assert short.facts == {"setting": "idle_session_timeout", "seconds": 20.0}
    ((role,),) = run_sql("SELECT quote_ident(session_user)")
    assert short.commands == (f"ALTER ROLE {role} SET idle_session_timeout = 0;",)


def test_each_time_out_is_compared_with_what_it_would_end() -> None:
    def problems(**seconds: float) -> list[str]:
        return [name for name, _, _ in time_out_problems(seconds)]

    assert problems(idle_session_timeout=60, statement_timeout=5) == []
    assert problems(statement_timeout=4) == ["statement_timeout"]
    assert problems(transaction_timeout=10) == ["transaction_timeout"]


def test_a_transaction_of_a_handler_is_as_long_as_its_time_out() -> None:
    def transfer() -> None: ...

    with declared(transfer, name="test.transfer", delivery="exactly_once", timeout=60):
        assert "test.transfer" in exactly_once_for(59)
        assert "test.transfer" not in exactly_once_for(60)
    with declared(transfer, name="test.transfer", delivery="exactly_once"):
        assert "test.transfer" in exactly_once_for(86_400)


@pytest.mark.django_db
def test_system_checks_are_findings_under_their_ids(settings: Settings) -> None:
    assert not diagnosis_of(examine_checks).findings
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "LEASE_SECONDS": 10, "HEARTBEAT_SECONDS": 5}
    (lease,) = diagnosis_of(examine_checks).findings
    assert (lease.id, lease.severity) == ("django_jobs.E003", "error")
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HEARTBEAT_SECONDS": None, "IMMEDIATE": True}
    assert [one.id for one in diagnosis_of(examine_checks).findings] == ["django_jobs.W005"]


@pytest.mark.django_db
def test_a_database_check_of_another_app_is_not_run(settings: Settings) -> None:
    def theirs(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
        raise LookupError(databases)

    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "LEASE_SECONDS": 10, "HEARTBEAT_SECONDS": 5}
    register(theirs, Tags.database)
    try:
        diagnosis = diagnosis_of(examine_checks)
    finally:
        registry.registered_checks.remove(theirs)
    assert [one.id for one in diagnosis.findings] == ["django_jobs.E003"]
    assert not diagnosis.not_examined


ENTRIES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("QUEUES", {"max_concurrency": 20}, {"max_concurrency": 10}),
    ("QUEUES", {"strict": True}, {"priority_weight": 60.0}),
    ("QUEUES", {"priority_weight": 5}, {"priority_weight": 1e8}),
    ("QUEUES", {"backoff": Backoff.fixed(5)}, {"backoff": None}),
    ("QUEUES", {"retention": {"dead": "30d"}}, {"retention": {"dead": "3d"}}),
    ("QUEUES", {"on_full": "drop_lowest"}, {"on_full": "raise"}),
    ("RESOURCES", {"rate": "50/m"}, {"rate": 50.0, "rate_seconds": 1.0}),
    ("RESOURCES", {"breaker": {"failures": 20}}, {"breaker_failures": None}),
    ("RESOURCES", {"retry_budget": 0.2}, {"retry_budget": 0.3}),
    ("RESOURCES", {"max_waiting": 5}, {"max_waiting": None}),
    ("TENANTS", {"weight": 5, "max_concurrency": 2}, {"max_concurrency": None}),
    ("TENANTS", {"max_waiting": 5}, {"max_waiting": 6}),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("setting", "options", "row"), ENTRIES)
def test_a_row_that_differs_from_its_entry_of_a_setting_is_found(
    settings: Settings, setting: str, options: dict[str, Any], row: dict[str, Any]
) -> None:
    model: Any = {"QUEUES": Queue, "RESOURCES": Resource, "TENANTS": Tenant}[setting]
    settings.DJANGO_JOBS = {"QUEUES": {"default": {}}, setting: {"one": options, "none": {}}}
    call_command("migrate", verbosity=0)
    assert not findings(examine_rows, "D314")
    model.objects.filter(name="one").update(**row)
    (differs,) = findings(examine_rows, "D314")
    assert differs.facts["setting"] == setting
    assert differs.facts["name"] == "one"
    assert set(differs.facts["changed"]) <= row.keys()
    model.objects.filter(name="one").delete()
    (missing,) = findings(examine_rows, "D314")
    assert missing.facts == {"setting": setting, "name": "one", "changed": []}
    assert missing.commands == ("manage.py migrate",)


@pytest.mark.django_db
def test_what_an_entry_of_a_setting_leaves_out_is_edited_in_the_admin(settings: Settings) -> None:
    settings.DJANGO_JOBS = {
        "QUEUES": {"default": {"max_attempts": 3, "strict": False, "timeout": None}},
        "RESOURCES": {"stripe": {"rate": "50/s", "breaker": {"failures": 20}}},
        "TENANTS": {"acme": {"weight": 1}},
    }
    call_command("migrate", verbosity=0)
    Queue.objects.filter(name="default").update(
        max_attempts=3, max_concurrency=7, priority_weight=1e8, timeout=9
    )
    Resource.objects.update(max_concurrency=3, burst=9, breaker_window=5)
    Tenant.objects.update(max_concurrency=3)
    assert not findings(examine_rows, "D314")


@pytest.mark.django_db
def test_a_tenant_that_was_paused_before_its_setting_is_found(settings: Settings) -> None:
    limits.pause_tenants(["newt"])
    settings.DJANGO_JOBS = {
        "QUEUES": {"default": {}},
        "TENANTS": {"newt": {"weight": 5, "max_concurrency": 2}},
    }
    call_command("migrate", verbosity=0)
    (differs,) = findings(examine_rows, "D314")
    assert differs.facts["changed"] == ["max_concurrency", "weight"]
    limits.resume_tenants(["newt"])
    (missing,) = findings(examine_rows, "D314")
    call_command(*missing.commands[0].split()[1:], verbosity=0)
    assert not findings(examine_rows, "D314")


@pytest.mark.django_db
@pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres, MDY"])
def test_a_date_style_that_psycopg_cannot_read_is_one_finding(style: str) -> None:
    assert not findings(examine_date_style, "D213")
    run_sql("SELECT set_config('DateStyle', %s, true)", [style])
    diagnosis = diagnose()
    (found,) = (one for one in diagnosis.findings if one.id == "django_jobs.D213")
    assert found.facts["setting"] == "DateStyle"
    assert found.facts["style"].startswith(style.partition(",")[0])
    assert not [one for one in diagnosis.not_examined if "NotImplemented" in one.reason]


@pytest.mark.parametrize(
    "of", ["ROLE {role}", "ROLE ALL", "DATABASE {name}", "ROLE {role} IN DATABASE {name}"]
)
def test_a_check_of_clients_that_is_switched_off_is_found(transactional_db: None, of: str) -> None:
    assert not findings(examine_abandoned, "D214"), "0 is the default, and workers set another"
    ((role, name),) = run_sql("SELECT quote_ident(session_user), quote_ident(current_catalog)")
    of = of.format(role=role, name=name)
    run_sql(f"ALTER {of} SET client_connection_check_interval = 0")
    connection.close()
    (off,) = findings(examine_abandoned, "D214")
    assert off.commands == (f"ALTER {of} RESET client_connection_check_interval;",)
    run_sql(*off.commands)
    connection.close()
    assert not findings(examine_abandoned, "D214")
