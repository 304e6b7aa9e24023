"""Finished jobs and runs are in partitions of days, which are made and dropped as a whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.retention import Period, start_of
from django_jobs.lifecycle import dropping
from django_jobs.lifecycle.dropping import DropResult, drop
from django_jobs.lifecycle.history import (
    JOBS,
    RUNS,
    TABLES,
    Partition,
    ends_of_newest,
    make_partitions,
    may_make_partitions,
    owns_tables,
    partitions,
)
from django_jobs.lifecycle.job_columns import LIVE_TABLE
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.progress import ProgressReport, report, store
from django_jobs.models import Job, Progress, Receipt, Run
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, failure, in_threads, run_sql, settle_one
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.django_db

WHERE = """
SELECT (SELECT tableoid::regclass::text FROM django_jobs_job WHERE id = %(id)s),
    (SELECT max(tableoid::regclass::text) FROM django_jobs_run WHERE job_id = %(id)s)
"""
OWNERS = "SELECT tableowner::text FROM pg_tables WHERE tablename ~ '^django_jobs_(job|run)_2'"


def today() -> str:
    return f"{datetime.now(UTC):%Y%m%d}"


def place_of(id_: int) -> tuple[str, str]:
    ((job, run),) = run_sql(WHERE, {"id": id_})
    return job, run


def forget_all() -> None:
    """As if none had been made."""
    for table in TABLES:
        for one in partitions(table):
            run_sql(f"DROP TABLE {one.name}")


@pytest.fixture
def yesterday() -> Iterator[tuple[Partition, Partition]]:
    """The partitions of jobs and runs of the day before."""
    start = start_of(Period.DAY, datetime.now(UTC)) - timedelta(days=1)
    made = []
    for table in TABLES:
        one = Partition(table, f"{table.prefix}{start:%Y%m%d}", start, start + timedelta(days=1))
        run_sql(f"CREATE TABLE {one.name} (LIKE {table.default} INCLUDING ALL)")
        run_sql(
            f"ALTER TABLE {table.name} ATTACH PARTITION {one.name}"
            f" FOR VALUES FROM ('{one.start}') TO ('{one.end}')"
        )
        made.append(one)
    yield made[0], made[1]
    for one in made:
        run_sql(f"DROP TABLE IF EXISTS {one.name}")


def backdate(*ids: int) -> None:
    """As if these jobs and their runs had ended a day before."""
    for table, column in ("django_jobs_job", "id"), ("django_jobs_run", "job_id"):
        run_sql(
            f"UPDATE {table} SET finished_at = finished_at - interval '1 day'"
            f" WHERE {column} = ANY(%s)",
            [list(ids)],
        )


def test_a_job_moves_to_its_day_when_it_succeeds_and_is_found_as_before() -> None:
    held = enqueue_and_claim()
    assert place_of(held.id)[0] == "django_jobs_job_live"
    settle_one(held, Succeeded(result='{"answer": 42}'))
    assert place_of(held.id) == (f"django_jobs_job_{today()}", f"django_jobs_run_{today()}")
    job = Job.objects.get(pk=held.id)
    assert (job.status, job.result) == ("succeeded", {"answer": 42})
    assert [run.job for run in Run.objects.select_related("job")] == [job]


def test_a_cancelled_job_moves_and_a_dead_one_stays_and_is_replayed() -> None:
    job = noop.enqueue()
    job_operations.cancel([job.pk])
    assert place_of(job.pk)[0] == f"django_jobs_job_{today()}"
    held = enqueue_and_claim()
    settle_one(held, failure(final=True))
    assert place_of(held.id) == ("django_jobs_job_live", f"django_jobs_run_{today()}")
    job_operations.replay([held.id], check=lambda job: None)
    assert Job.objects.get(pk=held.id).status == "ready"


def test_migrate_has_made_a_week_and_nothing_is_left_to_make() -> None:
    for table in TABLES:
        found = partitions(table)
        assert found[0].start <= datetime.now(UTC) < found[0].end
        assert found[-1].end > datetime.now(UTC) + timedelta(days=7)
    assert make_partitions(Period.DAY) == 0


@pytest.mark.django_db(transaction=True)
def test_partitions_are_found_whatever_the_server_does_with_backslashes() -> None:
    known = [partitions(table) for table in TABLES]
    run_sql("SET standard_conforming_strings = off")
    try:
        assert [partitions(table) for table in TABLES] == known
        assert all(known)
        assert make_partitions(Period.DAY) == 0
        forget_all()
        assert make_partitions(Period.DAY) == 16
    finally:
        run_sql("RESET standard_conforming_strings")


@pytest.mark.django_db(transaction=True)
def test_of_many_that_make_partitions_at_once_each_is_made_once() -> None:
    forget_all()
    assert sum(in_threads(6, lambda _: make_partitions(Period.DAY))) in range(2, 17)
    make_partitions(Period.DAY)
    assert [len(partitions(table)) for table in TABLES] == [8, 8]


@pytest.mark.django_db(transaction=True)
def test_a_write_that_finds_no_partition_is_stored_and_its_day_begins_tomorrow() -> None:
    forget_all()
    held = enqueue_and_claim()
    settle_one(held, Succeeded())
    assert place_of(held.id) == ("django_jobs_job_history_default", "django_jobs_run_default")
    assert make_partitions(Period.DAY) == 14
    tomorrow = start_of(Period.DAY, datetime.now(UTC)) + timedelta(days=1)
    assert [partitions(table)[0].start for table in TABLES] == [tomorrow, tomorrow]
    run_sql("DELETE FROM django_jobs_job")
    run_sql("DELETE FROM django_jobs_run")
    assert make_partitions(Period.DAY) == 2


@pytest.mark.parametrize("period", Period)
@pytest.mark.parametrize("ahead", [3, 200])
def test_a_row_of_a_day_ahead_stops_the_partition_of_no_other_day(
    period: Period, ahead: int
) -> None:
    forget_all()
    settle_one(enqueue_and_claim(), Succeeded())
    far = "date_trunc('day', now(), 'UTC') + make_interval(days => %s)"
    for table in TABLES:
        run_sql(f"UPDATE {table.default} SET finished_at = {far}", [ahead])
    make_partitions(period)
    today = start_of(Period.DAY, datetime.now(UTC))
    for table in TABLES:
        there = partitions(table)
        for number in range(8):
            day = today + timedelta(days=number)
            assert any(one.start <= day < one.end for one in there) == (number != ahead)
    assert make_partitions(period) == 0


def test_a_new_partition_has_the_indexes_and_constraints_of_the_default_one() -> None:
    shape = (
        "SELECT (SELECT count(*) FROM pg_index WHERE indrelid = oid),"
        " (SELECT count(*) FROM pg_constraint WHERE conrelid = oid)"
        " FROM pg_class WHERE relname = %s"
    )
    for table in TABLES:
        (one, *_) = partitions(table)
        assert run_sql(shape, [one.name]) == run_sql(shape, [table.default])


def test_a_dropped_day_takes_its_jobs_with_progress_and_receipts(
    yesterday: tuple[Partition, Partition],
) -> None:
    old, young = enqueue_and_claim(), enqueue_and_claim()
    for one in old, young:
        report([ProgressReport(job=one, fraction=0.5)])
        store(one, "charge", "1")
        settle_one(one, Succeeded())
    backdate(old.id)
    assert all(drop(one) for one in yesterday)
    assert list(Job.objects.values_list("pk", flat=True)) == [young.id]
    assert list(Run.objects.values_list("job_id", flat=True)) == [young.id]
    assert list(Progress.objects.values_list("pk", flat=True)) == [young.id]
    assert list(Receipt.objects.values_list("job_id", flat=True)) == [young.id]


def test_runs_of_jobs_that_are_still_there_outlive_their_day(
    yesterday: tuple[Partition, Partition],
) -> None:
    dead, retried, gone = (enqueue_and_claim() for _ in range(3))
    settle_one(dead, failure(final=True))
    settle_one(retried, failure())
    settle_one(gone, Succeeded())
    backdate(dead.id, retried.id, gone.id)
    assert drop(yesterday[1])
    assert set(Run.objects.values_list("job_id", flat=True)) == {dead.id, retried.id}
    assert place_of(dead.id)[1] == "django_jobs_run_default"


@pytest.mark.django_db(transaction=True)
def test_a_run_that_arrives_while_its_partition_is_dropped_is_kept(
    yesterday: tuple[Partition, Partition],
) -> None:
    retried = enqueue_and_claim()
    settle_one(retried, failure())
    written = threading.Event()
    waiting = """SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""

    def write() -> None:
        with transaction.atomic():
            run_sql("UPDATE django_jobs_run SET finished_at = finished_at - interval '1 day'")
            written.set()
            until(lambda: run_sql(waiting))

    def drop_it() -> None:
        written.wait(PATIENCE)
        until(lambda: drop(yesterday[1]))

    in_threads(2, lambda number: (write, drop_it)[number]())
    assert list(Run.objects.values_list("job_id", flat=True)) == [retried.id]


@pytest.mark.django_db(transaction=True)
def test_a_partition_in_use_is_not_dropped_and_holds_up_nobody(
    yesterday: tuple[Partition, Partition],
) -> None:
    reading, done = threading.Event(), threading.Event()

    def read(_: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"SELECT count(*) FROM {yesterday[0].name}")
            reading.set()
            done.wait(PATIENCE)
            cursor.execute("ROLLBACK")

    def try_to_drop(_: int) -> DropResult:
        reading.wait(PATIENCE)
        try:
            return drop(yesterday[0])
        finally:
            done.set()

    results = in_threads(2, lambda number: (read, try_to_drop)[number](number))
    assert results[1] is DropResult.IN_USE
    assert yesterday[0].name in {one.name for one in partitions(JOBS)}
    assert drop(yesterday[0])


def test_only_the_owner_of_the_tables_makes_and_drops_partitions() -> None:
    assert owns_tables()
    run_sql("SET LOCAL ROLE pg_read_all_data")
    assert not owns_tables()
    run_sql("RESET ROLE")


@pytest.mark.parametrize("owner", ["itself", "a group"])
def test_an_owner_without_create_on_the_schema_makes_none_and_drops_them(owner: str) -> None:
    run_sql("CREATE ROLE worker")
    name = "worker" if owner == "itself" else "jobs_owner"
    if owner == "a group":
        run_sql("CREATE ROLE jobs_owner; GRANT jobs_owner TO worker")
    run_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    names = (one.name for table in TABLES for one in (table, *partitions(table)))
    for each in [*names, *(table.default for table in TABLES)]:
        run_sql(f"ALTER TABLE {each} OWNER TO {name}")
    run_sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO worker")
    run_sql("SET LOCAL ROLE worker")
    first = [partitions(table)[0] for table in TABLES]
    assert owns_tables()
    assert not may_make_partitions()
    assert [drop(one) for one in first] == [DropResult.DROPPED] * 2
    assert make_partitions(Period.DAY) == 0
    call_command("migrate", verbosity=0)
    run_sql(f"RESET ROLE; GRANT CREATE ON SCHEMA public TO {name}; SET LOCAL ROLE worker")
    assert may_make_partitions()
    assert make_partitions(Period.DAY) == 2
    run_sql("RESET ROLE")


@pytest.mark.parametrize("maker", ["superuser", "member"])
def test_partitions_belong_to_the_owner_of_their_table_whoever_makes_them(maker: str) -> None:
    run_sql("CREATE ROLE jobs_owner; GRANT CREATE ON SCHEMA public TO jobs_owner")
    run_sql("CREATE ROLE member; GRANT jobs_owner TO member")
    forget_all()
    for table in TABLES:
        run_sql(f"ALTER TABLE {table.name} OWNER TO jobs_owner")
        run_sql(f"ALTER TABLE {table.default} OWNER TO jobs_owner")
    if maker == "member":
        run_sql("SET LOCAL ROLE member")
    assert make_partitions(Period.DAY) == 16
    run_sql("RESET ROLE")
    assert set(run_sql(OWNERS)) == {("jobs_owner",)}


def test_a_partition_that_was_made_by_hand_without_an_end_is_left_alone() -> None:
    run_sql(
        "CREATE TABLE by_hand PARTITION OF django_jobs_run"
        " FOR VALUES FROM (MINVALUE) TO ('2000-01-01 00:00+00')"
    )
    assert "by_hand" not in {one.name for one in partitions(RUNS)}
    assert make_partitions(Period.DAY) == 0


def test_the_newest_rows_of_each_table_end_at_the_next_one() -> None:
    held = [enqueue_and_claim() for _ in range(3)]
    for one in held:
        settle_one(one, Succeeded())
    backdate(held[2].id)
    live = enqueue_and_claim().id
    assert ends_of_newest([JOBS.name, LIVE_TABLE], 2) == [held[0].id, None]
    assert ends_of_newest([JOBS.name], 3) == [None]
    assert ends_of_newest([LIVE_TABLE], 0) == [live]


def test_kept_runs_are_found_in_windows_of_ids(
    yesterday: tuple[Partition, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition in which nothing failed is not read by one statement."""
    monkeypatch.setattr(dropping, "WINDOW", 4)
    monkeypatch.setattr(dropping, "PAGE", 2)
    monkeypatch.setattr(dropping, "NEWEST", 1)
    outcomes = ["dead", *["gone"] * 9, *["dead"] * 5, *["gone"] * 3]
    held = [enqueue_and_claim() for _ in outcomes]
    for one, outcome in zip(held, outcomes, strict=True):
        settle_one(one, Succeeded() if outcome == "gone" else failure(final=True))
    backdate(*(one.id for one in held))
    with CaptureQueriesContext(connection) as queries:
        assert all(drop(one) for one in yesterday)
    assert sum("outcome <> 'succeeded'\n" in one["sql"] for one in queries) > 4
    dead = {one.id for one, outcome in zip(held, outcomes, strict=True) if outcome == "dead"}
    assert set(Run.objects.values_list("job_id", flat=True)) == dead
