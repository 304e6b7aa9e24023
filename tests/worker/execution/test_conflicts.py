"""Transactions of exactly_once handlers that lose a race in the database are made once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from psycopg import IsolationLevel
from psycopg.errors import DeadlockDetected, SerializationFailure

from django_jobs import Retry, current_run
from django_jobs.domain.outcomes import Failed, Snoozed
from django_jobs.lifecycle.settling import Settled
from django_jobs.models import Job, Run
from django_jobs.worker.execution import handler_call
from tests.app import database_jobs
from tests.app.jobs import noop
from tests.app.models import Effect
from tests.factories import another_connection, run_sql
from tests.worker.attempts import Desk
from tests.worker.processes import Start, until, until_status

READ = """
SELECT lock.locktype FROM pg_locks AS lock
WHERE lock.mode = 'SIReadLock'
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND lock.relation IN ('django_jobs_job_live'::regclass, 'django_jobs_job_pkey'::regclass)
"""

RAISE = "DO $$ BEGIN RAISE SQLSTATE '40001' USING MESSAGE = 'could not serialize'; END $$"


def lose(
    times: int, work: Callable[[], Any] = lambda: None, before: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """A handler that loses a race so often, after it has done its work."""
    calls: list[int] = []

    def handler() -> None:
        before()
        calls.append(1)
        Effect.objects.create(note=f"call {len(calls)}")
        work()
        if len(calls) <= times:
            run_sql(RAISE)

    return handler


def test_the_transaction_is_made_once_more_in_the_same_attempt(desk: Desk) -> None:
    (outcome,) = desk.run(lose(3), delivery="exactly_once")
    assert isinstance(outcome, Settled)
    assert [effect.note for effect in Effect.objects.all()] == ["call 4"]
    (run,) = Run.objects.all()
    assert run.outcome == "succeeded"
    assert run.attempt == 1


def test_a_repeated_serialization_failure_counts_as_no_failure(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_call, "LONGEST_PAUSE", 0.001)
    (outcome,) = desk.run(lose(1000), delivery="exactly_once", max_attempts=1)
    assert isinstance(outcome, Snoozed)
    assert 0 < outcome.seconds <= 1
    assert "rolled back by conflicts in the database 10 times" in outcome.reason
    assert not Effect.objects.exists()


def test_a_serialization_failure_in_the_settle_is_retried(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's row was written by somebody else since the transaction began."""

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if not Effect.objects.exists():
            with another_connection() as human, human.cursor() as cursor:
                cursor.execute("UPDATE django_jobs_job SET priority = 1")
                cursor.execute("INSERT INTO app_effect (note, created_at) VALUES ('theirs', now())")
        Effect.objects.create(note="mine")

    (outcome,) = desk.run(write, delivery="exactly_once")
    assert isinstance(outcome, Settled)
    assert sorted(effect.note for effect in Effect.objects.all()) == ["mine", "theirs"]


@pytest.mark.parametrize("error", [SerializationFailure, DeadlockDetected])
def test_the_errors_of_django_are_known_by_their_cause(error: type[Exception]) -> None:
    wrapped = OperationalError("wrapped")
    wrapped.__cause__ = error("why")
    assert handler_call.is_lost_race(wrapped)


def test_a_fate_that_the_handler_raised_is_applied(desk: Desk) -> None:
    def choose() -> None:
        try:
            run_sql(RAISE)
        except OperationalError as error:
            raise Retry(after=5) from error

    (outcome,) = desk.run(choose, delivery="exactly_once")
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == 5


def test_other_deliveries_fail_and_are_tried_again_soon(desk: Desk) -> None:
    """Part of their work may be committed."""
    (outcome,) = desk.run(lose(1))
    assert isinstance(outcome, Failed)
    assert outcome.retry_after is not None


def test_a_stopping_worker_does_not_repeat_the_transaction(desk: Desk) -> None:
    def cancelled() -> None:
        desk.stopping = True
        run_sql(RAISE)

    (outcome,) = desk.run(cancelled, delivery="exactly_once")
    assert isinstance(outcome, Snoozed)
    assert "once" in outcome.reason


def test_iterate_continues_in_each_transaction(desk: Desk) -> None:
    Effect.objects.bulk_create(Effect(note=str(number)) for number in range(3))
    seen: list[str] = []
    calls: list[int] = []

    def walk() -> None:
        calls.append(1)
        run = current_run()
        assert run is not None
        for effect in run.iterate(Effect.objects.all()):
            seen.append(effect.note)
        if len(calls) == 1:
            run_sql(RAISE)

    (outcome,) = desk.run(walk, delivery="exactly_once")
    assert isinstance(outcome, Settled)
    assert seen == ["0", "1", "2"] * 2


@pytest.fixture
def overlapping(transactional_db: None) -> Iterator[None]:
    """A SERIALIZABLE transaction of another session: what others read is known for as long as it is
    open."""
    with another_connection() as other, other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        cursor.execute("SELECT count(*) FROM app_effect")
        yield


@pytest.fixture
def serializable(transactional_db: None) -> Iterator[None]:
    """As with ``isolation_level`` in the options of a project's database."""
    connection.ensure_connection()
    raw: Any = connection.connection
    raw.isolation_level = IsolationLevel.SERIALIZABLE
    yield
    raw.isolation_level = None


def be_serializable() -> None:
    """As with a default of the database or the role, of which Django's settings know nothing."""
    run_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")


def assert_that_one_row_was_read() -> None:
    """By its page of the index. PostgreSQL may forget the row itself once it is written."""
    read = Counter(kind for (kind,) in run_sql(READ))
    assert read["page"] == 1
    assert read["tuple"] <= 1
    assert not read.keys() - {"page", "tuple"}


def fill(others: int, *, known: bool) -> None:
    """Jobs of another queue, of which the planner knows, or not yet."""
    run_sql("TRUNCATE django_jobs_job_live")
    noop.using(queue="bulk").enqueue_many([{}] * others)
    if known:
        run_sql("ANALYZE django_jobs_job_live")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("others", [3, 300])
@pytest.mark.usefixtures("overlapping", "serializable")
def test_a_serializable_transaction_reads_the_row_of_its_own_job_only(
    desk: Desk, others: int, known: bool
) -> None:
    """Any two that read more cannot both commit. The planner would read a small table from end to
    end, for one row too."""
    fill(others, known=known)
    (outcome,) = desk.run(lose(0), delivery="exactly_once")
    assert isinstance(outcome, Settled)
    assert_that_one_row_was_read()


@pytest.mark.usefixtures("overlapping")
def test_a_repeated_transaction_reads_the_row_of_its_own_job_only(desk: Desk) -> None:
    fill(3, known=True)
    (outcome,) = desk.run(lose(1, before=be_serializable), delivery="exactly_once")
    assert isinstance(outcome, Settled)
    assert_that_one_row_was_read()


def test_no_job_dies_of_conflicts_in_a_serializable_project(
    start_worker: Start,
) -> None:
    """Before, about half of such jobs were dead."""
    database_jobs.write_once_or_die.enqueue_many([{}] * 200)
    start_worker("--processes", "2", "--threads", "8", TEST_DATABASE_ISOLATION="SERIALIZABLE")
    until(lambda: not Job.objects.exclude(status__in=["succeeded", "dead"]).exists())
    assert not Job.objects.filter(status="dead").exists()
    assert Effect.objects.count() == 200
    assert not Run.objects.filter(outcome="failed").exists()


def test_the_time_out_of_the_attempt_bounds_all_of_its_calls(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "calls"
    job = database_jobs.lose_and_hang.enqueue(str(path))
    start_worker("--threads", "1")
    until_status(job, "dead")
    assert path.read_text().splitlines() == ["called", "called"]
    (run,) = Run.objects.all()
    assert run.outcome == "timed_out"
    assert "while True" in run.traceback or "time.sleep" in run.traceback
