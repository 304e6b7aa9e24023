"""What a snapshot tells of schedules, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pytest_django import DjangoDbBlocker

from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.lifecycle.schedules import due as schedule_errors
from django_jobs.metrics import schedules
from django_jobs.metrics.schedules import SchedulesSnapshot
from django_jobs.metrics.snapshot import Snapshot, problem, take_snapshot
from django_jobs.models import Schedule, Worker
from tests.factories import explain, register_worker, run_sql
from tests.moments import moment

MANY = 20_000


@pytest.fixture
def _none(db: None) -> None:
    """Without those that the demo declares."""
    Schedule.objects.all().delete()


def make_schedule(name: str, due_in: float | None = 3600, **fields: object) -> Schedule:
    made = Schedule.objects.create(name=name, job_type="app.noop", every=3600, **fields)
    run_sql(
        "UPDATE django_jobs_schedule SET stale = false,"
        " next_due_at = now() + make_interval(secs => %s) WHERE id = %s",
        [due_in, made.pk],
    )
    return made


def schedules_snapshot() -> SchedulesSnapshot:
    return take_snapshot().schedules


@pytest.mark.usefixtures("_none")
def test_without_schedules_nothing_is_shown() -> None:
    assert schedules_snapshot() == SchedulesSnapshot()


@pytest.mark.usefixtures("_none")
def test_each_schedule_is_counted_once() -> None:
    for name in ("on", "also on"):
        make_schedule(name)
    make_schedule("off", enabled=False)
    schedule_operations.pause([make_schedule("paused").pk])
    schedule_operations.pause([make_schedule("paused and off", enabled=False).pk])
    schedule_errors.mark_error(make_schedule("broken").pk, "why")
    counted = schedules_snapshot()
    assert (counted.on, counted.paused, counted.error, counted.disabled) == (2, 1, 1, 2)


@pytest.mark.usefixtures("_none")
def test_the_most_overdue_schedule_is_named() -> None:
    make_schedule("later")
    assert (schedules_snapshot().overdue_seconds, schedules_snapshot().most_overdue) == (0.0, None)
    make_schedule("a little late", -5)
    very_late = make_schedule("very late", -90)
    schedule_operations.pause([make_schedule("paused", -1000).pk])
    make_schedule("ended", None)
    with moment() as now:
        seen = schedules_snapshot()
    very_late.refresh_from_db()
    assert seen.overdue_seconds in now.since(very_late.next_due_at)
    assert seen.most_overdue == "very late"


@pytest.mark.usefixtures("_none")
def test_the_last_look_of_any_living_worker_counts() -> None:
    first, second, ended = register_worker("a"), register_worker("b"), register_worker("c")
    assert schedules_snapshot().seen_seconds is None
    workers.renew([first], 30, looked_ago=50)
    workers.renew([second], 30, looked_ago=20)
    workers.renew([ended], 30, looked_ago=0)
    workers.end(ended)
    with moment() as now:
        seen = schedules_snapshot().seen_seconds
    assert seen in now.since(Worker.objects.get(pk=second).schedules_seen_at)


@pytest.mark.usefixtures("_none")
def test_unseen_time_counts_from_the_start_of_the_oldest_worker() -> None:
    assert schedules_snapshot().unseen_seconds is None
    longest, other, lost = (
        register_worker("a"),
        register_worker("b"),
        register_worker("c", lease=-1),
    )
    for worker, ago in ((longest, 200), (other, 20), (lost, 900)):
        run_sql(
            "UPDATE django_jobs_worker SET started_at = now() - make_interval(secs => %s)"
            " WHERE id = %s",
            [ago, worker],
        )
    with moment() as now:
        found = schedules_snapshot()
    assert found.unseen_seconds in now.since(Worker.objects.get(pk=longest).started_at)
    assert found.seen_seconds is None
    workers.renew([other], 30, looked_ago=50)
    with moment() as now:
        found = schedules_snapshot()
    ago = now.since(Worker.objects.get(pk=other).schedules_seen_at)
    assert found.unseen_seconds in ago
    assert found.seen_seconds in ago


@pytest.mark.usefixtures("_none")
def test_a_look_from_before_all_live_workers_started_does_not_count() -> None:
    lost = register_worker("lost")
    workers.renew([lost], 30, looked_ago=300)
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '270 s'")
    register_worker("new")
    make_schedule("on")
    with moment() as now:
        found = take_snapshot()
    seen_at = Worker.objects.get(pk=lost).schedules_seen_at
    assert found.schedules.seen_seconds in now.since(seen_at)
    assert problem(found) is None


@pytest.fixture(scope="module")
def _many(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Schedules that are on, most of them with a due time."""
    with django_db_blocker.unblock():
        run_sql(
            "INSERT INTO django_jobs_schedule (name, job_type, payload, queue, cron, timezone,"
            " enabled, jitter_seconds, dst, overlap, catch_up, declared, paused_reason, error,"
            " stale, created_at, every, next_due_at)"
            " SELECT 'many ' || n, 'app.noop', '{}', '', '', 'UTC', true, 0, 'once', 'skip',"
            " 'latest', false, '', '', false, now(), 3600,"
            " CASE WHEN n %% 10 > 0 THEN now() + make_interval(secs => n - 50) END"
            " FROM generate_series(1, %s) AS n",
            [MANY],
        )
        run_sql("ANALYZE django_jobs_schedule")
        try:
            yield
        finally:
            run_sql("DELETE FROM django_jobs_schedule WHERE name LIKE 'many %'")


@pytest.mark.django_db
@pytest.mark.usefixtures("_many")
def test_a_snapshot_reads_schedules_up_to_its_bound() -> None:
    plan = explain(schedules.LAG, {})
    due = [node for node in plan if node.get("Index Name") == "django_jobs_schedule_due"]
    assert len(due) == 2
    assert all(node["Actual Rows"] <= 1 for node in due)
    plan += explain(schedules.STATES, {"most": 1000})
    read = [node for node in plan if node.get("Relation Name") == "django_jobs_schedule"]
    assert max(float(node["Actual Rows"]) for node in read) <= 1000


# What is wrong

WELL = SchedulesSnapshot(on=2, overdue_seconds=0.0, seen_seconds=3.0, unseen_seconds=3.0)


@pytest.mark.django_db
def test_without_a_live_worker_there_is_a_problem() -> None:
    assert problem(take_snapshot()) == "no worker is alive"
    register_worker(lease=-1)
    assert problem(take_snapshot()) == "no worker is alive"
    register_worker()
    assert problem(replace(take_snapshot(), schedules=WELL)) is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "schedules, wrong",
    [
        (WELL, None),
        (SchedulesSnapshot(paused=3), None),
        (SchedulesSnapshot(on=1, unseen_seconds=120.0), "no worker looks at schedules"),
        (SchedulesSnapshot(on=1, unseen_seconds=60.0), None),
        (
            replace(WELL, seen_seconds=95.2, unseen_seconds=95.2),
            "no worker has looked at schedules for 95 s",
        ),
        (replace(WELL, overdue_seconds=59.0, most_overdue="x"), None),
        (replace(WELL, overdue_seconds=61.0, most_overdue="x"), "'x' is overdue by 61 s"),
    ],
)
def test_schedules_that_are_not_seen_or_not_fired_are_wrong(
    schedules: SchedulesSnapshot, wrong: str | None
) -> None:
    register_worker()
    found: Snapshot = replace(take_snapshot(), schedules=schedules)
    said = problem(found)
    assert said is None if wrong is None else wrong in str(said)
    assert problem(found, schedules=False) is None
    assert problem(found, max_lag=100) in (None, "no worker looks at schedules")
