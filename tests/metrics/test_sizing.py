"""How many threads the queues need, from real rows."""

from __future__ import annotations

import re

import pytest

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.metrics.forecast import take_sizing
from django_jobs.models import Queue, Run
from tests.factories import claim_ready, failure, register_worker, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def run_jobs(
    count: int,
    *,
    seconds: float,
    queue: str = "default",
    ended_ago: float = 5.0,
    job_type: str = "app.noop",
) -> None:
    """So many jobs that took so long each and ended so long ago, half of them without success."""
    enqueue_many(job_type, [{}] * count, queue=queue)
    held = claim_ready(register_worker("past", lease=-1), queue, limit=count)
    endings = [
        Ending(job, Succeeded() if number % 2 else failure()) for number, job in enumerate(held)
    ]
    settle(endings)
    for table, ids in (("run", "job_id"), ("job", "id")):
        started = "started_at = now() - %(start)s * interval '1 s'," if table == "run" else ""
        run_sql(
            f"UPDATE django_jobs_{table} SET {started}"
            " finished_at = now() - %(end)s * interval '1 s'"
            f" WHERE {ids} = ANY(%(ids)s) AND finished_at IS NOT NULL",
            {
                "start": seconds + ended_ago,
                "end": ended_ago,
                "ids": [job.id for job in held],
            },  # type: ignore[arg-type]
        )


@pytest.fixture
def _older_runs() -> None:
    """Runs from before the last hour: the shop is not new."""
    run_jobs(2, seconds=1, ended_ago=4000)


@pytest.mark.usefixtures("_older_runs")
def test_a_queue_needs_rate_times_runtime_and_a_fifth_more() -> None:
    run_jobs(90, seconds=8)
    run_jobs(30, seconds=1, queue="bulk")
    run_jobs(10, seconds=38, queue="bulk")
    register_worker("web-1", threads=3, queues=["default", "bulk"])
    register_worker("web-2", threads=2, queues=["bulk"])
    sizing = take_sizing()
    assert sizing.seconds == 3600
    assert (sizing.runs, sizing.threads) == (130, 5)
    bulk, default = sizing.queues
    assert default.rate == pytest.approx(90 / 3600)
    assert default.mean_seconds == default.p95_seconds == pytest.approx(8)
    assert default.slots_needed == pytest.approx(90 / 3600 * 8 * 1.2)
    assert default.slots == 3
    assert bulk.mean_seconds == pytest.approx(10.25)
    assert bulk.p95_seconds == pytest.approx(38)
    assert bulk.slots == 5
    assert sizing.threads_needed == pytest.approx(default.slots_needed + bulk.slots_needed)
    assert sizing.problems == []


@pytest.mark.usefixtures("_older_runs")
def test_too_few_threads_are_named_in_a_sentence() -> None:
    run_jobs(90, seconds=100)
    assert take_sizing().problems == ["default needs 3 threads, and has none."]
    worker = register_worker("web-1", threads=2, queues=["default"])
    assert take_sizing().problems == ["default needs 3 threads, and has 2."]
    Queue.objects.filter(name="default").update(max_concurrency=1)
    assert take_sizing().problems == ["default needs 3 threads, but may run only 1 at a time."]
    Queue.objects.filter(name="default").update(max_concurrency=None)
    register_worker("web-2", threads=1, queues=["default"])
    assert take_sizing().problems == []
    workers.mark_draining([worker])
    assert take_sizing().queues[0].slots == 1


@pytest.mark.usefixtures("_older_runs")
def test_queues_that_share_threads_are_added_up() -> None:
    run_jobs(90, seconds=50)
    run_jobs(90, seconds=50, queue="bulk")
    register_worker("web-1", threads=2, queues=["default", "bulk"])
    assert take_sizing().problems == ["All queues together need 3 threads, and there are 2."]


@pytest.mark.usefixtures("_older_runs")
def test_of_a_worker_with_pools_the_threads_of_the_pool_count() -> None:
    run_jobs(90, seconds=50)
    run_jobs(90, seconds=1, queue="bulk")
    pools = [(["default"], 1), (["bulk", "emails"], 8)]
    register_worker("web-1", threads=9, queues=["default", "bulk", "emails"], pools=pools)
    bulk, default = take_sizing().queues
    assert (bulk.slots, default.slots) == (8, 1)
    assert take_sizing().problems == ["default needs 2 threads, and has 1."]
    assert take_sizing().threads == 9


@pytest.mark.usefixtures("_older_runs")
def test_async_runs_need_slots_and_no_threads() -> None:
    run_jobs(90, seconds=50)
    run_jobs(90, seconds=3990, job_type="app.noop_async")
    register_worker("web-1", threads=2, async_slots=100)
    plain, on_loop = take_sizing().queues
    assert (plain.on_loop, plain.slots, plain.runs) == (False, 2, 90)
    assert (on_loop.on_loop, on_loop.slots, on_loop.runs) == (True, 100, 90)
    assert on_loop.slots_needed == pytest.approx(119.7, rel=0.01)
    sizing = take_sizing()
    assert (sizing.threads, sizing.async_slots) == (2, 100)
    assert sizing.threads_needed == pytest.approx(plain.slots_needed)
    assert sizing.async_slots_needed == pytest.approx(on_loop.slots_needed)
    assert sizing.problems == ["default needs 120 async slots, and has 100."]
    Queue.objects.filter(name="default").update(max_concurrency=50)
    assert take_sizing().problems == [
        "default needs 2 threads and 120 async slots, but may run only 50 at a time."
    ]


@pytest.mark.usefixtures("_older_runs")
def test_pools_and_queues_share_the_slots_of_a_loop() -> None:
    run_jobs(90, seconds=2000, job_type="app.noop_async")
    run_jobs(90, seconds=2000, job_type="app.noop_async", queue="bulk")
    register_worker("web-1", threads=2, async_slots=100, queues=["default", "bulk"])
    (problem,) = take_sizing().problems
    assert re.fullmatch(r"All queues together need 12\d async slots, and there are 100\.", problem)
    pools = [(["default"], 1), (["bulk"], 3)]
    register_worker("web-2", threads=4, async_slots=2, queues=["default", "bulk"], pools=pools)
    bulk, default = take_sizing().queues
    assert (bulk.slots, default.slots) == (101, 101)  # at least one


def test_a_full_sample_covers_the_time_since_its_oldest_run() -> None:
    for ago in range(40, 0, -1):
        run_jobs(1, seconds=0.1, ended_ago=ago)
    with moment() as now:
        sizing = take_sizing(most_runs=20)
    assert sizing.runs == 20
    ((oldest,),) = run_sql(
        "SELECT min(started_at) FROM "
        "(SELECT started_at FROM django_jobs_run ORDER BY id DESC LIMIT 20) AS newest"
    )
    assert sizing.seconds in now.since(oldest)
    assert sizing.queues[0].rate == pytest.approx(20 / sizing.seconds)


def test_a_new_shop_is_measured_since_its_first_run() -> None:
    run_jobs(10, seconds=50, ended_ago=50)
    with moment() as now:
        (default,) = take_sizing().queues
    assert 10 / default.rate in now.since(Run.objects.earliest("started_at").started_at)


def test_without_runs_there_is_nothing_to_size() -> None:
    sizing = take_sizing()
    assert (sizing.queues, sizing.runs, sizing.problems) == ((), 0, [])
