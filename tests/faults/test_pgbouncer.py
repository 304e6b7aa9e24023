"""A whole worker behind PgBouncer: in transaction mode (D19), and in session mode."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_jobs.domain.outcomes import Snoozed
from django_jobs.models import Job, Run, Worker
from django_jobs.worker.connections import own_connection
from django_jobs.worker.execution.failures import outcome_of_exception
from django_jobs.worker.wakeup import Wakeup
from tests.app import database_jobs, jobs, limit_jobs
from tests.app.models import Effect
from tests.factories import run_sql
from tests.worker.firing import each_second, until_fired
from tests.worker.processes import (
    IDLE_SESSIONS,
    JobWorker,
    Start,
    other_sessions,
    until,
    until_marked,
    until_status,
)

from .pooler import Pooler, missing
from .stage import queries_on

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[Pooler]:
    with Pooler(connection.settings_dict) as own:
        yield own


def test_hundreds_of_jobs_run_once_each_and_the_worker_drains(
    pooler: Pooler, start_worker: Start
) -> None:
    jobs.write_effect.enqueue_many({"note": f"{number}"} for number in range(300))
    database_jobs.write_once.enqueue_many({} for _ in range(50))
    jobs.add.using(queue="emails").enqueue_many({"first": number} for number in range(30))
    options = ("--threads", "4", "--poll-seconds", "0.2")
    workers = [start_worker(*options, DATABASE_URL=pooler.url) for _ in range(2)]
    until(lambda: Job.objects.filter(status="succeeded").count() == 380)
    notes = Effect.objects.exclude(note="once").values_list("note", flat=True)
    assert sorted(map(int, notes)) == list(range(300))
    assert Effect.objects.filter(note="once").count() == 50
    assert set(Run.objects.values_list("attempt", "outcome")) == {(1, "succeeded")}
    for worker in workers:
        assert worker.drain() == 0
        assert "database_error" not in worker.text()
        assert "lease_lost" not in worker.text()
    assert set(Worker.objects.values_list("status", flat=True)) == {"stopped"}


def test_a_handler_for_which_the_pool_has_no_session_has_not_failed(
    transactional_db: None,
) -> None:
    with (
        Pooler(connection.settings_dict, size=1, wait=1) as full,
        psycopg.connect(full.url) as holder,
        psycopg.connect(full.url) as other,
    ):
        holder.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError) as refused:
            other.execute("SELECT 1")
    outcome = outcome_of_exception(refused.value, database_jobs.leave_effect_slowly)
    assert isinstance(outcome, Snoozed)


def test_leases_are_renewed_and_a_failure_is_tried_again(
    pooler: Pooler, start_worker: Start, tmp_path: Path
) -> None:
    lease, path = 4, tmp_path / "job"
    start_worker("--lease-seconds", str(lease), "--poll-seconds", "0.2", DATABASE_URL=pooler.url)
    held = jobs.hold.enqueue(str(path))
    until_marked(path)
    boot = Worker.objects.get()
    failing = jobs.fail.enqueue()
    renewed = Worker.objects.filter(heartbeat_at__gt=boot.heartbeat_at + timedelta(seconds=lease))
    until(renewed.exists, what="beats go on for longer than a lease")
    assert until_status(failing, "dead").failures == 3
    Path(f"{path}.go").touch()
    assert until_status(held, "succeeded").attempt == 1
    assert Worker.objects.get() == boot


def test_jobs_are_found_by_the_poll_without_notifications(
    pooler: Pooler, start_worker: Start
) -> None:
    """What is said of it is said once by each process that listens: worker and heartbeat."""
    worker = start_worker("--poll-seconds", "0.5", "--threads", "4", DATABASE_URL=pooler.url)
    for _ in range(10):
        until_status(jobs.noop.enqueue(), "succeeded")
    assert worker.text().count("event=listen_fails") <= 2
    assert worker.text().count("pooler in transaction mode") <= 2


def test_missing_notifications_are_noticed_behind_an_idle_pooler(
    pooler: Pooler,
) -> None:
    with queries_on(pooler.url):
        assert Wakeup(lambda hint: None)._listen() is None


def test_jobs_are_enqueued_and_read_repeatedly(pooler: Pooler) -> None:
    """A prepared statement would be another session's at the tenth time at the latest."""
    with queries_on(pooler.url):
        for number in range(20):
            jobs.add.enqueue(number)
            with transaction.atomic():
                keyed = jobs.add.using(idempotency_key="k", delay=60).enqueue(number)
            assert keyed.deduplicated == (number > 0)
        jobs.add.enqueue_many({"first": number} for number in range(200))
        assert Job.objects.count() == 221
    assert Job.objects.count() == 221


def test_a_worker_keeps_no_plan_in_a_session_of_the_pool(pooler: Pooler) -> None:
    """The next statement may be in another session, which knows no statement that was prepared."""
    with queries_on(pooler.url):
        own = own_connection(keeps_plans=True)
        own.ensure_connection()
        raw: Any = own.connection
        own.close()
    assert raw.prepare_threshold is None


def test_schedules_fire_through_it(pooler: Pooler, start_worker: Start) -> None:
    schedule = each_second()
    start_worker("--poll-seconds", "0.5", DATABASE_URL=pooler.url)
    until_fired(schedule, times=3)
    until(lambda: Job.objects.filter(status="succeeded").count() >= 3)
    until(lambda: Job.objects.exclude(scheduled_for=None).filter(status="succeeded").exists())


def test_no_setting_of_a_worker_is_left_on_a_connection_that_others_get(
    pooler: Pooler, start_worker: Start
) -> None:
    start_worker("--poll-seconds", "0.2", DATABASE_URL=pooler.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    settings = "statement_timeout", "lock_timeout", "search_path", "default_transaction_isolation"
    asked = ", ".join(f"current_setting('{name}')" for name in settings)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {asked}")
        usual = cursor.fetchone()
    with queries_on(pooler.url):
        for _ in range(20):
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT {asked}")
                assert cursor.fetchone() == usual


@pytest.fixture
def in_sessions(transactional_db: None) -> Iterator[Callable[[int], Pooler]]:
    """Start a PgBouncer in session mode, in which a client keeps its session until it leaves. It
    has the default ``query_wait_timeout``."""
    with ExitStack() as ending:
        yield lambda size: ending.enter_context(
            Pooler(connection.settings_dict, size=size, mode="session")
        )


@pytest.fixture
def in_a_full_pool(in_sessions: Callable[[int], Pooler], start_worker: Start) -> JobWorker:
    """It has taken the last session. Before that, a handler would."""
    worker = start_worker("--threads", "1", DATABASE_URL=in_sessions(IDLE_SESSIONS).url)
    until(lambda: other_sessions() == IDLE_SESSIONS)
    return worker


def test_handlers_take_turns_with_the_sessions_of_a_small_pool(
    in_sessions: Callable[[int], Pooler], start_worker: Start
) -> None:
    """Eight threads in two processes, and two sessions for them. Idle ones pass on."""
    pooler = in_sessions(8 + 2)
    start_worker("--processes", "2", "--threads", "4", DATABASE_URL=pooler.url)
    database_jobs.leave_effect_slowly.enqueue_many({"seconds": 0.05} for _ in range(40))
    until(lambda: Job.objects.filter(status="succeeded").count() == 40)
    counts = Counter(Effect.objects.values_list("job_id", flat=True))
    assert len(counts) == counts.total() == 40
    assert set(Run.objects.values_list("outcome", flat=True)) <= {"succeeded", "snoozed"}


def test_a_handler_for_which_no_session_becomes_free_is_snoozed_after_five_seconds(
    in_a_full_pool: JobWorker,
) -> None:
    job = database_jobs.leave_effect_slowly.enqueue(0)
    until(Run.objects.filter(job=job, outcome="snoozed").exists)
    assert "no session became free in 5 s" in Run.objects.filter(job=job)[0].error_message
    assert Job.objects.get(pk=job.pk).failures == 0
    assert "event=no_connection_left" in in_a_full_pool.text()
    assert "this jobworker needs" in in_a_full_pool.text()
    assert not Effect.objects.exists()


def test_a_handler_is_interrupted_while_it_waits_for_a_session(
    in_a_full_pool: JobWorker,
) -> None:
    until_status(limit_jobs.write_late.enqueue(), "dead")
    assert Run.objects.get().outcome == "timed_out"
    assert "event=process_" not in in_a_full_pool.text()


def test_a_worker_whose_own_sessions_the_pool_has_not_claims_nothing(
    in_sessions: Callable[[int], Pooler], start_worker: Start
) -> None:
    job = jobs.noop.enqueue()
    worker = start_worker(DATABASE_URL=in_sessions(1).url)
    until(lambda: "event=no_connection_left" in worker.text())
    until(lambda: worker.text().count("no session became free in 5 s") >= 1)
    assert Job.objects.get(pk=job.pk).attempt == 0


@pytest.fixture
def held() -> Iterator[None]:
    """What the statements of handlers wait for, and would wait for until the test lets go."""
    run_sql("SELECT pg_advisory_lock(4711)")
    yield
    run_sql("SELECT pg_advisory_unlock_all()")


WAITING = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


def test_the_statement_of_a_handler_is_cancelled_through_a_full_pool(
    in_sessions: Callable[[int], Pooler], start_worker: Start, held: None
) -> None:
    worker = start_worker("--threads", "1", DATABASE_URL=in_sessions(IDLE_SESSIONS + 1).url)
    job = limit_jobs.write_late.enqueue()
    until(lambda: run_sql(WAITING))
    until_status(job, "dead")
    until(lambda: not run_sql(WAITING))
    assert "event=process_" not in worker.text()


def test_a_statement_ends_with_a_command_that_is_killed(
    in_sessions: Callable[[int], Pooler], start_worker: Start, held: None
) -> None:
    worker = start_worker("--threads", "1", DATABASE_URL=in_sessions(IDLE_SESSIONS + 1).url)
    limit_jobs.write_at_leisure.enqueue()
    until(lambda: run_sql(WAITING))
    worker.signal_all(signal.SIGKILL)
    until(lambda: not run_sql(WAITING))
    run_sql("SELECT pg_advisory_unlock(4711)")
    assert not Effect.objects.exists()
