"""Settings that do not fit the fleet or the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import CheckMessage, Tags, register
from django.core.checks.registry import registry
from django.db import connection
from pytest_django import Settings

from django_jobs.doctor.configuration import (
    exactly_once_for,
    examine_checks,
    examine_lease,
    examine_time_outs,
    time_out_problems,
)
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
