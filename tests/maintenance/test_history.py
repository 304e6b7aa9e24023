"""The maintenance task that makes partitions ahead and drops those past their retention."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_jobs.domain.retention import Period, end_of, start_of
from django_jobs.lifecycle import dropping
from django_jobs.lifecycle.dropping import DropResult, drop
from django_jobs.lifecycle.history import JOBS, RUNS, TABLES, PartitionedTable, partitions
from django_jobs.maintenance.history import AGAIN_SECONDS, Partitions
from django_jobs.maintenance.retention import Retention
from django_jobs.models import Job, Queue, Run
from django_jobs.signals import worker_event
from tests.factories import enqueue_and_claim, failure, heard, in_threads, run_sql, settle_one
from tests.lifecycle.test_history import forget_all
from tests.lifecycle.test_pruning import age, finish
from tests.patience import PATIENCE

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
real = time.monotonic


def make(table: PartitionedTable, start: datetime, end: datetime) -> str:
    name = f"{table.prefix}{start:%Y%m%d}"
    run_sql(f"CREATE TABLE {name} (LIKE {table.default} INCLUDING ALL)")
    bounds = f"FROM ('{start}') TO ('{end}')"
    run_sql(f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES {bounds}")
    return name


def make_days(*ago: int) -> None:
    """Partitions of jobs and of runs, by the number of days ago."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for days in ago:
        start = midnight - days * DAY
        for table in TABLES:
            make(table, start, start + DAY)


def finished(days: int, queue: str = "default") -> int:
    """The id of a job that succeeded this number of days ago, and its run."""
    (id_,) = finish(1, queue)
    age(days, [id_])
    run_sql(
        "UPDATE django_jobs_run SET finished_at = finished_at - make_interval(days => %s)"
        " WHERE job_id = %s",
        [days, id_],
    )
    return id_


def old() -> tuple[int, int]:
    """How many partitions there are of days before this one."""
    now = datetime.now(UTC)
    jobs, runs = (sum(one.end <= now for one in partitions(table)) for table in (JOBS, RUNS))
    return jobs, runs


def test_whole_days_past_the_retention_are_dropped_one_by_one() -> None:
    make_days(10, 9, 8, 7)
    for days in 10, 9, 8, 7:
        finished(days)
    with heard(worker_event) as events:
        assert [Partitions(budget=60).run_once() for _ in range(4)] == [2, 2, 2, 0]
    assert old() == (1, 1)
    assert Job.objects.count() == Run.objects.count() == 1
    names = [one["fields"]["partition"] for one in events]
    assert len(names) == len(set(names)) == 6


@pytest.mark.django_db(transaction=True)
def test_a_partition_that_cannot_be_dropped_keeps_no_other_and_is_tried_in_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_days(10, 9, 8)
    oldest = partitions(RUNS)[0].name
    run_sql(f"CREATE VIEW reads_a_day AS SELECT id FROM {oldest}")
    task = Partitions(budget=60)
    try:
        with pytest.raises(DatabaseError, match="reads_a_day"):
            task.run_once()
        while task.run_once():
            pass
        assert old() == (0, 1)
        assert next(one.name for one in partitions(RUNS)) == oldest
    finally:
        run_sql("DROP VIEW reads_a_day")
    assert task.run_once() == 0
    monkeypatch.setattr(time, "monotonic", lambda: real() + AGAIN_SECONDS)
    assert task.run_once() == 1
    assert old() == (0, 0)


def test_runs_that_outlived_their_day_go_with_their_job() -> None:
    make_days(10, 9)
    (id_, dead) = finished(9), enqueue_and_claim()
    settle_one(dead, failure(final=True))
    run_sql(
        "UPDATE django_jobs_run SET finished_at = finished_at - interval '10 days'"
        " WHERE job_id = %s",
        [dead.id],
    )
    # As if it had failed once on the day before it succeeded.
    run_sql(
        "INSERT INTO django_jobs_run (job_id, attempt, outcome, claimed_at, available_at,"
        " finished_at, error_type, error_message, traceback, fingerprint)"
        " SELECT job_id, 0, 'failed', claimed_at, available_at, finished_at - interval '1 day',"
        " '', '', '', '' FROM django_jobs_run WHERE job_id = %s",
        [id_],
    )
    assert Partitions(budget=60).run_once() == 2
    assert set(Run.objects.values_list("job_id", flat=True)) == {id_, dead.id}
    assert Partitions(budget=60).run_once() == 2
    assert list(Run.objects.values_list("job_id", flat=True)) == [dead.id]


@pytest.mark.django_db(transaction=True)
def test_runs_stay_while_the_partition_of_their_jobs_is_in_use() -> None:
    make_days(8)
    finished(8)
    reading, done = threading.Event(), threading.Event()

    def read() -> None:
        with transaction.atomic():
            assert Job.objects.count() == 1
            reading.set()
            done.wait(PATIENCE)

    def keep() -> int:
        reading.wait(PATIENCE)
        try:
            return Partitions(budget=60).run_once()
        finally:
            done.set()

    assert in_threads(2, lambda number: (read, keep)[number]())[1] == 0
    assert Run.objects.count() == 1
    assert Partitions(budget=60).run_once() == 2


def test_rows_are_not_deleted_where_their_partition_will_be_dropped() -> None:
    make_days(8)
    finished(8)
    assert Retention(budget=60).run_once() == 0
    assert Partitions(budget=60).run_once() == 2
    assert not Job.objects.exists()


def test_a_queue_that_keeps_its_jobs_for_less_time_deletes_rows_and_the_day_stays() -> None:
    Queue.objects.filter(name="bulk").update(retention={"succeeded": "1d"})
    make_days(3)
    finished(3, "bulk")
    other = finished(3)
    assert Retention(budget=60).run_once() == 1
    assert Partitions(budget=60).run_once() == 0
    assert Job.objects.get().pk == other


def test_a_queue_that_keeps_its_jobs_for_ever_keeps_all_days() -> None:
    Queue.objects.filter(name="bulk").update(retention={"succeeded": None})
    make_days(100)
    kept = finished(100, "bulk")
    finished(100)
    assert Partitions(budget=60).run_once() == 0
    assert Retention(budget=60).run_once() == 1
    assert Job.objects.get().pk == kept


def test_jobs_kept_for_less_than_a_partition_lasts_are_deleted_in_time(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": "1h", "cancelled": "1h"}}
    finish(2)
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '2 h'")
    assert Retention(budget=60).run_once() == 2


def test_a_role_that_does_not_own_the_tables_deletes_rows_instead() -> None:
    make_days(8)
    finished(8)
    run_sql("CREATE ROLE not_the_owner")
    run_sql("GRANT pg_read_all_data, pg_write_all_data TO not_the_owner")
    run_sql("SET LOCAL ROLE not_the_owner")
    assert Partitions(budget=60).run_once() == 0
    assert Retention(budget=60).run_once() == 1
    run_sql("RESET ROLE")
    assert old() == (1, 1)


def test_runs_with_an_age_go_by_it_and_those_of_dead_jobs_stay(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": "30d", "cancelled": "30d", "runs": "2d"}}
    make_days(3)
    finished(3)
    dead = enqueue_and_claim()
    settle_one(dead, failure(final=True))
    run_sql("UPDATE django_jobs_run SET finished_at = now() - interval '3 days'")
    assert Partitions(budget=60).run_once() == 1
    assert list(Run.objects.values_list("job_id", flat=True)) == [dead.id]
    assert Job.objects.count() == 2


def test_runs_may_outlive_their_jobs(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": "1d", "cancelled": "1d", "runs": "30d"}}
    make_days(3)
    finished(3)
    late = finish(1)
    run_sql(
        "UPDATE django_jobs_job SET finished_at = now() - interval '200 d' WHERE id = ANY(%s)",
        [late],
    )
    assert Partitions(budget=60).run_once() == 1
    assert Retention(budget=60).run_once() == 1
    assert not Job.objects.exists()
    assert Run.objects.count() == 2


def test_runs_without_a_partition_are_deleted_by_their_age(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"runs": "30d"}}
    finish(3)
    run_sql("UPDATE django_jobs_run SET finished_at = now() - interval '31 days'")
    assert Retention(budget=60).run_once() == 3
    assert Job.objects.count() == 3


def test_runs_kept_for_a_job_that_ended_later_go_once_it_is_gone() -> None:
    make_days(12, 9)
    failed = enqueue_and_claim()
    settle_one(failed, failure())
    run_sql("UPDATE django_jobs_run SET finished_at = now() - interval '12 days'")
    run_sql("UPDATE django_jobs_job SET status = 'cancelled', finished_at = now() - interval '9 d'")
    assert Partitions(budget=60).run_once() == 2
    assert Retention(budget=60).run_once() == 0
    assert Run.objects.get().job_id == failed.id, "its job is there until the next drop"
    assert Partitions(budget=60).run_once() == 2
    assert not Job.objects.exists()
    assert not Run.objects.exists()


def dead_jobs(count: int, days: int) -> set[int]:
    """The ids of jobs whose run failed this number of days ago, and that are dead."""
    held = [enqueue_and_claim() for _ in range(count)]
    for one in held:
        settle_one(one, failure(final=True))
    ids = [one.id for one in held]
    run_sql(
        "UPDATE django_jobs_run SET finished_at = finished_at - make_interval(days => %s)"
        " WHERE job_id = ANY(%s)",
        [days, ids],
    )
    return set(ids)


def jobs_with_runs() -> set[int]:
    return set(Run.objects.values_list("job_id", flat=True))


def test_a_day_with_many_kept_runs_is_emptied_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    monkeypatch.setattr(dropping, "PAGE", 2)
    make_days(9)
    dead = dead_jobs(3, days=9)
    for _ in range(3):
        finished(9)
    run_sql("DELETE FROM django_jobs_job WHERE status = 'succeeded'")
    task = Partitions(budget=60)
    with CaptureQueriesContext(connection) as queries:
        drop_day_of_jobs, deleted = task.run_once(), task.run_once()
    assert (drop_day_of_jobs, deleted) == (4, 0)
    assert jobs_with_runs() == dead
    assert old() == (0, 1)
    detached = [one["sql"] for one in queries if "DETACH" in one["sql"]]
    assert [RUNS.name in statement for statement in detached] == [False]


def test_a_day_that_had_to_stay_is_dropped_once_it_keeps_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    make_days(9)
    kept, *others = sorted(dead_jobs(3, days=9))
    task = Partitions(budget=60)
    assert [task.run_once() for _ in range(2)] == [1, 0]
    run_sql("DELETE FROM django_jobs_job WHERE id = ANY(%s)", [others])
    assert task.run_once() == 0, "it is left alone for an hour"
    monkeypatch.setattr(time, "monotonic", lambda: real() + AGAIN_SECONDS)
    assert task.run_once() == 1
    assert jobs_with_runs() == {kept}
    assert old() == (0, 0)


def test_rows_that_take_long_to_copy_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be few, and have large tracebacks."""
    make_days(9)
    dead = dead_jobs(2, days=9)
    with monkeypatch.context() as patch:
        patch.setattr(dropping, "KEEP", f"{dropping.KEEP} AND pg_sleep(60) IS NOT NULL")
        assert [drop(one) for one in partitions(RUNS)[:1]] == [DropResult.KEEPS_MANY]
    assert jobs_with_runs() == dead
    assert run_sql("SHOW statement_timeout") == [("0",)]
    assert drop(partitions(RUNS)[0])
    assert jobs_with_runs() == dead
    assert run_sql("SHOW statement_timeout") == [("0",)]


def test_a_partition_that_another_session_dropped_is_gone() -> None:
    make_days(9)
    for table in JOBS, RUNS:
        (day, *_) = partitions(table)
        run_sql(f"DROP TABLE {day.name}")
        with transaction.atomic():
            assert drop(day) is DropResult.GONE
            transaction.set_rollback(True)


def test_partitions_of_weeks_and_months_are_made_and_dropped(settings: Settings) -> None:
    forget_all()
    now = datetime.now(UTC)
    settings.DJANGO_JOBS = {"HISTORY": {"partition": "week"}}
    Partitions(budget=60).run_once()
    weeks = partitions(JOBS)
    assert {one.end - one.start for one in weeks} == {7 * DAY}
    assert weeks[0].start == start_of(Period.WEEK, now)
    settings.DJANGO_JOBS = {"HISTORY": {"partition": "month"}}
    assert Partitions(budget=60).run_once() == 0, "what is there reaches a week ahead"
    last = weeks[-1]
    for table in TABLES:
        run_sql(f"DROP TABLE {table.prefix}{last.start:%Y%m%d}")
    assert Partitions(budget=60).run_once() == 2 * len(months := partitions(JOBS)[len(weeks) - 1 :])
    assert months[0].start == weeks[-2].end
    assert months[-1].end == end_of(Period.MONTH, months[-1].start)
    assert months[-1].end > now + 7 * DAY

    month = start_of(Period.MONTH, now - 60 * DAY)
    begin = end_of(Period.MONTH, month)
    # Of a month, of what is left of it until Monday, and of weeks up to the one of a week ago.
    spans = [(month, begin), (begin, end_of(Period.WEEK, begin))]
    while spans[-1][1] < start_of(Period.WEEK, now):
        spans.append((spans[-1][1], spans[-1][1] + 7 * DAY))
    names = [make(JOBS, *span) for span in spans]
    for span in spans:
        make(RUNS, *span)
    for start, _ in spans:
        finished((now - start).days)
    expired = [name for name, (_, end) in zip(names, spans, strict=True) if end <= now - 7 * DAY]
    assert 0 < len(expired) < len(spans)
    task = Partitions(budget=60)
    assert [task.run_once() for _ in expired] == [2] * len(expired)
    assert task.run_once() == 0
    left = names[len(expired) :]
    assert [one.name for one in partitions(JOBS)][: len(left)] == left
    assert Job.objects.count() == Run.objects.count() == len(left)


def test_a_partition_that_cannot_be_made_keeps_none_from_being_dropped() -> None:
    forget_all()
    make_days(10, 9)
    run_sql(f"CREATE TABLE {JOBS.prefix}{datetime.now(UTC):%Y%m%d} ()")
    task = Partitions(budget=60)
    for _ in range(4):
        with suppress(DatabaseError):
            task.run_once()
    assert old() == (0, 0)
