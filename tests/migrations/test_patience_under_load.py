"""Tables are migrated while they are in use, and no statement waits for over 200 ms.

``MIGRATION_ROWS`` says how many finished jobs there are. At full size::

    MIGRATION_ROWS=1000000 python -m pytest tests/migrations/test_patience_under_load.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from tests import forking
from tests.clusters import PROJECT, Cluster
from tests.migrations.traffic import FILL_JOBS, FILL_RUNS, Traffic
from tests.patience import PATIENCE
from tests.worker.processes import COMMAND, until

ROWS = int(os.environ.get("MIGRATION_ROWS", "50000"))
FIRST, NEXT = "0001_initial", "each_operation"
TURNS = 2
"""How often a migration finds a table in use before it gets a column in."""

TABLES = ("job", "run", "schedule", "queue", "worker")
COLUMNS = """
SELECT count(*) FROM information_schema.columns WHERE table_name LIKE 'django_jobs_%'
"""
HOLD_UP_AN_INDEX = """
SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE '%INDEX CONCURRENTLY%'
  AND clock_timestamp() - query_start > '0.3 s'
"""

# A deployment has the migrations of tests/migrations/next_release.
NEXT_RELEASE = """
from django.conf import settings
settings.MIGRATION_MODULES = {{"django_jobs": "tests.migrations.next_release"}}
from django_jobs.migrations import _patience
_patience.PATIENCE = {patience}
_patience.FIRST_PAUSE = 0.1
"""


class Migrating:
    """A process that migrates to ``migration``, forwards or backwards."""

    def __init__(self, cluster: Cluster, migration: str, patience: float = 60) -> None:
        self._output = cluster.directory / "migrating"  # gone with the cluster
        before = NEXT_RELEASE.format(patience=patience)
        command = ["migrate", "django_jobs", migration, "-v0", "--skip-checks"]
        with self._output.open("w") as output:
            if forking.IS_POSSIBLE:
                template = forking.template(PROJECT, cluster.environment)
                self._process: Any = template.start(command, output.fileno(), before=before)
                return
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND.format(before=before), *command],
                env=cluster.environment,
                stderr=output,
            )

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def said(self) -> str:
        return self._output.read_text()

    def end(self) -> int:
        """Its exit code."""
        try:
            return int(self._process.wait())
        except BaseException:
            self._process.kill()
            raise


@pytest.fixture  # of each test: the ids of jobs begin at 1
def cluster() -> Iterator[Cluster]:
    with Cluster() as own:
        # The exact measure: the server says who waited for a lock for longer than that.
        own.execute("ALTER SYSTEM SET log_lock_waits = on")
        own.execute("ALTER SYSTEM SET deadlock_timeout = '200ms'")
        own.execute("ALTER SYSTEM SET log_line_prefix = '%a|'")
        own.execute("ALTER SYSTEM SET fsync = off")
        own.execute("SELECT pg_reload_conf()")
        yield own


def migrate(cluster: Cluster, migration: str) -> None:
    """Migrate there, and fail with its output."""
    migrating = Migrating(cluster, migration)
    assert migrating.end() == 0, migrating.said()


def applied(cluster: Cluster) -> set[str]:
    sql = "SELECT name FROM django_migrations WHERE app = 'django_jobs'"
    return {name for (name,) in cluster.fetch(sql)}


@contextmanager
def open_transaction(
    cluster: Cluster, *tables: str, lock: str = "ACCESS SHARE"
) -> Iterator[psycopg.Connection]:
    """A report that has read these tables and is not over; or somebody who has written there."""
    with psycopg.connect(cluster.url) as holder:
        for table in tables:
            holder.execute(f"LOCK TABLE django_jobs_{table} IN {lock} MODE")
        yield holder
        holder.rollback()


def waited(cluster: Cluster, since: int = 0) -> list[str]:
    """The lines of the log about statements of the traffic that waited for over 200 ms."""
    lines = (cluster.directory / "log").read_text(errors="replace")[since:].splitlines()
    return [line for line in lines if line.startswith(Traffic.NAME) and "still waiting" in line]


class Waits(NamedTuple):
    """The tables that a migration waited for."""

    columns: set[str]
    """In short turns, and it named the process that held the table."""
    indexes: set[str]
    """While the claims passed."""


class Holders:
    """A transaction on each table. It ends when the migration was seen to wait for it: for an index
    the next one has begun before that, for a column it begins when the column has changed, while
    the other tables are still held. So no operation is done unseen, however slow the machine is."""

    def __init__(self, cluster: Cluster, rest: ExitStack, tables: Iterable[str]) -> None:
        self.waits = Waits(set(), set())
        self._cluster, self._rest = cluster, rest
        self._open: dict[int, tuple[str, ExitStack]] = {}
        for table in tables:
            self._hold(table)

    def seen_by(self, step: Migrating) -> bool:
        """Whether one of them was in the way. It is no longer."""
        for (pid,) in self._cluster.fetch(HOLD_UP_AN_INDEX):
            if pid in self._open:
                table, transaction = self._open.pop(pid)
                self._hold(table)
                transaction.close()
                self.waits.indexes.add(table)
                return True
        said = step.said()
        for pid, (table, transaction) in self._open.items():
            if said.count(f"django_jobs_{table} is in use (process {pid}, for") >= TURNS:
                del self._open[pid]
                self._make_way(transaction)
                self._hold(table)
                self.waits.columns.add(table)
                return True
        return False

    def _hold(self, table: str) -> None:
        if not self._cluster.fetch(f"SELECT to_regclass('django_jobs_{table}')")[0][0]:
            return  # its migration was undone
        own = self._rest.enter_context(ExitStack())
        holder = own.enter_context(open_transaction(self._cluster, table, lock="ROW EXCLUSIVE"))
        self._open[holder.info.backend_pid] = table, own

    def _make_way(self, transaction: ExitStack) -> None:
        before = self._cluster.fetch(COLUMNS)
        transaction.close()
        until(lambda: self._cluster.fetch(COLUMNS) != before, what="the column")


def behind_others(cluster: Cluster, migration: str, tables: Iterable[str]) -> Waits:
    """Migrate, and let it wait for each of ``tables`` that it changes."""
    step = Migrating(cluster, migration)
    try:
        with ExitStack() as rest:
            holders = Holders(cluster, rest, tables)
            while not step.is_over():
                until(lambda: holders.seen_by(step) or step.is_over(), what="the next operation")
    finally:
        code = step.end()
    assert code == 0, step.said()
    return holders.waits


def fill(cluster: Cluster) -> None:
    """The finished jobs with their runs, and some that are ready."""

    def insert(sql: str, count: int, status: str = "succeeded") -> None:
        with psycopg.connect(cluster.url, autocommit=True) as own:
            own.execute(sql, {"count": count, "status": status})

    with ThreadPoolExecutor(2) as two:
        for done in [two.submit(insert, sql, ROWS) for sql in (FILL_JOBS, FILL_RUNS)]:
            done.result()
    insert(FILL_JOBS, 50_000, "ready")
    cluster.execute(
        "INSERT INTO django_jobs_queue (name, paused_reason, priority_weight,"
        " created_at) VALUES ('web', '', 60, now())"
    )
    cluster.execute("VACUUM (ANALYZE) django_jobs_job")
    cluster.execute("VACUUM (ANALYZE) django_jobs_run")


def test_claims_continue_while_each_operation_waits_for_its_table(cluster: Cluster) -> None:
    fill(cluster)
    log = cluster.directory / "log"
    stalls: list[list[str]] = []
    # A machine that stands still for a moment makes a line of its own: the best of three counts. A
    # statement that waits for the reader makes lines in each.
    for _ in range(3):
        begun = log.stat().st_size
        with Traffic(cluster.url) as traffic:
            traffic.goes_on()
            waits = behind_others(cluster, NEXT, TABLES)
            assert waits == Waits(columns={"job", "worker"}, indexes={"job", "run"})
            assert applied(cluster) == {FIRST, NEXT}
            traffic.goes_on()
            waits = behind_others(cluster, FIRST, (*TABLES, "remark"))
            assert waits == Waits(columns={"job", "worker", "remark"}, indexes={"job", "run"})
            assert applied(cluster) == {FIRST}
        stalls.append(waited(cluster, begun))
        print(
            f"{ROWS:,} rows: claimed {traffic.claimed}, enqueued {traffic.enqueued}, slowest"
            f" {traffic.slowest * 1000:.0f} ms, {len(stalls[-1])} waited for a lock over 200 ms"
        )
        if not stalls[-1]:
            break
    assert not stalls[-1], stalls
    # The measure measures: a plain ALTER TABLE behind the same reader is seen at once.
    begun = log.stat().st_size
    with Traffic(cluster.url):
        with open_transaction(cluster, "worker"):
            plain = threading.Thread(
                target=cluster.execute, args=("ALTER TABLE django_jobs_worker ADD plain integer",)
            )
            plain.start()
            until(lambda: waited(cluster, begun), what="the claims wait")
        plain.join(PATIENCE)
    cluster.execute("ALTER TABLE django_jobs_worker DROP plain")


def test_an_interrupted_migration_is_completed_by_running_it_again(cluster: Cluster) -> None:
    cluster.execute("ALTER TABLE django_jobs_job ADD region varchar(20) DEFAULT 'here' NOT NULL")
    with (
        open_transaction(cluster, "run", lock="ROW EXCLUSIVE"),
        psycopg.connect(cluster.url, autocommit=True) as hasty,
    ):
        hasty.execute("SET statement_timeout = '200ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            hasty.execute(
                "CREATE INDEX CONCURRENTLY django_jobs_run_lost"
                " ON django_jobs_run_default (finished_at)"
            )
    valid = (
        "SELECT indisvalid, pg_get_indexdef(indexrelid) LIKE '%%lost''::%%' FROM pg_index"
        " WHERE indexrelid = 'django_jobs_run_lost'::regclass"
    )
    assert cluster.fetch(valid) == [(False, False)]
    migrate(cluster, NEXT)
    assert cluster.fetch(valid) == [(True, True)]


def test_an_autovacuum_under_way_gives_way_to_a_migration(cluster: Cluster) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as own:
        own.execute(FILL_JOBS, {"count": 20_000, "status": "ready"})
    own_options = cluster.fetch(
        "SELECT array_to_string(reloptions, ',') FROM pg_class WHERE relname = 'django_jobs_job_live'"
    )[0][0]
    cluster.execute(  # it would take minutes
        "ALTER TABLE django_jobs_job_live SET (autovacuum_vacuum_cost_delay = 100,"
        " autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_scale_factor = 0,"
        " autovacuum_vacuum_threshold = 0)"
    )
    cluster.execute("UPDATE django_jobs_job SET replays = 1 WHERE id % 50 = 0")
    cluster.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
    cluster.execute("SELECT pg_reload_conf()")
    try:
        vacuums = "SELECT 1 FROM pg_stat_progress_vacuum AS vacuum JOIN pg_class ON oid = relid"
        vacuums += " WHERE relname = 'django_jobs_job_live'"
        until(lambda: cluster.fetch(vacuums), what="the vacuum")
        migrate(cluster, NEXT)
        assert "canceling autovacuum task" in (cluster.directory / "log").read_text()
    finally:
        cluster.execute("ALTER SYSTEM RESET autovacuum_naptime")
        cluster.execute("SELECT pg_reload_conf()")
        cluster.execute("ALTER TABLE django_jobs_job_live RESET (autovacuum_vacuum_cost_limit)")
        cluster.execute(f"ALTER TABLE django_jobs_job_live SET ({own_options})")


@pytest.mark.parametrize("table", ["job", "worker"])
def test_a_migration_that_gives_up_names_the_blocking_process(cluster: Cluster, table: str) -> None:
    with open_transaction(cluster, table) as reader:
        migrating = Migrating(cluster, NEXT, patience=0.5)
        assert migrating.end() != 0
        (*_, last) = migrating.said().splitlines()
        assert f"(process {reader.info.backend_pid}, for" in last
        assert "migrate again" in last
    migrate(cluster, NEXT)
