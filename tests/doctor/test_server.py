"""Notifications, poolers, clocks and connections of the real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections, transaction

from django_jobs.doctor import server
from django_jobs.doctor.examination import diagnose
from django_jobs.doctor.server import (
    examine_clock,
    examine_connections,
    examine_listening,
    fleet_needs,
)
from django_jobs.lifecycle.workers import renew
from django_jobs.models import Worker
from django_jobs.models.database import fetch
from tests.factories import register_worker, run_sql
from tests.faults.pooler import Pooler, missing

from .finding import diagnosis_of, findings

END_SLEEPERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%pg_sleep(3600)'
"""


@pytest.fixture
def pooled(transactional_db: None) -> Iterator[None]:
    """The jobs' database, reached through a PgBouncer in transaction mode with one connection."""
    with pooled_by(1):
        yield


@contextmanager
def pooled_by(size: int, mode: str = "transaction") -> Iterator[None]:
    """The jobs' database, reached through a PgBouncer with so many connections."""
    old = connections["default"]
    with Pooler(old.settings_dict, size=size, mode=mode) as pooler:
        through = old.copy()
        through.settings_dict = deepcopy(old.settings_dict)
        parts = urlsplit(pooler.url)
        through.settings_dict |= {"HOST": parts.hostname, "PORT": parts.port}
        through.settings_dict["OPTIONS"].pop("host", None)
        connections["default"] = through
        try:
            yield
        finally:
            through.close()
            connections["default"] = old


@pytest.mark.django_db
def test_a_direct_connection_receives_its_notification() -> None:
    diagnosis = diagnosis_of(examine_listening)
    assert (diagnosis.findings, diagnosis.not_examined) == ((), ())


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_pooler_in_transaction_mode_is_found(pooled: None) -> None:
    settings = connection.settings_dict
    settings["DISABLE_SERVER_SIDE_CURSORS"] = True
    (silent,) = findings(examine_listening, "D201")
    assert silent.facts == {"pooled": True}
    assert not findings(examine_listening, "D202")
    settings["DISABLE_SERVER_SIDE_CURSORS"] = False
    settings["OPTIONS"]["prepare_threshold"] = 5
    (guess,) = findings(examine_listening, "D202")
    assert "probably" in guess.problem
    assert len(guess.facts["needs"]) == 2


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_all_is_examined_through_a_pool_of_one_connection(pooled: None) -> None:
    assert not diagnose().not_examined


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_pool_whose_only_connection_is_held_is_not_waited_for(pooled: None) -> None:
    with transaction.atomic():
        run_sql("SELECT 1")
        (none,) = findings(examine_listening, "D206")
    assert "had no session for 2 s" in none.problem


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize(("size", "is_found"), [(2, True), (3, False)])
def test_a_second_session_that_a_pool_does_not_have_is_found(
    transactional_db: None, size: int, is_found: bool
) -> None:
    """The command holds one itself, in session mode."""
    register_worker(threads=4)
    with pooled_by(size, mode="session"):
        run_sql("SELECT 1")
        found = findings(examine_listening, "D206")
    assert [one.facts for one in found] == ([{"needed": 2 + 8}] if is_found else [])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT pg_sleep(3600)", "statement timeout"),
        ("SET LOCAL statement_timeout = 0; SELECT pg_sleep(3600)", "connection"),
    ],
    ids=["by the server", "by the doctor"],
)
def test_a_long_statement_of_its_own_connections_is_ended(
    monkeypatch: pytest.MonkeyPatch, statement: str, reason: str
) -> None:
    monkeypatch.setattr(server, "LISTEN_SECONDS", 0.1)
    monkeypatch.setattr(server, "CHANNEL", f"{server.CHANNEL}; {statement}")
    (missing,) = diagnosis_of(examine_listening).not_examined
    assert reason in missing.reason.partition(": ")[2]
    run_sql(END_SLEEPERS)


@pytest.mark.django_db
@pytest.mark.parametrize(("off", "words"), [(90, "90.0 s ahead of"), (-90, "90.0 s behind")])
def test_a_wrong_clock_of_this_host_is_found(
    monkeypatch: pytest.MonkeyPatch, off: int, words: str
) -> None:
    assert not findings(examine_clock, "D203")

    class WrongClock:
        @staticmethod
        def now(zone: object) -> datetime:
            return datetime.now(UTC) + timedelta(seconds=off)

    monkeypatch.setattr(server, "datetime", WrongClock)
    (wrong,) = findings(examine_clock, "D203")
    assert words in wrong.problem


@pytest.mark.django_db
def test_the_clocks_of_the_hosts_of_live_workers_are_compared() -> None:
    skews = {"a": 0.9, "b": -90.0, "c": -89.5, "d": 4.0, "gone": 70.0}
    for name, skew in skews.items():
        worker = register_worker(name, lease=-5 if name == "gone" else 30)
        renew([worker], -5 if name == "gone" else 30, clock_skew=skew)
    Worker.objects.filter(name="d").update(host="otherhost")
    behind, ahead = findings(examine_clock, "D203")
    assert "host testhost, of the workers b and c, is 90.0 s behind" in behind.problem
    assert behind.facts == {"host": "testhost", "skew_seconds": -90.0, "workers": ["b", "c"]}
    assert "host otherhost, of the worker d, is 4.0 s ahead of" in ahead.problem


@pytest.mark.django_db
def test_connections_of_other_roles_are_counted_without_the_right_to_see_more() -> None:
    ((*_, used),) = fetch(server.LIMITS.sql, {})
    run_sql(
        "CREATE ROLE sees_little; GRANT sees_little TO CURRENT_USER; SET LOCAL ROLE sees_little"
    )
    ((*_, seen),) = fetch(server.LIMITS.sql, {})
    assert seen >= used > 0


@pytest.mark.django_db
def test_a_fleet_that_may_need_more_connections_than_there_are_is_found() -> None:
    register_worker(threads=4)
    assert not findings(examine_connections, "D204")
    register_worker(threads=2_000)
    (few,) = findings(examine_connections, "D204")
    assert few.facts["needed"] == 2 + 8 + 2_004
    ((allowed,),) = run_sql("SHOW max_connections")
    assert few.facts["allowed"] < int(allowed)


@pytest.mark.django_db
@pytest.mark.parametrize("of", ["role", "database"])
def test_the_limit_of_a_role_or_a_database_counts_too_until_the_command_is_run(of: str) -> None:
    register_worker(threads=4)
    ((role, database),) = run_sql("SELECT quote_ident(session_user), quote_ident(current_catalog)")
    run_sql(f"ALTER {of} {role if of == 'role' else database} CONNECTION LIMIT 9")
    (few,) = findings(examine_connections, "D204")
    assert (few.facts["allowed"], few.facts["limit_of"]) == (9, of)
    run_sql(*few.commands)
    assert not findings(examine_connections, "D204")


def test_the_need_is_that_of_jobworker() -> None:
    from django_jobs.worker.options import Options, QueueShare

    options = Options(queues=(QueueShare(name="default"),), processes=2, threads=4)
    on_loop = options.connections > 18  # the tests have async handlers
    assert fleet_needs([("a", "h", 4, on_loop)] * 2) == options.connections
