"""The database is there and refuses: no connection left, read-only, short of time (D12, D15, D21).

One cluster for all, because each test changes its configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.db import DatabaseError, connection

from django_jobs import enqueue_many
from django_jobs.models import Job, Run, Worker
from tests.app import database_jobs, jobs
from tests.app.models import Effect
from tests.clusters import FAST
from tests.factories import open_elsewhere, run_sql
from tests.worker.processes import let_go, until, until_marked, until_status

from .stage import Stage

pytestmark = pytest.mark.processes
POLL = ("--poll-seconds", "0.2")

OF_A_BEAT = (
    "SET heartbeat_at",
    "SELECT worker_id, id FROM django_jobs_job",
    "FROM django_jobs_inspection",
)
OTHERS = "SELECT pid, query FROM pg_stat_activity WHERE backend_type = 'client backend'"


def terminate_others() -> None:
    run_sql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )


def test_a_server_without_a_connection_left_costs_no_lease_and_no_job(
    stage: Stage, tmp_path: Path
) -> None:
    stage.cluster.execute("ALTER SYSTEM SET max_connections = 25")
    stage.restart(FAST)
    path, often = tmp_path / "job", json.dumps({"LEASE_SECONDS": 600, "HEARTBEAT_SECONDS": 1})
    worker = stage.start_worker(*POLL, "--threads", "2", TEST_DJANGO_JOBS=often)
    held = jobs.hold.enqueue(str(path))
    until_marked(path)
    boot = Worker.objects.get()
    until(Worker.objects.filter(heartbeat_at__gt=boot.heartbeat_at).exists, what="it beats")
    with ExitStack() as taken:
        take_all_but_the_heartbeat_s(stage.cluster.url, taken)
        until(lambda: "too many clients" in worker.text(), what="the worker is refused")
        waiting = jobs.write_effect.enqueue("waited")
        later = Worker.objects.get().heartbeat_at + timedelta(seconds=2)
        until(Worker.objects.filter(heartbeat_at__gt=later).exists, what="leases are renewed")
        # No count of failed claims: a claimer whose settler is refused first does not try any.
        assert Job.objects.get(pk=waiting.pk).status == "ready"
        assert Job.objects.get(pk=held.pk).status == "running"
    until_status(waiting, "succeeded")
    let_go(path)
    assert until_status(held, "succeeded").attempt == 1
    assert Worker.objects.get() == boot
    assert worker.text().count("event=database_error") <= 10  # and not one for each try
    stage.cluster.execute("ALTER SYSTEM RESET max_connections")
    assert worker.drain() == 0
    stage.restart(FAST)


def take_all_but_the_heartbeat_s(url: str, taken: ExitStack) -> None:
    """Take every connection that is left, and those of the worker but the one that beats."""
    ours = {connection.connection.info.backend_pid}
    beating: set[int] = set()

    def take() -> bool:
        while True:
            try:
                one = taken.enter_context(psycopg.connect(url, autocommit=True))
            except psycopg.OperationalError:
                break
            ours.add(one.info.backend_pid)
        last = dict(run_sql(OTHERS))
        beating.update(pid for pid, query in last.items() if any(map(query.count, OF_A_BEAT)))
        if not beating:
            return False  # its session is only known by what it sends
        rest = last.keys() - ours - beating
        for pid in rest:
            run_sql("SELECT pg_terminate_backend(%s)", [pid])
        return not rest

    until(take, what="all connections are taken")


def test_a_read_only_server_is_waited_for_and_no_job_succeeds(stage: Stage, path: Path) -> None:
    worker = stage.start_worker(*POLL, "--lease-seconds", "60")
    held = database_jobs.hold_without_a_database.enqueue(str(path))
    until_marked(path)
    boot = Worker.objects.get()
    try:
        run_sql("ALTER SYSTEM SET default_transaction_read_only = on")
        run_sql("SELECT pg_reload_conf()")
        until(lambda: run_sql("SHOW default_transaction_read_only") == [("on",)])
        terminate_others()
        with pytest.raises(DatabaseError, match="read-only"):
            jobs.noop.enqueue()
        let_go(path)
        # Not in the settler's first line: that may say that the connection was ended.
        until(
            lambda: any(
                "what=settle" in at and "read-only" in at for at in worker.text().splitlines()
            ),
            what="its success cannot be written",
        )
        assert Job.objects.get(pk=held.pk).status == "running"
    finally:
        run_sql("ALTER SYSTEM RESET default_transaction_read_only")
        run_sql("SELECT pg_reload_conf()")
    until(lambda: run_sql("SHOW default_transaction_read_only") == [("off",)])
    assert until_status(held, "succeeded").attempt == 1
    until_status(jobs.noop.enqueue(), "succeeded")
    assert Worker.objects.get() == boot
    assert Run.objects.filter(job=held).count() == 1


@pytest.fixture
def short_of_time(stage: Stage) -> Iterator[Stage]:
    """The role that all connect as waits for no lock longer than 0.2 seconds, in this database:
    tests in others run meanwhile."""
    role = f"ALTER ROLE postgres IN DATABASE {connection.settings_dict['NAME']}"
    run_sql(f"{role} SET lock_timeout = '200ms'")
    run_sql(f"{role} SET statement_timeout = '5s'")
    yield stage
    run_sql(f"{role} RESET ALL")


def test_a_lock_timeout_of_the_role_in_a_settle_delays_no_other_job(
    short_of_time: Stage, path: Path
) -> None:
    short_of_time.start_worker(*POLL)
    held = jobs.hold.enqueue(str(path))
    until_marked(path)
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held.pk]):
        let_go(path)
        until(Effect.objects.exists)
        others = [jobs.add.enqueue(number) for number in range(50)]
        settled = Job.objects.filter(pk__in=[job.pk for job in others], status="succeeded")
        until(lambda: settled.count() == 50, what="the others are settled")
    assert until_status(held, "succeeded").attempt == 1


@contextmanager
def locked_queue(name: str) -> Iterator[None]:
    """Another session holds the row of a queue with a limit."""
    with open_elsewhere("SELECT 1 FROM django_jobs_queue WHERE name = %s FOR UPDATE", [name]):
        yield


def test_a_lock_timeout_of_the_role_in_a_claim_delays_no_other_queue(
    short_of_time: Stage,
) -> None:
    short_of_time.start_worker(*POLL)
    until_status(jobs.noop.enqueue(), "succeeded")
    with locked_queue("emails"):
        limited = jobs.noop.using(queue="emails").enqueue()
        for number in range(3):
            until_status(jobs.add.enqueue(number), "succeeded")
        # Far more than one claim takes: the share of the locked queue is far behind theirs.
        others = enqueue_many(jobs.noop, [{}] * 2_000)
        settled = Job.objects.filter(pk__in=others, status="succeeded")
        until(lambda: settled.count() == 2_000, what="the others are settled")
        assert Job.objects.get(pk=limited.pk).status == "ready"
    assert until_status(limited, "succeeded").attempt == 1


def test_a_burst_waits_for_a_queue_that_another_session_has_locked(short_of_time: Stage) -> None:
    with locked_queue("emails"):
        limited = jobs.noop.using(queue="emails").enqueue()
        worker = short_of_time.start_worker(*POLL, "--burst")
        until(lambda: worker.text().count("event=claim_blocked") > 1)
    assert until_status(limited, "succeeded").attempt == 1
    assert worker.wait() == 0
