"""Each alert fires when its condition is there, and not before."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.db.models.functions import Now
from django.test import Client
from pytest_django import Settings

from django_jobs import Backoff
from django_jobs.domain.histograms import BUCKETS
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations.quarantines import quarantine
from django_jobs.lifecycle.reaping import reap
from django_jobs.lifecycle.workers import Load, renew
from django_jobs.metrics import gauges
from django_jobs.models import Job, Queue, Resource, Worker, WorkerStatus
from django_jobs.testing import run_jobs
from tests.app.gate_jobs import post_to_ledger
from tests.app.jobs import fail, kill_itself, noop
from tests.factories import (
    another_connection,
    declared,
    due_schedule,
    look,
    register_worker,
    run_sql,
)
from tests.test_docs import page, section
from tests.worker.processes import JobWorker, until, until_status

from .promtool import Phase, assert_alerts, needs_promtool
from .scraping import scrape, stored

pytestmark = [pytest.mark.django_db(transaction=True), needs_promtool]

OF_OBJECTIVES = re.compile("django_jobs_(slo_|queue_slo_|queue_paused|workers|metrics_age)")
QUEUES = ("default", "emails", "bulk", "strict")
QUIET = 20
"""Minutes without work before something happens."""


@pytest.fixture
def before() -> str:
    """A worker without work."""
    register_worker("worker", queues=QUEUES)
    # A test that takes half a minute on a busy machine is no worker that has fallen silent.
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = now() + interval '1 min'")
    return scrape()


def assert_fires(before: str, after: str, minutes: int, alert: str, **labels: str) -> None:
    """What was scraped ``before`` raises no alert. After so many minutes of ``after`` this one
    fires, and no other."""
    quiet = [Phase(before, QUIET), *([Phase(after, minutes - 1)] if minutes > 1 else [])]
    assert_alerts([*quiet, Phase(after, 1)], *({} for _ in quiet), {alert: labels})


def enqueue_old(queue: str = "default") -> Job:
    """A job that has been ready for ten minutes."""
    job = noop.using(queue=queue).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '600 s'")
    return job


def enqueue_and_succeed() -> None:
    """A run that is not counted yet."""
    noop.enqueue()
    run_jobs()


def test_a_fleet_without_work_raises_no_alert_for_longer_than_any_waits(before: str) -> None:
    assert_alerts([Phase(before, 90)], {})


@pytest.mark.urls("tests.monitoring.urls")
def test_metrics_are_missing_if_no_target_shows_any(before: str, client: Client) -> None:
    refused = client.get("/metrics/")
    assert refused.status_code == 403
    assert_fires(before, "", 6, "DjangoJobsMetricsMissing")


@pytest.mark.urls("tests.monitoring.urls")
def test_metrics_are_missing_if_the_database_fails(
    before: str, client: Client, settings: Settings
) -> None:
    settings.DEBUG = True
    run_sql("UPDATE django_jobs_storedmetrics SET taken_at = 'epoch'")
    run_sql("SET statement_timeout = 1")
    failed = client.get("/metrics/")
    run_sql("RESET statement_timeout")
    assert failed.status_code == 503
    assert failed.text == "No metrics: OperationalError of the jobs' database.\n"
    assert_fires(before, "", 6, "DjangoJobsMetricsMissing")
    missing, stale = (
        section(page("playbook.md"), f"## DjangoJobsMetrics{name}") for name in ("Missing", "Stale")
    )
    assert "503" in missing
    assert "outage of the database" in missing
    assert "outage of the database" not in stale
    assert "holds the row" in stale


def test_metrics_are_stale_if_another_session_holds_their_row(before: str) -> None:
    run_sql("UPDATE django_jobs_storedmetrics SET taken_at = now() - interval '2 minutes'")
    with another_connection() as other, other.cursor() as cursor:
        cursor.execute("BEGIN; SELECT FROM django_jobs_storedmetrics FOR UPDATE")
        assert_fires(before, stored(), 6, "DjangoJobsMetricsStale")


def test_totals_are_stale_if_a_transaction_that_wrote_runs_is_open(before: str) -> None:
    with another_connection() as other, other.cursor() as cursor:
        cursor.execute("BEGIN; DELETE FROM django_jobs_run WHERE id < 0")
        enqueue_and_succeed()
        run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() - interval '6 minutes'")
        assert_fires(before, scrape(), 6, "DjangoJobsTotalsStale")


def test_totals_are_not_stale_if_no_job_ran(before: str) -> None:
    enqueue_and_succeed()
    idle = scrape()
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() - interval '1 hour'")
    assert_alerts([Phase(before, 20), Phase(idle, 1), Phase(scrape(), 20)], {}, {}, {})


def test_totals_are_not_stale_if_no_worker_counts_them(before: str) -> None:
    enqueue_and_succeed()
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() - interval '1 hour'")
    run_sql("UPDATE django_jobs_storedmetrics SET taken_at = 'epoch'")
    workers.end(Worker.objects.get(name="worker").pk)
    assert_alerts([Phase(before, 20), Phase(stored(), 20)], {}, {"DjangoJobsNoWorker": {}})


def test_no_worker_is_running(before: str) -> None:
    workers.end(Worker.objects.get().pk)
    assert_fires(before, scrape(), 3, "DjangoJobsNoWorker")


def test_workers_that_drain_are_no_workers(before: str) -> None:
    run_sql("UPDATE django_jobs_worker SET status = 'draining'")
    assert_fires(before, scrape(), 3, "DjangoJobsNoWorker")


@pytest.mark.processes
def test_a_worker_was_killed_and_its_heartbeats_stop(
    before: str, start_worker: Callable[..., JobWorker]
) -> None:
    worker = start_worker()
    until(lambda: Worker.objects.count() == 2)
    worker.end()
    run_sql(
        "UPDATE django_jobs_worker SET heartbeat_at = now() - interval '25 s' WHERE pid <> 4711"
    )
    assert_fires(before, scrape(), 1, "DjangoJobsHeartbeatGap")


def test_a_worker_was_lost_between_two_scrapes(before: str) -> None:
    """Its gap exceeds 16 s for some ten seconds until it is found, and a scrape may miss them."""
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() + interval '1 h'")
    lost = register_worker("web-2", lease=-1)
    run_sql(
        "UPDATE django_jobs_worker SET heartbeat_at = now() - '31 s'::interval WHERE id = %s",
        [lost],
    )
    reap()
    assert Worker.objects.get(pk=lost).status == WorkerStatus.LOST
    assert_fires(before, scrape(), 1, "DjangoJobsHeartbeatGap")
    run_sql(
        "UPDATE django_jobs_worker SET stopped_at = now() - '6 min'::interval, "
        "heartbeat_at = now() - '7 min'::interval WHERE id = %s",
        [lost],
    )
    assert_alerts([Phase(before, QUIET), Phase(scrape(), 5)], {}, {})


def test_a_process_that_crashed_has_no_gap(before: str) -> None:
    """Its command finds it at once."""
    crashed = register_worker("web-2")
    workers.end(crashed, status=WorkerStatus.LOST)
    run_sql(
        "UPDATE django_jobs_worker SET heartbeat_at = stopped_at - '7 s'::interval WHERE id = %s",
        [crashed],
    )
    assert_alerts([Phase(before, QUIET), Phase(scrape(), 5)], {}, {})


def test_a_worker_receives_no_notifications(before: str) -> None:
    renew([Worker.objects.get().pk], 30, loads={Worker.objects.get().pk: Load(9, listens=False)})
    assert_fires(before, scrape(), 11, "DjangoJobsListenLost")


def test_a_job_waits_for_longer_than_it_may(before: str) -> None:
    enqueue_old()
    assert_fires(before, scrape(), 6, "DjangoJobsOldestReadyAge", queue="default")


def test_a_job_is_due_for_longer_than_it_may_and_nothing_makes_it_ready(before: str) -> None:
    noop.using(delay=60).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '600 s'")
    assert_fires(before, scrape(), 6, "DjangoJobsOldestReadyAge", queue="default")


def test_jobs_wait_in_a_queue_that_somebody_forgot_to_resume(before: str) -> None:
    enqueue_old()
    job_operations.pause(["default"])
    assert_fires(before, scrape(), 61, "DjangoJobsQueuePaused", queue="default")


def test_no_worker_serves_a_queue_with_jobs(before: str) -> None:
    run_sql("UPDATE django_jobs_worker SET queues = %s", ['["default"]'])
    noop.using(queue="bulk").enqueue()
    assert_fires(before, scrape(), 6, "DjangoJobsQueueUnserved", queue="bulk")


def test_no_worker_can_run_a_job(before: str) -> None:
    run_sql("UPDATE django_jobs_worker SET job_types = %s", ['{"app.add": 1}'])
    noop.enqueue()
    labels = {"job_type": "app.noop", "reason": "unknown_type"}
    assert_fires(before, scrape(), 11, "DjangoJobsUnclaimable", **labels)


def test_a_job_died(before: str) -> None:
    fail.using(max_attempts=1).enqueue()
    run_jobs()
    assert_fires(before, scrape(), 1, "DjangoJobsDeadGrowth", queue="default")


def test_a_job_type_is_quarantined(before: str) -> None:
    quarantine("app.noop")
    assert_fires(before, scrape(), 1, "DjangoJobsQuarantined", job_type="app.noop")


def test_a_schedule_is_late(before: str) -> None:
    due_schedule(120)
    assert_fires(before, scrape(), 3, "DjangoJobsScheduleLate")


def test_a_schedule_cannot_be_fired(before: str) -> None:
    due_schedule()
    run_sql("UPDATE django_jobs_schedule SET queue = 'nowhere'")
    look()
    assert_fires(before, scrape(), 1, "DjangoJobsScheduleError")


def test_the_breaker_of_a_resource_opened(before: str) -> None:
    Resource.objects.create(name="ledger", breaker_failures=2)
    for _ in range(4):
        post_to_ledger.enqueue("/nowhere")
    run_jobs()
    assert_fires(before, scrape(), 3, "DjangoJobsBreakerOpen", resource="ledger")


def test_a_breaker_that_is_half_open_alerts_while_jobs_want_the_resource(before: str) -> None:
    ledger = Resource.objects.create(
        name="ledger", breaker_failures=2, breaker_state="half_open", breaker_changed_at=Now()
    )
    assert_alerts([Phase(scrape(), 10)], {})
    post_to_ledger.enqueue("/nowhere")
    assert_fires(before, scrape(), 3, "DjangoJobsBreakerOpen", resource=ledger.name)


def test_the_retry_budget_of_a_resource_is_used_up(before: str) -> None:
    Resource.objects.create(name="ledger", retry_budget=0.0)
    for _ in range(12):
        post_to_ledger.using(max_attempts=9).enqueue("/nowhere")
    run_jobs()
    Job.objects.filter(status="scheduled").update(available_at=run_sql("SELECT now()")[0][0])
    run_jobs()
    after = scrape()
    failed = {
        "DjangoJobsFailureSpike": {"queue": "default", "job_type": post_to_ledger.name},
    }
    gone = {"DjangoJobsRetryBudgetGone": {"resource": "ledger"}}
    history = [Phase(before, QUIET), Phase(after, 5), Phase(after, 1)]
    assert_alerts(history, {}, failed, {**failed, **gone})


def refuse() -> None:
    raise ConnectionRefusedError


def test_most_attempts_of_a_job_type_fail(before: str) -> None:
    with declared(refuse, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue_many([{}] * 12)
        run_jobs()
    labels = {"queue": "default", "job_type": flaky.name}
    assert_fires(before, scrape(), 3, "DjangoJobsFailureSpike", **labels)


def test_the_first_failures_of_a_job_type_that_has_only_succeeded_are_a_spike(before: str) -> None:
    broken = False

    def break_down() -> None:
        if broken:
            raise ConnectionRefusedError

    with declared(break_down, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue()
        run_jobs()
        first = scrape()
        broken = True
        flaky.enqueue_many([{}] * 12)
        run_jobs()
    labels = {"queue": "default", "job_type": flaky.name}
    history = [Phase(before, 20), Phase(first, 20), Phase(scrape(), 4)]
    assert_alerts(history, {}, {}, {"DjangoJobsFailureSpike": labels})


def test_failures_before_prometheus_began_are_no_spike() -> None:
    with declared(refuse, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue_many([{}] * 12)
        run_jobs()
    register_worker("worker", queues=QUEUES)
    assert_alerts([Phase("", 4), Phase(scrape(), 5), Phase(stored(), 40)], {}, {}, {})


def test_failures_where_no_successes_are_kept_are_no_spike(before: str) -> None:
    Queue.objects.filter(name="default").update(retention={"succeeded": 0})
    with declared(refuse, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue_many([{}] * 12)
        run_jobs()
    after = scrape()
    assert 'django_jobs_queue_keeps_successes{queue="default"} 0.0' in after
    assert_alerts([Phase(before, 20), Phase(after, 4)], {}, {})


def test_few_failures_among_many_successes_are_no_spike(before: str) -> None:
    def half(number: int) -> None:
        if number % 3 == 0:
            raise ConnectionRefusedError

    with declared(half, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue_many([{"number": number} for number in range(3)])
        run_jobs()
        first = scrape()
        flaky.enqueue_many([{"number": number} for number in range(60)])
        run_jobs()
    assert_alerts([Phase(before, 20), Phase(first, 20), Phase(scrape(), 4)], {}, {}, {})


PAIRS = """
INSERT INTO django_jobs_runtotal (period, began_at, queue, job_type, outcome, runs,
    slo_runs, slo_met, waiting_buckets, waiting_seconds, start_lag_buckets, start_lag_seconds,
    runtime_buckets, runtime_seconds, gate_buckets, gate_seconds)
SELECT 0, 'epoch', 'default', 'app.old_' || n, outcome, 100 * n, 0, 0, zero, 0, zero, 0, zero, 0,
    zero, 0
FROM generate_series(1, 501) AS n, unnest(ARRAY['succeeded', 'failed', 'lost']) AS outcome,
    (SELECT array_fill(0, ARRAY[%s]) AS zero) AS zeros
"""


def test_a_job_type_that_becomes_one_of_the_busiest_has_not_failed_all_at_once(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gauges.BOUNDS, "series", 3)
    run_sql(PAIRS, [BUCKETS])
    first = scrape()
    run_sql("UPDATE django_jobs_runtotal SET runs = 999999 WHERE job_type = 'app.old_7'")
    later = scrape()
    assert "app.old_7" not in first
    assert "app.old_7" in later
    assert 'outcome="lost"' in later
    assert_alerts([Phase(before, 20), Phase(first, 20), Phase(later, 5)], {}, {}, {})


@pytest.mark.processes
def test_a_handler_kills_its_process_again_and_again(
    before: str, start_worker: Callable[..., JobWorker]
) -> None:
    start_worker()
    poison = kill_itself.enqueue()
    until_status(poison, "dead")
    died = {"DjangoJobsDeadGrowth": {"queue": "default"}}
    labels = {"queue": "default", "job_type": "app.kill_itself"}
    after = scrape()
    history = [Phase(before, 20), Phase(after, 2), Phase(after, 14)]
    assert_alerts(history, {}, {**died, "DjangoJobsCrashLoop": labels}, died)


def test_jobs_start_later_than_their_objective_allows(before: str) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60)
    noop.enqueue_many([{}] * 100)
    run_jobs()
    first = scrape()
    noop.enqueue_many([{}] * 60)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '120 s' WHERE id % 3 = 0")
    run_jobs()
    fast = {"DjangoJobsSloBurnFast": {"queue": "default"}}
    slow = {"DjangoJobsSloBurnSlow": {"queue": "default"}}
    late = scrape()
    history = [Phase(before, 10), Phase(first, 60), Phase(late, 4), Phase(late, 40)]
    assert_alerts(history, {}, {}, fast, slow)


def run_late(count: int, late: int) -> str:
    """So many runs more, of which these start two minutes late."""
    ids = noop.enqueue_many([{}] * count)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '120 s' WHERE id = ANY(%s)",
        [ids[:late]],
    )
    run_jobs()
    return of_objectives(scrape())


def of_objectives(scrape: str) -> str:
    """What the alerts for objectives need: promtool takes a minute for three days of the rest."""
    return "".join(f"{line}\n" for line in scrape.splitlines() if OF_OBJECTIVES.match(line))


def test_an_objective_that_burns_for_six_hours_pages(before: str) -> None:
    """8 % are late: too few for the alert of an hour, and too short for that of a day."""
    Queue.objects.filter(name="default").update(slo_seconds=60, slo_target=0.99)
    first = run_late(1, 0)
    good, burnt = run_late(275, 0), run_late(25, 2)
    fast = {"DjangoJobsSloBurnFast": {"queue": "default"}}
    history = [
        Phase(of_objectives(before), 20),
        Phase(first, 66 * 60, good),
        Phase(good, 6 * 60, burnt),
    ]
    assert_alerts(history, {}, {}, fast, every=15)


def test_an_objective_that_burns_for_three_days_is_a_ticket(before: str) -> None:
    """2 % are late: too few for the alert of a day."""
    Queue.objects.filter(name="default").update(slo_seconds=60, slo_target=0.99)
    first = run_late(1, 0)
    slow = {"DjangoJobsSloBurnSlow": {"queue": "default"}}
    history = [Phase(of_objectives(before), 20), Phase(first, 72 * 60, run_late(300, 6))]
    assert_alerts(history, {}, slow, every=15)


def outage(count: int) -> str:
    """A worker is there and claims nothing, and these jobs have been ready for two minutes."""
    noop.enqueue_many([{}] * count)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '120 s' WHERE status = 'ready'"
    )
    return scrape()


def test_an_objective_burns_during_an_outage(before: str) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60)
    noop.enqueue_many([{}] * 30)
    run_jobs()
    first = scrape()
    fast = {"DjangoJobsSloBurnFast": {"queue": "default"}}
    history = [Phase(before, 10), Phase(first, 30), Phase(outage(60), 4)]
    assert_alerts(history, {}, {}, fast)


def test_the_pause_of_a_queue_is_no_burn_of_its_objective(before: str) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60)
    first = scrape()
    job_operations.pause(["default"])
    assert_alerts([Phase(before, 10), Phase(first, 30), Phase(outage(60), 40)], {}, {}, {})


def test_few_late_jobs_do_not_burn_an_objective(before: str) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60)
    first = scrape()
    noop.enqueue_many([{}] * 10)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '120 s' WHERE id % 5 = 0")
    run_jobs()
    assert_alerts([Phase(before, 10), Phase(first, 60), Phase(scrape(), 40)], {}, {}, {})
