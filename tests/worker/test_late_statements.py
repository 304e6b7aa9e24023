"""A statement of an attempt that has ended is ended by the server, and writes nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from django.db import connection

from django_jobs import JobType, cancel
from django_jobs.models import Job, Run
from django_jobs.worker.handlers.connections import LOOK_FOR_THE_CLIENT
from tests.app.jobs import write_effect
from tests.app.limit_jobs import (
    write_at_leisure,
    write_at_leisure_alone,
    write_at_leisure_async,
    write_at_leisure_async_alone,
    write_at_leisure_once,
    write_in_silence,
    write_in_silence_async,
    write_late,
    write_late_alone,
    write_late_async,
    write_late_async_alone,
    write_late_in_a_free_thread,
    write_late_once,
)
from tests.app.models import Effect
from tests.factories import run_sql

from .processes import BEATS_OFTEN, Start, in_case, until, until_status
from .roles import Role

pytestmark = pytest.mark.processes

LATE: list[JobType[[], object]] = [
    *(write_late, write_late_alone, write_late_once, write_in_silence),
    *(write_late_async, write_late_async_alone, write_late_in_a_free_thread),
    write_in_silence_async,
]
AT_LEISURE: list[JobType[[], object]] = [
    *(write_at_leisure, write_at_leisure_alone),
    *(write_at_leisure_async, write_at_leisure_async_alone, write_at_leisure_once),
]
WAITING = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


@pytest.fixture(autouse=True)
def _held(transactional_db: None) -> Iterator[None]:
    """What the statements of handlers wait for, and would wait for until the test lets go."""
    run_sql("SELECT pg_advisory_lock(4711)")
    yield
    run_sql("SELECT pg_advisory_unlock_all()")


def none_is_written() -> bool:
    """Wait until no statement waits, then let go what it would have waited for."""
    until(lambda: not run_sql(WAITING))
    run_sql("SELECT pg_advisory_unlock(4711)")
    return not Effect.objects.exists()


def until_the_next_one_has_run() -> None:
    """In the same thread; then statements wait again."""
    until_status(write_effect.enqueue("next"), "succeeded")
    Effect.objects.all().delete()
    run_sql("SELECT pg_advisory_lock(4711)")


def test_a_statement_ends_with_an_attempt_that_times_out(start_worker: Start) -> None:
    worker = start_worker("--threads", "1")
    for late in LATE:
        with in_case(late.name):
            job = late.enqueue()
            until(lambda: run_sql(WAITING))
            until_status(job, "dead")
            assert none_is_written()
            run = Run.objects.get(job=job)
            assert run.outcome == "timed_out"
            assert late.is_async or "in wait_in_the_server" in run.traceback
            assert "event=process_" not in worker.text()
            until_the_next_one_has_run()


def test_a_statement_ends_with_a_stop_by_force(start_worker: Start) -> None:
    worker = start_worker("--threads", "1", TEST_DJANGO_JOBS=BEATS_OFTEN)
    for late in AT_LEISURE:
        with in_case(late.name):
            job = late.enqueue()
            until(lambda: run_sql(WAITING))
            assert cancel(job.pk, force=True)
            until_status(job, "cancelled")
            assert none_is_written()
            assert Run.objects.get(job=job).outcome == "cancelled"
            assert "event=process_" not in worker.text()
            until_the_next_one_has_run()


def test_a_statement_ends_with_the_cancel_of_an_async_handler(start_worker: Start) -> None:
    start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    job = write_at_leisure_async.enqueue()
    until(lambda: run_sql(WAITING))
    assert cancel(job.pk)
    until_status(job, "cancelled")
    assert none_is_written()


@pytest.mark.parametrize(
    "options, late",
    [((), AT_LEISURE), (("--no-fork",), [write_at_leisure, write_at_leisure_async])],
    ids=["processes", "no-fork"],
)
def test_a_statement_ends_with_a_drain(
    start_worker: Start, options: Sequence[str], late: Sequence[JobType[[], object]]
) -> None:
    worker = start_worker("--drain-timeout", "0.5", "--threads", "5", *options)
    drained = {job_type.name: job_type.enqueue() for job_type in late}
    until(lambda: len(run_sql(WAITING)) == len(late))
    worker.signal(signal.SIGTERM)
    for name, job in drained.items():
        with in_case(name):
            until_status(job, "ready")
    assert none_is_written()
    assert worker.wait() == 143
    for name, job in drained.items():
        assert Run.objects.get(job=job).outcome == "released", name
    assert "event=process_killed" not in worker.text()


def test_a_statement_ends_with_a_command_that_is_killed(start_worker: Start) -> None:
    worker = start_worker()
    write_at_leisure.enqueue()
    until(lambda: run_sql(WAITING))
    worker.signal_all(signal.SIGKILL)
    assert none_is_written()
    assert Job.objects.exists()


def test_a_time_that_the_role_has_is_kept(start_worker: Start) -> None:
    (name,) = run_sql("SELECT quote_ident(current_database())")[0]
    run_sql(f"ALTER DATABASE {name} SET client_connection_check_interval = '70ms'")
    try:
        start_worker()
        job = write_late.enqueue()
        until_status(job, "dead")
        assert none_is_written()
    finally:
        run_sql(f"ALTER DATABASE {name} RESET client_connection_check_interval")


@pytest.mark.parametrize("of", ["ROLE {role}", "DATABASE {name}", "ROLE {role} IN DATABASE {name}"])
def test_a_role_or_a_database_may_switch_it_off(role: Role, of: str) -> None:
    ((name,),) = run_sql("SELECT quote_ident(current_catalog)")
    assert shown_for(role) == "500ms"
    run_sql(
        f"ALTER {of} SET client_connection_check_interval = 0".format(role=role.name, name=name)
    )
    assert shown_for(role) == "0"
    run_sql(f"ALTER {of} RESET client_connection_check_interval".format(role=role.name, name=name))
    assert shown_for(role) == "500ms"


def shown_for(role: Role) -> str:
    with psycopg.connect(role.url, dbname=connection.settings_dict["NAME"]) as session:
        session.execute(LOOK_FOR_THE_CLIENT)
        (shown,) = session.execute("SHOW client_connection_check_interval").fetchone() or ("",)
    return str(shown)
