"""How many connections a worker has, and what it does where it cannot have them."""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from multiprocessing import Pipe
from pathlib import Path

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from django_jobs.domain.outcomes import Failed, Snoozed
from django_jobs.models import Job, Run, Worker
from django_jobs.worker.connections import (
    close_idle_of_tree,
    make_room_by,
    nothing,
)
from django_jobs.worker.execution.failures import outcome_of_exception
from django_jobs.worker.heartbeat.heartbeat import Leases
from django_jobs.worker.ipc.pipes import MessagePipe
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.app import async_jobs, database_jobs, jobs, limit_jobs
from tests.app.models import Effect
from tests.clusters import FAST, Cluster
from tests.factories import run_sql

from .handlers.threads import Handlers
from .processes import (
    IDLE_SESSIONS,
    OTHER_SESSIONS,
    JobWorker,
    Start,
    let_go,
    other_sessions,
    until,
    until_marked,
    until_status,
)
from .roles import Role

DEFAULT = Options(queues=())
HANDLERS = f"{OTHER_SESSIONS} AND query LIKE '%app_effect%'"
END_ITS_OWN = f"""
SELECT pg_terminate_backend(pid, 60000)
FROM ({OTHER_SESSIONS.replace("count(*)", "pid, query")}) AS found
WHERE query NOT LIKE '%app_effect%'
"""
"""A handler whose statement is cut off has failed, which is not what is tested."""

RENEW_AND_SETTLE = """
SELECT pid FROM pg_stat_activity
WHERE usename = %s
    AND (query LIKE '%%settled AS MATERIALIZED%%'
         OR query LIKE '%%cancel_requested_at IS NOT NULL%%')
"""
END_OTHERS = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE usename = %s AND NOT pid = ANY(%s)
"""


@pytest.mark.processes
def test_a_default_worker_has_five_connections_idle_and_fifteen_at_most(
    start_worker: Start, tmp_path: Path
) -> None:
    start_worker()
    until(lambda: other_sessions() == IDLE_SESSIONS, what="it is idle")
    paths = [tmp_path / f"job-{number}" for number in range(4)]
    held = [database_jobs.hold_with_a_connection.enqueue(str(path)) for path in paths]
    held += [async_jobs.hold_session.enqueue(str(path)) for path in paths]
    held += [async_jobs.hold_in_thread.enqueue(str(paths[0]))]
    for path in paths:
        until_marked(path, 3 if path == paths[0] else 2)
    assert DEFAULT.connections == 15
    until(lambda: other_sessions() == DEFAULT.connections, what="all is in use")
    for path in paths:
        let_go(path)
    for job in held:
        until_status(job, "succeeded")
    assert other_sessions() == DEFAULT.connections


def test_two_processes_of_eight_threads_need_the_computed_connections() -> None:
    options = Options(queues=(), processes=2, threads=8)
    assert options.connections == 2 + 2 * (4 + 8 + 8 + 1)  # there are async handlers


def test_another_process_settles_what_one_process_leaves() -> None:
    assert Options(queues=(), forks=False).connections == DEFAULT.connections + 1


@pytest.mark.processes
@pytest.mark.parametrize("limit", [8, 9])
def test_with_too_few_connections_every_job_still_runs_once(
    role: Role, start_worker: Start, limit: int
) -> None:
    role.limit(limit)
    database_jobs.leave_effect_slowly.enqueue_many({"seconds": 0.1} for _ in range(30))
    worker = start_worker("--lease-seconds", "5", DATABASE_URL=role.url)
    until(lambda: Job.objects.filter(status="succeeded").count() == 30)
    assert worker.drain() == 0
    assert all_once(30)
    assert "event=lease_lost" not in worker.text()


@pytest.mark.processes
def test_lowering_the_connection_limit_loses_and_repeats_nothing(
    role: Role, start_worker: Start
) -> None:
    worker = start_worker("--lease-seconds", "5", DATABASE_URL=role.url)
    until(lambda: other_sessions() == IDLE_SESSIONS)
    own = [pid for (pid,) in run_sql(OTHER_SESSIONS.replace("count(*)", "pid"))]
    database_jobs.leave_effect_slowly.enqueue_many({"seconds": 0.2} for _ in range(30))
    until(lambda: run_sql(HANDLERS) == [(4,)], what="all handlers are connected")
    role.limit(IDLE_SESSIONS + 1)
    # None of a handler: one whose statement is cut off has failed, which is not what is tested.
    run_sql("SELECT pg_terminate_backend(pid, 60000) FROM unnest(%s::integer[]) AS pid", [own])
    until(lambda: Job.objects.filter(status="succeeded").count() == 30)
    assert worker.drain() == 0
    assert all_once(30)


def all_once(number: int) -> bool:
    counts = Counter(Effect.objects.values_list("job_id", flat=True))
    assert len(counts) == number
    assert set(counts.values()) == {1}
    outcomes = Counter(Run.objects.values_list("outcome", flat=True))
    assert outcomes.pop("succeeded") == number
    return not outcomes or set(outcomes) == {"snoozed"}  # for want of a connection


@pytest.mark.processes
@pytest.mark.parametrize("limit", [1, 2])
def test_a_worker_that_cannot_settle_and_renew_logs_it_and_claims_nothing(
    role: Role, start_worker: Start, limit: int
) -> None:
    role.limit(limit)
    job = jobs.noop.enqueue()
    worker = start_worker(DATABASE_URL=role.url)
    until(lambda: "event=no_connection_left" in worker.text())
    assert "this jobworker needs 15 connections" in worker.text()
    assert not Worker.objects.exists()
    assert Job.objects.get(pk=job.pk).attempt == 0
    role.limit(10)
    until_status(job, "succeeded")


@pytest.mark.processes
def test_the_last_two_connections_renew_and_settle(
    role: Role, start_worker: Start, tmp_path: Path
) -> None:
    """All of the worker's are ended at once, and what claims, listens and cleans up is as quick to
    open a new one: it makes way, or what is in hand could not be settled for as long as it lasts.
    It may claim another job first, as the settler finds its connection broken when it next uses it.
    """
    worker = start_worker("--threads", "1", "--lease-seconds", "10", DATABASE_URL=role.url)
    job = limit_jobs.fail_when_let_go.enqueue(str(tmp_path / "job"))  # it uses no connection
    until_marked(tmp_path / "job")
    until(lambda: other_sessions() == IDLE_SESSIONS)
    role.limit(2)
    run_sql(END_ITS_OWN)
    until(lambda: other_sessions() == 2)
    until(lambda: "event=no_connection_left" in worker.text())
    later = jobs.noop.enqueue()
    let_go(tmp_path / "job")
    until(Run.objects.filter(job=job, outcome="failed").exists)
    role.limit(10)
    until_status(later, "succeeded")
    assert "event=lease_lost" not in worker.text()


@pytest.mark.processes
def test_prefetched_jobs_go_back_if_the_claimer_cannot_connect(
    role: Role, start_worker: Start, tmp_path: Path
) -> None:
    """Two connections are left, which renew and settle. Another worker may have one to claim."""
    worker = start_worker("--threads", "1", "--lease-seconds", "10", DATABASE_URL=role.url)
    jobs.noop.enqueue_many({} for _ in range(20))  # quick ones, so that it claims ahead
    until(lambda: Job.objects.filter(status="succeeded").count() == 20)
    until(lambda: len(run_sql(RENEW_AND_SETTLE, [role.name])) == 2, what="both are idle")
    kept = [pid for (pid,) in run_sql(RENEW_AND_SETTLE, [role.name])]
    role.limit(2)
    with transaction.atomic():
        first = limit_jobs.fail_when_let_go.enqueue(str(tmp_path / "job"))
        jobs.noop.enqueue_many({} for _ in range(30))
    waiting = Job.objects.filter(pk__gt=first.pk)
    until_marked(tmp_path / "job")
    run_sql(END_OTHERS, [role.name, kept])
    until(lambda: waiting.filter(status="ready", worker=None).count() == 30)
    let_go(tmp_path / "job")
    until(Run.objects.filter(job=first, outcome="failed").exists)
    role.limit(10)
    until(lambda: waiting.filter(status="succeeded").count() == 30)
    assert "event=lease_lost" not in worker.text()


@pytest.mark.processes
def test_an_isolated_job_that_finds_no_connection_goes_back(
    role: Role, start_worker: Start
) -> None:
    """Another worker may have one to spare."""
    role.limit(IDLE_SESSIONS)
    start_worker("--threads", "1", DATABASE_URL=role.url)
    until(lambda: other_sessions() == IDLE_SESSIONS)
    job = jobs.alone.enqueue()
    until(Run.objects.filter(job=job, outcome="released").exists)
    role.limit(10)
    done = until_status(job, "succeeded")
    assert (done.failures, done.crashes) == (0, 0)


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_that_lost_its_connection_lets_no_new_process_claim() -> None:
    scoreboard = Scoreboard(1)
    pipe, other = (MessagePipe(end) for end in Pipe())
    leases = Leases(pipe, scoreboard, DEFAULT)
    assert leases.renew()
    assert not scoreboard.slots[0].may_claim, "nothing would be settled"
    scoreboard.slots[0].note_settling(True)
    assert scoreboard.slots[0].may_claim
    scoreboard.slots[0].register(7, 0.0)
    with connection.execute_wrapper(refuse):
        assert not leases.renew()
    assert not scoreboard.slots[0].may_claim, "its first lease would run out"
    assert leases.renew()
    assert scoreboard.slots[0].may_claim
    pipe.close()
    other.close()


def refuse(*_: object) -> None:
    raise OperationalError("the server closed the connection")


@pytest.mark.processes
def test_idle_connections_of_handlers_make_room_for_the_workers_own(
    role: Role, start_worker: Start, tmp_path: Path
) -> None:
    """All of the worker's own are ended, and those of handlers have their places."""
    start_worker("--threads", "2", "--lease-seconds", "6", DATABASE_URL=role.url)
    until(lambda: other_sessions() == IDLE_SESSIONS)
    paths = [tmp_path / f"job-{number}" for number in range(2)]
    held = [database_jobs.hold_with_a_connection.enqueue(str(path)) for path in paths]
    for path in paths:
        until_marked(path)
    handlers = run_sql(
        "SELECT pid FROM pg_stat_activity WHERE usename = %s AND query LIKE '%%tests_app_effect%%'",
        [role.name],
    )
    for path in paths:
        let_go(path)
    for job in held:
        until_status(job, "succeeded")
    role.limit(IDLE_SESSIONS)
    run_sql(END_OTHERS, [role.name, [pid for (pid,) in handlers]])
    until_status(jobs.noop.enqueue(), "succeeded")
    before = Worker.objects.get(status="running")
    until(Worker.objects.filter(pk=before.pk, heartbeat_at__gt=before.heartbeat_at).exists)


@pytest.mark.parametrize(
    "message",
    [
        'too many connections for role "shop"',
        "sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ],
)
def test_a_handler_that_finds_no_connection_left_has_not_failed(message: str) -> None:
    refused = OperationalError(f"connection failed: FATAL:  {message}")
    outcome = outcome_of_exception(refused, database_jobs.leave_effect_slowly)
    assert isinstance(outcome, Snoozed)
    assert 1 <= outcome.seconds <= 5
    other = outcome_of_exception(
        OperationalError("too many columns"), database_jobs.leave_effect_slowly
    )
    assert isinstance(other, Failed)


def session() -> psycopg.Connection[tuple[object, ...]]:
    """Of the thread that calls it."""
    connection.ensure_connection()
    raw: psycopg.Connection[tuple[object, ...]] = connection.connection
    return raw


def test_a_handlers_session_is_closed_by_others_only_while_it_is_idle(
    transactional_db: None,
) -> None:
    handlers = Handlers()

    first = handlers.run(session)
    kept = handlers._connections
    kept.close_if_idle(60)
    with kept.in_use:
        kept.close_if_idle(0)
    assert not first.closed
    kept.close_if_idle(0)
    assert first.closed
    assert not handlers.run(session).closed
    handlers.close()


def test_idle_sessions_are_closed_if_a_handler_of_another_process_needs_one(
    transactional_db: None,
) -> None:
    """It may wait for five seconds only, and they would stay open for a minute."""
    scoreboard = Scoreboard(2)
    pipe, other = (MessagePipe(end) for end in Pipe())
    process = WorkerProcess(pipe, scoreboard.slots[0], DEFAULT)
    handlers = Handlers()

    first = handlers.run(session)
    process._close_idle()
    assert not first.closed
    make_room_by(nothing, scoreboard.slots[1].status.ask_for_idle)
    close_idle_of_tree()
    first = handlers.run(session)
    process._close_idle()
    assert first.closed
    later = handlers.run(session)
    process._close_idle()
    assert not later.closed, "once for each time that one is needed"
    make_room_by(nothing, nothing)
    handlers.close()
    pipe.close()
    other.close()


SMALL = "ALTER SYSTEM SET max_connections = 20"
SITE_ROLE = "CREATE ROLE site LOGIN; GRANT pg_read_all_data, pg_write_all_data TO site"
FORTY_JOBS = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, last_error, reason,
    replays, headers, created_at)
SELECT 'default', 'app.leave_effect_slowly', '{"seconds": 0.2}', 1, 'ready', 0,
    date_part('epoch', now()), now(), 0, 0, 0, 1, 3, '', '', 0, '{}', now()
FROM generate_series(1, 40)
"""
DONE = """
SELECT count(*) FROM django_jobs_job
WHERE status = 'succeeded' AND job_type = 'app.leave_effect_slowly'
"""
EFFECTS = "SELECT count(*), count(DISTINCT job_id) FROM app_effect"


def pages_of_sessions() -> dict[int, int]:
    """The pages that each session got from the system so far, without a disk, by its process."""
    pids = [pid for (pid,) in run_sql(OTHER_SESSIONS.replace("count(*)", "pid"))]
    stats = [Path(f"/proc/{pid}/stat") for pid in pids]
    if not all(stat.exists() for stat in stats):
        pytest.skip("PostgreSQL runs on another machine")
    return {
        pid: int(stat.read_text().rpartition(")")[2].split()[7])
        for pid, stat in zip(pids, stats, strict=True)
    }


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")
@pytest.mark.processes
def test_a_worker_s_sessions_keep_the_memory_that_a_job_needs(start_worker: Start) -> None:
    """Without their first statement those that claim and settle got 255 and 184 pages for each."""
    start_worker()

    def run(count: int) -> dict[int, int]:
        for _ in range(count):
            until_status(jobs.noop.enqueue(), "succeeded")
        return pages_of_sessions()

    before, after = run(10), run(20)  # the first ones read catalogs
    assert max(pages - before.get(pid, pages) for pid, pages in after.items()) < 20 * 20


@pytest.mark.slow
@pytest.mark.processes
def test_with_twenty_connections_all_jobs_end_and_the_site_keeps_its_own(
    tmp_path: Path,
) -> None:
    """Three are the superuser's and five the site's. Two processes need 18 and have twelve."""
    with Cluster() as own, contextlib.ExitStack() as ending:
        own.execute(SMALL)
        own.stop(FAST)
        own.start()
        own.execute(SITE_ROLE)
        url = own.url_as("site")
        site = [ending.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(5)]
        own.execute(FORTY_JOBS)
        environment = {"DATABASE_URL": url, "TEST_DATABASE_NAME": "postgres"}
        worker = JobWorker("--processes", "2", log=tmp_path / "worker.log", **environment)
        ending.callback(worker.end)

        def all_done() -> bool:
            for session in site:
                session.execute("SELECT 1")
            return own.fetch(DONE) == [(40,)]

        until(all_done)
        assert own.fetch(EFFECTS) == [(40, 40)]
        assert worker.drain() == 0
