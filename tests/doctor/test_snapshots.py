"""Old snapshots, really held by a second session."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from django_jobs.doctor import tables
from django_jobs.doctor.tables import beginning_of, examine_sessions
from tests.factories import another_connection, run_sql
from tests.worker.processes import until

from .finding import diagnosis_of, findings
from .test_tables import DEAD


# Inside of one transaction, PostgreSQL shows the sessions of its first look.
@pytest.mark.django_db(transaction=True)
def test_a_session_with_an_old_snapshot_is_named(monkeypatch: Any) -> None:
    with another_connection() as wrapper:
        wrapper.ensure_connection()
        other = wrapper.connection
        pid = other.info.backend_pid
        with other.transaction():
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SET LOCAL application_name = 'report'")
            other.execute("SELECT 'a secret' AS sales")
            assert pid not in [one.facts["pid"] for one in findings(examine_sessions, "D111")]
            monkeypatch.setattr(tables, "OLD_SECONDS", 0.0)
            held = {one.facts["pid"]: one for one in findings(examine_sessions, "D111")}
            assert held[pid].facts["query"] == "SELECT"
            assert held[pid].facts["application"] == "report"
            assert held[pid].commands == (f"SELECT pg_terminate_backend({pid});",)
        assert pid not in [one.facts["pid"] for one in findings(examine_sessions, "D111")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        (
            f"UPDATE django_jobs_queue SET name = name WHERE name = '{'hunter2 ' * 250}'",
            "UPDATE django_jobs_queue",
        ),
        (
            "SELECT id, name FROM django_jobs_queue WHERE name = $$hunter2$$",
            "SELECT … FROM django_jobs_queue",
        ),
        (
            'SELECT "q"."id" FROM public."django_jobs_queue" AS q WHERE name = $a$hunter2$a$',
            'SELECT … FROM public."django_jobs_queue"',
        ),
        ("SELECT 'hunter2 FROM hunter2' FROM django_jobs_queue", "SELECT"),
        ("SELECT id -- FROM hunter2\nFROM django_jobs_queue", "SELECT"),
        ("SELECT /* it's */ 'hunter2'", "SELECT"),
        ("/* it's hunter2 */ SELECT 1", ""),
        ("-- hunter2\nSELECT 1", ""),
        ("DO $$BEGIN PERFORM 'hunter2'; END$$", "DO"),
    ],
)
def test_a_statement_is_shown_without_its_values(
    monkeypatch: Any, statement: str, shown: str
) -> None:
    monkeypatch.setattr(tables, "OLD_SECONDS", 0.0)
    with another_connection() as wrapper:
        wrapper.ensure_connection()
        other = wrapper.connection
        pid = other.info.backend_pid
        with other.transaction():
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute(statement)
            found = findings(examine_sessions, "D111")
    (held,) = [one for one in found if one.facts["pid"] == pid]
    assert held.facts["query"] == shown
    assert "hunter2" not in str(held)


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("autovacuum: VACUUM public.shop_order (to prevent)", "VACUUM public.shop_order"),
        ("insert\n into shop_order values (4711)", "INSERT INTO shop_order"),
        ("COPY (SELECT 'hunter2') TO STDOUT", "COPY"),
        ("UPDATE $1 hunter2", "UPDATE"),
        ("<insufficient privilege>", ""),
        ("SELECT " + "a FROM " * 10_000, "SELECT … FROM a"),
        ("SELECT " + "a " * 10_000, "SELECT"),
        ("", ""),
    ],
)
def test_only_the_beginning_of_a_statement_is_shown(statement: str, shown: str) -> None:
    assert beginning_of(statement) == shown


@pytest.mark.django_db(transaction=True)
def test_a_long_vacuum_is_no_finding(monkeypatch: Any) -> None:
    monkeypatch.setattr(tables, "OLD_SECONDS", 0.0)
    run_sql(DEAD)
    run_sql("DELETE FROM django_jobs_uniquekey")
    with another_connection() as wrapper:
        wrapper.ensure_connection()
        other = wrapper.connection
        pid = other.info.backend_pid
        other.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
        other.pgconn.send_query(b"VACUUM django_jobs_uniquekey")
        until(lambda: (pid,) in run_sql("SELECT pid FROM pg_stat_progress_vacuum"))
        assert pid not in [one.facts["pid"] for one in findings(examine_sessions, "D111")]
        assert run_sql("SELECT pid FROM pg_stat_progress_vacuum WHERE pid = %s", [pid])
        other.cancel_safe()


@pytest.mark.django_db
def test_a_role_that_sees_only_its_sessions_gets_what_it_needs() -> None:
    role = f"watcher_{uuid.uuid4().hex[:8]}"
    run_sql(f"CREATE ROLE {role}")
    run_sql(f"SET LOCAL ROLE {role}")
    (missing,) = diagnosis_of(examine_sessions).not_examined
    assert missing.ids == ("django_jobs.D111",)
    assert missing.reason.endswith(f"need pg_monitor: GRANT pg_monitor TO {role};")
    run_sql("RESET ROLE")
    run_sql(missing.reason.partition(": ")[2])
    run_sql(f"SET LOCAL ROLE {role}")
    assert not diagnosis_of(examine_sessions).not_examined
