"""One look at all queues and workers."""

from __future__ import annotations

from datetime import datetime

import pytest
from pytest_django import DjangoAssertNumQueries

from django_jobs import enqueue_many
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.management.status_text import render_status
from django_jobs.metrics import snapshot
from django_jobs.metrics.gauges import read_gauges
from django_jobs.metrics.snapshot import QueueSnapshot, problem, take_snapshot
from django_jobs.models import Job, Queue, Worker
from tests.app.jobs import noop
from tests.factories import claim_ready, make_dead, register_worker, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def queue_named(name: str) -> QueueSnapshot:
    return next(queue for queue in take_snapshot().queues if queue.name == name)


def test_a_queue_snapshot_counts_its_live_and_dead_jobs() -> None:
    make_dead()
    enqueue_many("app.noop", [{}] * 2, delay=100)
    enqueue_many("app.noop", [{}] * 5)
    claim_ready(register_worker(), limit=1)
    queue = queue_named("default")
    assert (queue.ready, queue.scheduled, queue.running, queue.dead) == (4, 2, 1, 1)
    assert not queue.paused
    assert queue_named("bulk") == QueueSnapshot(name="bulk")


def test_the_age_is_that_of_the_oldest_waiting_job_of_any_priority() -> None:
    old = noop.enqueue()
    noop.using(priority=50).enqueue()
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '90 s' WHERE id = %s", [old.pk]
    )
    with moment() as now:
        age = queue_named("default").oldest_ready_seconds
    old.refresh_from_db()
    assert age in now.since(old.available_at)
    assert queue_named("bulk").oldest_ready_seconds is None


def earliest() -> datetime:
    return Job.objects.earliest("available_at").available_at


def test_a_due_job_that_nothing_makes_ready_has_an_age() -> None:
    noop.using(delay=60).enqueue_many([{}] * 2)
    assert queue_named("default").overdue_scheduled_seconds is None
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '90 s' WHERE id % 2 = 0")
    with moment() as now:
        queue = queue_named("default")
    assert (queue.scheduled, queue.oldest_ready_seconds) == (2, None)
    assert queue.overdue_scheduled_seconds in now.since(earliest())
    assert queue.oldest_due_seconds == queue.overdue_scheduled_seconds
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 h' WHERE status='ready'")
    with moment() as now:
        queue = queue_named("default")
    assert queue.oldest_due_seconds == queue.oldest_ready_seconds
    assert queue.oldest_due_seconds in now.since(earliest())


def test_a_paused_queue_and_a_limited_one_say_so() -> None:
    job_operations.pause(["bulk"], reason="the provider is down")
    assert queue_named("bulk").paused
    assert queue_named("bulk").paused_reason == "the provider is down"
    assert queue_named("emails").max_concurrency == 2


@pytest.mark.parametrize("limit, shown", [(2, (3, "full")), (30, (3, "ok")), (None, (3, None))])
def test_a_limit_below_or_above_the_highest_count_is_judged_by_all_ready_jobs(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, shown: tuple[int, str | None]
) -> None:
    monkeypatch.setattr(snapshot, "MOST_COUNTED", 3)
    noop.using(queue="bulk").enqueue_many([{}] * 7)
    Queue.objects.filter(name="bulk").update(max_backlog=limit)
    queue = queue_named("bulk")
    assert (queue.ready, queue.pressure) == shown
    Queue.objects.filter(name="bulk").update(max_backlog=7)
    assert queue_named("bulk").pressure == "full"


def test_a_deleted_queue_is_listed_while_it_has_jobs() -> None:
    noop.using(queue="bulk", delay=100).enqueue()
    Queue.objects.filter(name="bulk").delete()
    assert queue_named("bulk").scheduled == 1


def test_ready_jobs_of_a_deleted_queue_are_counted_and_cannot_be_claimed() -> None:
    register_worker()
    noop.using(queue="bulk").enqueue_many([{}] * 3)
    Queue.objects.filter(name="bulk").delete()
    seen = take_snapshot()
    assert queue_named("bulk").ready == seen.unclaimable == 3
    assert problem(seen) == "3 jobs in a queue without a row, which no worker claims: bulk"


def test_ages_of_infinite_times_are_numbers() -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = '-infinity'")
    assert queue_named("default").oldest_ready_seconds == 1e9
    run_sql("UPDATE django_jobs_job SET status = 'scheduled'")
    assert queue_named("default").overdue_scheduled_seconds == 1e9
    of_default = (row for row in read_gauges()["queues"] if row["queue"] == "default")
    assert next(of_default)["overdue_scheduled_seconds"] == 1e9


def test_live_workers_are_listed_with_heartbeat_and_claimed_jobs() -> None:
    enqueue_many("app.noop", [{}] * 3)
    busy, expired, ended = (
        register_worker("a"),
        register_worker("b", lease=-5),
        register_worker("c"),
    )
    claim_ready(busy)
    workers.end(ended)
    with moment() as now:
        first, second = take_snapshot().workers
    assert (first.id, first.name, first.claimed, first.status) == (busy, "a", 3, "running")
    assert first.queues == ("default",)
    row = Worker.objects.get(pk=busy)
    assert first.heartbeat_seconds in now.since(row.heartbeat_at)
    assert first.lease_seconds in now.until(row.lease_expires_at)
    assert second.id == expired
    assert second.lease_seconds < 0


def test_a_snapshot_is_fifteen_statements(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(15):
        take_snapshot()


def test_prefetched_jobs_are_told_from_those_that_run() -> None:
    enqueue_many("app.noop", [{}] * 9)
    enqueue_many("app.noop", [{}], queue="bulk")
    claim_ready(register_worker("one", threads=2), limit=5)
    claim_ready(register_worker("other", threads=1, async_slots=1), limit=4)
    claim_ready(register_worker("bulk", queues=["bulk"]), queue="bulk")
    found = {queue.name: queue for queue in take_snapshot().queues}
    assert (found["default"].running, found["default"].prefetched) == (9, 5)
    assert (found["bulk"].running, found["bulk"].prefetched) == (1, 0)
    lines = render_status(take_snapshot()).splitlines()
    (default,) = (line for line in lines if line.startswith("default") and " open " in line)
    assert default[lines[0].index("RUNNING") :].split()[0] == "4"
