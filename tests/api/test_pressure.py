"""A producer asks how full a queue is."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db.models.functions import Now
from pytest_django import DjangoAssertNumQueries

from django_jobs import (
    Pressure,
    ResourcePressure,
    UnknownQueue,
    UnknownResource,
    aqueue_pressure,
    aresource_pressure,
    queue_pressure,
    resource_pressure,
)
from django_jobs.api import pressure as api_pressure
from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.lifecycle.settling import Ending, give_back, settle
from django_jobs.models import Queue, Resource
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import noop
from tests.factories import claim_ready, failure, register_worker, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db

AGE_RUNS = "UPDATE django_jobs_run SET finished_at = now() - make_interval(secs => %s)"
AGE_JOBS = """
UPDATE django_jobs_job SET finished_at = now() - make_interval(secs => %s)
WHERE finished_at IS NOT NULL
"""


def fresh(queue: str = "default") -> Pressure:
    api_pressure.forget_recent()
    return queue_pressure(queue)


def run_jobs(count: int, seconds_ago: float, queue: str = "bulk", outcome: Any = None) -> None:
    """So many attempts that ended evenly spread over this time until now."""
    noop.using(queue=queue).enqueue_many([{}] * count)
    held = claim_ready(register_worker(), queue, limit=count)
    settle([Ending(job, outcome or Succeeded()) for job in held])
    for table in ("run", "job"):
        run_sql(
            f"UPDATE django_jobs_{table} AS row SET finished_at = now()"
            " - make_interval(secs => %s * (1 - place.number::float8 / %s))"
            f" FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS number"
            f"       FROM django_jobs_{table} WHERE id > (SELECT max(id) - %s FROM"
            f"       django_jobs_{table})) AS place"
            " WHERE row.id = place.id AND row.finished_at IS NOT NULL",
            [seconds_ago, count, count],
        )


def test_an_empty_queue_has_no_pressure() -> None:
    assert queue_pressure("default") == Pressure("ok", 0, None, 0.0)


def test_the_level_rises_to_high_and_full_and_counts_no_further() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    jobs = noop.using(queue="bulk")
    seen = []
    for _ in range(5):
        jobs.enqueue()
        pressure = fresh("bulk")
        seen.append((pressure.ready, pressure.level))
    assert seen == [(1, "ok"), (2, "ok"), (3, "ok"), (4, "high"), (5, "full")]
    Queue.objects.filter(name="bulk").update(max_backlog=3)
    assert fresh("bulk").ready == 3


def test_jobs_that_wait_for_their_time_or_run_are_not_counted() -> None:
    noop.using(delay=60).enqueue()
    noop.enqueue()
    claim_ready(register_worker())
    noop.enqueue()
    assert fresh().ready == 1


def test_the_oldest_ready_job_has_been_due_for_its_seconds() -> None:
    old = noop.enqueue()
    noop.using(priority=50).enqueue()
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '90 s' WHERE id = %s", [old.pk]
    )
    with moment() as now:
        age = fresh().oldest_seconds
    old.refresh_from_db()
    assert age in now.since(old.available_at)


def test_an_answer_is_kept_for_a_second(
    django_assert_num_queries: DjangoAssertNumQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    with django_assert_num_queries(1):
        first = queue_pressure("default")
    noop.enqueue()
    with django_assert_num_queries(0):
        assert queue_pressure("default") is first
        assert async_to_sync(aqueue_pressure)("default") is first
    monkeypatch.setattr(api_pressure, "CACHE_SECONDS", 0.0)
    with django_assert_num_queries(2):  # with the rates, which no empty queue needs
        assert queue_pressure("default").ready == 1
    with django_assert_num_queries(1):  # the rates are kept for longer
        assert queue_pressure("default").ready == 1


def test_async_code_gets_the_same_answer() -> None:
    noop.enqueue()
    assert async_to_sync(aqueue_pressure)("default").ready == 1


@pytest.mark.parametrize("name", ["nowhere", "", "a b", "a\0b", 7, None, noop, ["emails"]])
def test_an_unknown_queue_is_refused_with_the_names(name: Any) -> None:
    with pytest.raises(UnknownQueue, match=r"no queue is named .*known are: bulk, default, emails"):
        queue_pressure(name)
    with pytest.raises(UnknownQueue, match=r"'emials'; did you mean 'emails'\? known are: bulk"):
        queue_pressure("emials")


# The time to drain


def test_the_ready_jobs_drain_at_the_rate_of_the_last_minutes() -> None:
    run_jobs(41, 20)
    noop.using(queue="bulk").enqueue_many([{}] * 30)
    pressure = fresh("bulk")
    assert pressure.ready == 30
    assert pressure.drain_seconds == pytest.approx(15, rel=0.5)


def test_when_a_paused_queue_is_drained_is_not_known() -> None:
    run_jobs(41, 20)
    noop.using(queue="bulk").enqueue_many([{}] * 30)
    Queue.objects.filter(name="bulk").update(paused_at=Now())
    assert fresh("bulk").drain_seconds is None


def test_attempts_that_failed_or_were_snoozed_drain_too() -> None:
    run_jobs(20, 10, outcome=failure())
    run_jobs(20, 10, outcome=failure(final=True))
    run_jobs(20, 10, outcome=Snoozed(seconds=60))
    noop.using(queue="bulk").enqueue()
    assert fresh("bulk").drain_seconds == pytest.approx(1 / 6, rel=0.6)


def test_attempts_that_never_began_drain_nothing() -> None:
    noop.enqueue_many([{}] * 10)
    give_back([job.fence for job in claim_ready(register_worker())])
    assert fresh().drain_seconds is None


def test_runs_of_other_queues_and_of_an_hour_ago_do_not_count() -> None:
    run_jobs(20, 10, queue="default")
    noop.using(queue="bulk").enqueue()
    assert fresh("bulk").drain_seconds is None
    run_jobs(20, 10)
    run_sql(AGE_RUNS, [3_600])
    run_sql(AGE_JOBS, [3_600])
    noop.using(queue="bulk").enqueue()
    assert fresh("bulk").drain_seconds is None


def test_a_sample_of_many_runs_knows_the_rate_of_each_queue() -> None:
    """12,000 runs in 120 s, of which the last sixth is of one queue."""
    run_sql(
        "INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority,"
        " rank, available_at, max_attempts, max_crashes, finished_at, headers, created_at)"
        " SELECT CASE WHEN n > 10000 THEN 'bulk' ELSE 'default' END, 'app.noop', '{}', 1,"
        " 'succeeded', 0, 0, now(), 5, 3, now() - make_interval(secs => (12000 - n) / 100.0), '{}',"
        " now() FROM generate_series(1, 12000) AS n"
    )
    run_sql(
        "INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at,"
        " finished_at, error_type, error_message, traceback, fingerprint)"
        " SELECT id, 1, 'succeeded', now(), now(), finished_at, '', '', '', ''"
        " FROM django_jobs_job WHERE status = 'succeeded' ORDER BY finished_at"
    )
    noop.enqueue_many([{}] * 100)
    noop.using(queue="bulk").enqueue_many([{}] * 100)
    # Of the last 81 s at least, 61 were of the default queue and 20 of the other one.
    assert fresh().drain_seconds == pytest.approx(100 / 75, rel=0.3)
    assert fresh("bulk").drain_seconds == pytest.approx(100 / 24, rel=0.3)


def of_resource(**fields: Any) -> ResourcePressure:
    """The pressure of a resource that two jobs wait for, and one that is ready."""
    Resource.objects.bulk_create([Resource(name="ledger"), Resource(name="stripe", **fields)])
    refund_payment.enqueue_many([{"payment_id": number} for number in range(3)])
    run_sql(
        "UPDATE django_jobs_job SET status = 'ready', available_at = now() - interval '1 min'"
        " WHERE id = (SELECT max(id) FROM django_jobs_job)"
    )
    api_pressure.forget_recent()
    return resource_pressure("stripe")


def test_a_resource_without_limits_has_no_level_and_is_drained_at_an_unknown_time() -> None:
    found = of_resource()
    assert found.oldest_seconds is not None
    assert 60 <= found.oldest_seconds < 3_600
    assert found == ResourcePressure("ok", 1, found.oldest_seconds, None, 2, "closed", None)
    run_sql("DELETE FROM django_jobs_job")
    api_pressure.forget_recent()
    assert resource_pressure("stripe") == ResourcePressure("ok", 0, None, 0.0)


@pytest.mark.parametrize("most, level, gated", [(3, "ok", 2), (2, "full", 2), (1, "full", 1)])
def test_the_level_of_a_resource_is_that_of_what_waits(most: int, level: str, gated: int) -> None:
    of_resource()
    Resource.objects.filter(name="stripe").update(max_waiting=most)
    api_pressure.forget_recent()
    found = resource_pressure("stripe")
    assert (found.level, found.gated) == (level, gated)


@pytest.mark.parametrize(
    "fields, drain", [({}, 6.0), ({"breaker_state": "open"}, None), ({"paused_at": Now()}, None)]
)
def test_a_rate_drains_a_resource_unless_it_is_held(
    fields: dict[str, Any], drain: float | None
) -> None:
    found = of_resource(rate=5.0, rate_seconds=10.0, burst=7, **fields)
    assert (found.drain_seconds, found.tokens) == (drain, 7.0)
    assert found.breaker == fields.get("breaker_state", "closed")


def test_the_answer_on_a_resource_is_kept_and_costs_two_statements(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    of_resource()
    api_pressure.forget_recent()
    with django_assert_num_queries(2):
        found = resource_pressure("stripe")
        assert async_to_sync(aresource_pressure)("stripe") is found


@pytest.mark.parametrize("name", ["nowhere", "", "a b", "a\0b", 7, None, ["stripe"]])
def test_an_unknown_resource_is_refused_with_the_names(name: Any) -> None:
    Resource.objects.create(name="stripe")
    with pytest.raises(UnknownResource, match=r"no resource is named .*known are: stripe"):
        resource_pressure(name)
