"""The examinations change nothing, hold up nothing, and one that fails leaves the others."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_jobs.doctor import examination
from django_jobs.doctor.examination import EXAMINATIONS, Examination, diagnose
from django_jobs.doctor.findings import KINDS, Diagnosis, Finding, Reader, Statement, found
from django_jobs.models.database import fetch
from tests.factories import another_connection, run_sql


def two() -> Iterator[Finding]:
    yield found("D101", "many", "vacuum")
    yield found("D121", "none", "build")


def sleeps() -> Iterator[Finding]:
    yield found("D101", "many", "vacuum")
    fetch("SELECT pg_sleep(60)", {})


def writes() -> Iterator[Finding]:
    fetch("INSERT INTO django_jobs_queue (name) VALUES ('x') RETURNING 1", {})
    yield found("D101", "never", "")


def test_each_kind_has_one_examination() -> None:
    ids = [id_ for one in EXAMINATIONS for id_ in one.ids]
    assert sorted(ids) == sorted(KINDS)


@pytest.mark.django_db
def test_errors_come_first_and_decide_the_exit_code(settings: Settings) -> None:
    diagnosis = diagnose([Examination(two, ("D101", "D121"))])
    assert [one.id for one in diagnosis.findings] == ["django_jobs.D121", "django_jobs.D101"]
    assert diagnosis.exit_code == 2
    settings.SILENCED_SYSTEM_CHECKS = ["django_jobs.D121"]
    assert diagnose([Examination(two, ("D101", "D121"))]).exit_code == 1
    assert Diagnosis().exit_code == 0


@pytest.mark.django_db
def test_a_long_statement_is_ended_and_the_other_examinations_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination, "STATEMENT_SECONDS", 0.1)
    diagnosis = diagnose([Examination(sleeps, ("D111",)), Examination(two, ("D101", "D121"))])
    assert len(diagnosis.findings) == 3
    (missing,) = diagnosis.not_examined
    assert (missing.ids, missing.reason) == (("django_jobs.D111",), "took longer than 0.1 s")


@pytest.mark.django_db(transaction=True)
def test_a_lost_connection_is_a_reason_and_the_other_examinations_are_made() -> None:
    def dies() -> Iterator[Finding]:
        fetch("SELECT pg_terminate_backend(pg_backend_pid())", {})
        yield found("D101", "never", "")

    def counts() -> Iterator[Finding]:
        ((queues,),) = fetch("SELECT count(*) FROM django_jobs_queue", {})
        yield found("D121", f"{queues}", "build")

    diagnosis = diagnose([Examination(dies, ("D111",)), Examination(counts, ("D121",))])
    assert [one.id for one in diagnosis.findings] == ["django_jobs.D121"]
    assert [one.ids for one in diagnosis.not_examined] == [("django_jobs.D111",)]


@pytest.mark.django_db
def test_an_examination_keeps_no_lock_while_the_next_one_is_made() -> None:
    def reads() -> Iterator[Finding]:
        fetch("SELECT count(*) FROM django_jobs_queue", {})
        yield found("D101", "many", "vacuum")

    def locks() -> Iterator[Finding]:
        for (table,) in fetch(
            "SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid() "
            "AND relation = 'django_jobs_queue'::regclass",
            {},
        ):
            yield found("D121", table, "wait")

    both = [Examination(reads, ("D101",)), Examination(locks, ("D121",))]
    assert [one.problem for one in diagnose(both).findings] == ["many"]


LOCKS = """
SELECT relation::regclass::text AS name FROM pg_locks
WHERE pid = pg_backend_pid() AND relation = 'django_jobs_queue'::regclass
"""


def reading(number: str, sql: str) -> Examination:
    """An examination that finds each row of a statement."""
    statement = Statement(sql)

    def examine(read: Reader) -> Iterator[Finding]:
        for row in read(statement):
            yield found(number, str(*row.values()), "")

    return Examination(examine, (number,), (statement,))


@pytest.mark.django_db
def test_what_is_read_together_keeps_no_lock_from_statement_to_statement() -> None:
    both = reading("D101", "SELECT count(*) FROM django_jobs_queue"), reading("D121", LOCKS)
    assert [one.id for one in diagnose(both).findings] == ["django_jobs.D101"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT pg_sleep(60)", "took longer than 2 s"),
        ("TABLE no_such_table", "no_such_table"),
        ("UPDATE django_jobs_queue SET name = name", "read-only transaction"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "terminat"),
    ],
    ids=["too long", "an error", "a write", "a lost connection"],
)
def test_a_statement_that_fails_leaves_those_that_are_read_with_it(sql: str, reason: str) -> None:
    before, after = reading("D101", "SELECT 1"), reading("D121", "SELECT 2")
    diagnosis = diagnose([before, reading("D111", sql), after])
    assert [one.problem for one in diagnosis.findings] == ["2", "1"]
    (missing,) = diagnosis.not_examined
    assert missing.ids == ("django_jobs.D111",)
    assert reason in missing.reason


@pytest.mark.django_db
def test_a_statement_of_two_examinations_is_read_once() -> None:
    one = reading("D101", "SELECT clock_timestamp()")
    first, second = diagnose([one, one._replace(numbers=("D121",))]).findings
    assert first.problem == second.problem


@pytest.mark.django_db
def test_all_is_examined_in_few_round_trips() -> None:
    with CaptureQueriesContext(connection) as queries:
        diagnose()
    assert len(queries) <= 22


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("threshold", [None, 0])
def test_all_is_examined_by_a_connection_that_binds_and_prepares_on_the_server(
    threshold: int | None,
) -> None:
    before = connections["default"]
    binding = before.copy()
    binding.settings_dict = deepcopy(before.settings_dict)
    options = {"server_side_binding": True, "prepare_threshold": threshold}
    binding.settings_dict["OPTIONS"] |= options
    connections["default"] = binding
    try:
        assert not diagnose().not_examined
    finally:
        binding.close()
        connections["default"] = before


@pytest.mark.django_db
def test_an_error_of_the_code_of_a_project_is_a_reason_without_its_message() -> None:
    def fails() -> Iterator[Finding]:
        yield found("D101", "many", "vacuum")
        raise LookupError("no card 4711")

    diagnosis = diagnose([Examination(fails, ("D101",)), Examination(two, ("D101", "D121"))])
    assert len(diagnosis.findings) == 3
    assert diagnosis.not_examined[0].reason == "raised LookupError"


@pytest.mark.django_db
def test_an_examination_cannot_write() -> None:
    diagnosis = diagnose([Examination(writes, ("D101",))])
    assert not diagnosis.findings
    assert "read-only transaction" in diagnosis.not_examined[0].reason


@pytest.mark.django_db
def test_a_transaction_of_the_caller_keeps_its_limits() -> None:
    run_sql("SET LOCAL statement_timeout = '7s'")
    with transaction.atomic():
        diagnose([Examination(two, ("D101",))])
    assert run_sql("SHOW statement_timeout") == [("7s",)]
    assert run_sql("SHOW transaction_read_only") == [("off",)]


@pytest.mark.django_db(transaction=True)
def test_no_examination_waits_for_a_lock_on_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "LOCK_SECONDS", 0.05)
    with another_connection() as other:
        other.ensure_connection()
        other.connection.execute("BEGIN; LOCK TABLE django_jobs_job, django_jobs_worker")
        for missing in diagnose().not_examined:
            assert "lock timeout" in missing.reason
