"""Known traffic: the metrics, ``jobstatus`` and plain SQL have the same numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from io import StringIO
from itertools import accumulate
from typing import Any

import pytest
from django.core.management import call_command
from prometheus_client import CollectorRegistry

from django_jobs.domain.admission import FairShares
from django_jobs.domain.histograms import BOUNDS
from django_jobs.domain.outcomes import Lost, Released, Snoozed, Succeeded, TimedOut
from django_jobs.domain.states import RunState
from django_jobs.lifecycle import progress
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.operations.limits import pause_resources, pause_tenants
from django_jobs.lifecycle.reaping import reap
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.workers import MOST_STARTED, Load, end, renew
from django_jobs.maintenance.tasks import sample_backlogs
from django_jobs.metrics import gauges
from django_jobs.metrics.exposition import JobsCollector
from django_jobs.metrics.overview import read_overview
from django_jobs.metrics.slo import take_objectives
from django_jobs.models import (
    BacklogSample,
    Job,
    Queue,
    Resource,
    RunWatermark,
    Schedule,
    StoredMetrics,
    Tenant,
    Worker,
)
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    declared,
    due_schedule,
    enqueue_and_claim,
    failure,
    fold_runs,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.metrics.totals import take_totals
from tests.moments import moment
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db

Value = Callable[..., float | None]


def scraped() -> Value:
    """What a scrape has now: ``value("jobs", queue="default", state="ready")``."""
    run_sql("TRUNCATE django_jobs_storedmetrics")
    registry = CollectorRegistry()
    registry.register(JobsCollector())
    return lambda name, **labels: registry.get_sample_value(f"django_jobs_{name}", labels)


def status() -> dict[str, Any]:
    """``jobstatus --json``."""
    out = StringIO()
    call_command("jobstatus", "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def counted(where: str) -> int:
    ((jobs,),) = run_sql(f"SELECT count(*) FROM django_jobs_job WHERE {where}")
    return int(jobs)


def test_jobs_by_queue_and_state() -> None:
    for _ in range(2):
        make_dead()
    add.using(queue="bulk", priority=5, tenant="acme").enqueue_many([{"first": 1}] * 4)
    noop.using(delay=60).enqueue_many([{}] * 3)
    noop.enqueue_many([{}] * 7)
    claim_ready(register_worker(), limit=5)
    value, queues = scraped(), {queue["name"]: queue for queue in status()["queues"]}
    for queue in ("default", "bulk", "emails"):
        for state in ("ready", "running", "scheduled", "dead"):
            in_sql = counted(f"queue = '{queue}' AND status = '{state}'")
            assert value("jobs", queue=queue, state=state) == queues[queue][state] == in_sql
    assert value("jobs", queue="default", state="running") == 5
    assert value("jobs_by_type", queue="default", job_type="app.noop", state="scheduled") == 3
    assert value("jobs_by_type", queue="bulk", job_type="app.add", state="blocked") == 4
    assert value("jobs_by_priority", queue="bulk", priority="high", state="blocked") == 4
    assert value("jobs_by_priority", queue="default", priority="normal", state="dead") == 2
    assert value("jobs_by_tenant", tenant="acme", state="blocked") == 4
    assert value("jobs_sampled_ratio") == 1
    assert value("jobs_estimated", queue="default", state="ready") is None
    assert value("recently_dead_jobs", queue="default") == 2


def test_queues() -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '90 s'")
    job_operations.pause(["bulk"])
    Queue.objects.filter(name="bulk").update(max_backlog=70)
    Queue.objects.filter(name="emails").update(slo_seconds=30, slo_target=0.9)
    register_worker(threads=3, async_slots=10)
    register_worker(threads=2, pools=[(("default", "bulk"), 2), (("emails",), 1)])
    register_worker(threads=8, lease=-5)
    with moment() as now:
        value, queues = scraped(), {queue["name"]: queue for queue in status()["queues"]}
        age = value("oldest_ready_age_seconds", queue="default")
    for seconds in (age, queues["default"]["oldest_ready_seconds"]):
        assert seconds in now.since(Job.objects.earliest("available_at").available_at)
    assert value("oldest_ready_age_seconds", queue="bulk") == 0
    assert value("queue_paused", queue="bulk") == queues["bulk"]["paused"] == 1
    assert value("queue_paused", queue="default") == 0
    assert value("queue_concurrency_limit", queue="emails") == 2
    assert value("queue_concurrency_limit", queue="bulk") is None
    assert value("queue_backlog_limit", queue="bulk") == queues["bulk"]["max_backlog"] == 70
    assert value("queue_slo_seconds", queue="emails") == 30
    assert value("queue_slo_target_ratio", queue="emails") == 0.9
    assert value("queue_slo_target_ratio", queue="bulk") is None
    assert value("queue_slots", queue="default") == 15
    assert value("queue_slots", queue="emails") == 1
    assert value("queue_slots", queue="strict") == 0


def test_workers() -> None:
    noop.enqueue_many([{}] * 4)
    busy = register_worker("a", threads=3, async_slots=10)
    register_worker("b", threads=8, lease=-5)
    claim_ready(busy, limit=4)
    run_sql("UPDATE django_jobs_worker SET code_version = 'v2' WHERE id = %s", [busy])
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = now() - interval '40 s' WHERE name = 'b'")
    started = [(pk, 1.5, None) for pk in Job.objects.values_list("pk", flat=True)[:3]]
    load = Load(90, started, runs=70, failed=6, listens=False)
    renew([busy], 30, claim_failures={busy: 5}, loads={busy: load})
    with moment() as now:
        value, workers = scraped(), status()["workers"]
        age = value("worker_heartbeat_age_seconds")
    assert value("worker_busy_slots", version="v2") == 3
    assert value("worker_busy_slots", version="") is None
    assert value("worker_claim_failures", version="v2") == 5
    assert value("worker_claim_failures", version="") == 0
    assert value("worker_runs", version="v2") == 70
    assert value("worker_failed_runs", version="v2") == 6
    assert value("worker_rss_bytes", version="v2") == 90 * 2**20
    assert value("worker_rss_bytes", version="") is None
    assert value("worker_listen_failures") == 1
    assert value("workers", version="v2", status="running") == 1
    assert value("workers", version="", status="expired") == 1
    assert value("worker_slots", version="v2", kind="thread") == workers[0]["threads"] == 3
    assert value("worker_slots", version="v2", kind="async") == 10
    assert value("worker_slots", version="", kind="thread") is None
    assert value("worker_jobs", version="v2") == workers[0]["claimed"] == 4
    for seconds in (age, max(worker["heartbeat_seconds"] for worker in workers)):
        assert seconds in now.since(Worker.objects.earliest("heartbeat_at").heartbeat_at)


def ended(reason: str = "", status: str = "stopped", **seconds: int) -> None:
    """A worker that ended a minute ago; of each column, how many seconds before that it was."""
    end(worker := register_worker(), status=status, reason=reason)
    times = "".join(f", {name} = now() - interval '{60 + n} s'" for name, n in seconds.items())
    run_sql(
        f"UPDATE django_jobs_worker SET stopped_at = now() - interval '60 s'{times} "
        f"WHERE id = {worker}"
    )


def test_why_workers_ended_and_how_long_they_drained() -> None:
    ended("drained by ada", drain_requested_at=30, draining_at=28)
    ended("drained by ada", drain_requested_at=90, draining_at=89)
    ended("recycled: it ran 5 jobs", draining_at=7)
    ended("SIGTERM", draining_at=12)
    ended("its process ended with SIGKILL", "lost")
    ended("its process ended with SIGSEGV", "lost")
    end(gone := register_worker(lease=-1))
    run_sql("UPDATE django_jobs_worker SET stopped_at = 'epoch' WHERE id = %s", [gone])
    register_worker(lease=-1)
    reap()
    value = scraped()
    drained = {"drained": 90, "recycled": 7, "stopped": 12}
    counts = {"drained": 2, "recycled": 1, "stopped": 1, "killed": 1, "crashed": 1, "lease_over": 1}
    for reason, count in counts.items():
        labels = {"version": "", "reason": reason}
        assert value("workers_ended", **labels) == count
        assert value("worker_drain_seconds", **labels) == drained.get(reason)


def test_lost_and_repeated_attempts_by_delivery() -> None:
    deliveries = ("at_least_once", "at_most_once", "exactly_once")
    with ExitStack() as stack:
        for delivery in deliveries:
            job_type = stack.enter_context(
                declared(noop.handler, name=f"app.metric_{delivery}", delivery=delivery)
            )
            job_type.enqueue()
        for outcome in (Lost(reason="killed"), Succeeded()):
            for claimed in claim_ready(register_worker(), limit=9):
                settle_one(claimed, outcome)
        fold_runs()
        value = scraped()
        for delivery in deliveries:
            labels = {"queue": "default", "job_type": f"app.metric_{delivery}"}
            info = {"job_type": f"app.metric_{delivery}", "delivery": delivery}
            assert value("job_type_info", **info) == 1
            lost = value("at_most_once_lost_total", **labels)
            repeated = value("exactly_once_repeated_total", **labels)
            assert lost == (1 if delivery == "at_most_once" else None)
            assert repeated == (1 if delivery == "exactly_once" else None)


def test_slots_are_busy_by_the_last_heartbeat_or_if_it_lists_not_all_by_the_claims() -> None:
    noop.enqueue_many([{}] * 9)
    claim_ready(few := register_worker("a", threads=4), limit=3)
    claim_ready(many := register_worker("b", async_slots=500), limit=6)
    value = scraped()
    assert value("worker_busy_slots", version="") == 0
    started = [(number, 0.1, None) for number in range(MOST_STARTED)]
    renew([few, many], 30, loads={few: Load(9, started[:2]), many: Load(9, started)})
    assert scraped()("worker_busy_slots", version="") == 2 + 6


def test_an_expired_worker_counts_neither_its_slots_nor_its_jobs() -> None:
    noop.enqueue_many([{}] * 5)
    claim_ready(register_worker("a", threads=4), limit=2)
    claim_ready(crashed := register_worker("b", threads=4), limit=3)
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() WHERE id = %s", [crashed])
    value = scraped()
    assert value("worker_slots", version="", kind="thread") == 4
    assert value("worker_jobs", version="") == 2


def test_jobs_that_no_worker_can_run() -> None:
    register_worker(job_types={"app.add": 1})
    noop.enqueue_many([{}] * 3)

    def add_more(a: int) -> None:
        """A handler whose payload has a new version."""

    with declared(add_more, name="app.add_more", version=2) as newer:
        register_worker(job_types={"app.add_more": 1})
        newer.enqueue(a=1)
    quarantines.quarantine("app.add", reason="why not")
    add.enqueue(1, 2)
    value, seen = scraped(), status()
    (unknown,), (unread,) = seen["unknown_job_types"], seen["unread_versions"]
    labels = {"job_type": "app.noop", "reason": "unknown_type"}
    assert value("unclaimable_jobs", **labels) == unknown["ready"] == 3
    labels = {"job_type": "app.add_more", "reason": "newer_version"}
    assert value("unclaimable_jobs", **labels) == unread["ready"] == 1
    assert value("quarantined_jobs", job_type="app.add") == seen["quarantines"][0]["blocked"]


def test_schedules() -> None:
    late = due_schedule(300, name="late")
    due_schedule(-60, name="soon")
    due_schedule(600, name="paused", paused_at="2020-01-01T00:00Z")
    due_schedule(600, name="off", enabled=False)
    due_schedule(600, name="wrong")
    due_schedule(-60, name="stale")
    due_schedule(-60, name="ended")
    run_sql("UPDATE django_jobs_schedule SET error = 'no such zone' WHERE name = 'wrong'")
    run_sql("UPDATE django_jobs_schedule SET stale = true WHERE name = 'stale'")
    run_sql("UPDATE django_jobs_schedule SET next_due_at = null WHERE name = 'ended'")
    register_worker()
    run_sql("UPDATE django_jobs_worker SET schedules_seen_at = now() - interval '50 s'")
    with moment() as now:
        value, schedules = scraped(), status()["schedules"]
        lag, looked = value("schedule_lag_seconds"), value("schedule_look_age_seconds")
    states = {"on": 2, "overdue": 1, "paused": 1, "error": 1, "disabled": 1, "ended": 1}
    assert {state: schedules[state] for state in states} == states
    assert {state: value("schedules", state=state) for state in states} == states
    assert Schedule.objects.count() == 7
    for seconds in (lag, schedules["overdue_seconds"]):
        assert seconds in now.since(late.next_due_at)
    for seconds in (looked, schedules["seen_seconds"]):
        assert seconds in now.since(Worker.objects.get().schedules_seen_at)


def test_resources_and_tenants() -> None:
    Resource.objects.create(name="stripe", max_concurrency=2, retry_budget=0.2, max_waiting=70)
    Tenant.objects.create(name="acme", weight=3, max_concurrency=9, max_waiting=80)
    refund_payment.using(tenant="acme").enqueue_many([{"payment_id": n} for n in range(5)])
    admit({"default": 10}, FairShares())
    Resource.objects.update(breaker_state="half_open", recent_starts=8.0, recent_retries=2.0)
    value, seen = scraped(), status()
    (stripe,) = (one for one in seen["resources"] if one["name"] == "stripe")
    (acme,) = seen["tenants"]
    assert value("resource_taken", resource="stripe") == stripe["taken"] == 2
    assert value("resource_waiting", resource="stripe") == stripe["waiting"] == 3
    assert value("resource_limit", resource="stripe") == stripe["limit"] == 2
    assert value("resource_waiting_limit", resource="stripe") == stripe["max_waiting"] == 70
    assert value("tenant_waiting_limit", tenant="acme") == acme["max_waiting"] == 80
    assert value("resource_paused", resource="stripe") == 0
    assert stripe["breaker"] == "half_open"
    for state, is_in in (("closed", 0), ("open", 0), ("half_open", 1)):
        assert value("resource_breaker", resource="stripe", state=state) == is_in
    assert value("resource_retry_budget_ratio", resource="stripe") == 0.2
    used = value("resource_retry_budget_used_ratio", resource="stripe")
    assert used is not None
    assert 0 < used <= 2 / 10  # it fades
    assert value("jobs_by_tenant", tenant="acme", state="ready") == acme["taken"] == 2
    assert value("jobs_by_tenant", tenant="acme", state="blocked") == acme["waiting"] == 3
    assert value("tenant_weight", tenant="acme") == acme["weight"] == 3
    assert value("tenant_limit", tenant="acme") == acme["limit"] == 9
    assert value("tenant_paused", tenant="acme") == 0


def test_what_a_resource_replied() -> None:
    Resource.objects.create(name="stripe")
    refund_payment.enqueue_many([{"payment_id": n} for n in range(3)])
    admit({"default": 10}, FairShares())
    now = time.monotonic()
    outcomes = (Succeeded(), failure(), TimedOut(seconds=7))
    claimed = claim_ready(register_worker(), limit=9)
    settle([Ending(job, out, now - 7, now) for job, out in zip(claimed, outcomes, strict=True)])
    run_sql("UPDATE django_jobs_run SET error_code = '429' WHERE outcome = 'failed'")
    run_sql("UPDATE django_jobs_run SET error_code = '504' WHERE outcome = 'timed_out'")
    fold_runs()
    value = scraped()
    for outcome in RunState:
        count = outcome in ("succeeded", "failed", "timed_out")
        assert value("resource_runs_total", resource="stripe", outcome=outcome) == count
    assert value("resource_throttled_total", resource="stripe") == 1
    assert value("resource_server_errors_total", resource="stripe") == 1
    assert value("resource_duration_seconds_count", resource="stripe") == 3
    assert round(value("resource_duration_seconds_sum", resource="stripe") or 0) == 21
    assert value("resource_duration_seconds_bucket", resource="stripe", le="5.0") == 0
    assert value("resource_duration_seconds_bucket", resource="stripe", le="10.0") == 3


def test_how_the_attempts_of_tenants_ended() -> None:
    Tenant.objects.create(name="acme")
    Queue.objects.filter(name="default").update(slo_seconds=60)
    jobs = noop.enqueue_many([{}] * 4)
    run_sql("UPDATE django_jobs_job SET tenant = 'acme', available_at = now() - interval '1 h'")
    run_sql("UPDATE django_jobs_job SET tenant = 'rare' WHERE id = %s", [jobs[0]])
    run_sql("UPDATE django_jobs_job SET available_at = now() WHERE id = %s", [jobs[3]])
    now, outcomes = time.monotonic(), (*[Succeeded()] * 2, failure(), TimedOut(seconds=7))
    claimed = claim_ready(register_worker(), limit=9)
    settle([Ending(job, out, now - 7, now) for job, out in zip(claimed, outcomes, strict=True)])
    fold_runs()
    value = scraped()
    for outcome in RunState:
        count = outcome in ("succeeded", "failed", "timed_out")
        assert value("tenant_runs_total", tenant="acme", outcome=outcome) == count
    assert value("tenant_duration_seconds_count", tenant="acme") == 3
    assert round(value("tenant_duration_seconds_sum", tenant="acme") or 0) == 21
    assert value("tenant_waiting_seconds_bucket", tenant="acme", le="1800.0") == 1
    assert value("tenant_waiting_seconds_count", tenant="acme") == 3
    assert value("tenant_slo_runs_total", tenant="acme") == 3
    assert value("tenant_slo_met_runs_total", tenant="acme") == 1
    assert value("tenant_runs_total", tenant="rare", outcome="succeeded") is None


def test_what_is_paused() -> None:
    for name in ("stripe", "other"):
        Resource.objects.create(name=name)
        Tenant.objects.create(name=name)
    pause_resources(["stripe"])
    pause_tenants(["stripe"])
    value, seen = scraped(), status()
    for kind in ("resource", "tenant"):
        paused = [one["name"] for one in seen[f"{kind}s"] if one["state"] == "paused"]
        assert paused == ["stripe"]
        for name in ("stripe", "other"):
            assert value(f"{kind}_paused", **{kind: name}) == (name in paused)


def test_runs() -> None:
    worker = register_worker()
    noop.enqueue_many([{}] * 4)
    first, second, third, fourth = claim_ready(worker)
    settle_one(first, Succeeded())
    settle_one(second, failure())
    settle_one(third, Lost(reason="SIGKILL"))
    settle_one(fourth, Released(reason="drain"))
    run_sql(
        "UPDATE django_jobs_run SET available_at = finished_at - interval '10 s',"
        " claimed_at = finished_at - interval '4 s', started_at = finished_at - interval '3 s'"
    )
    run_sql("UPDATE django_jobs_run SET started_at = NULL WHERE outcome = 'released'")
    fold_runs()
    value, of = scraped(), {"queue": "default", "job_type": "app.noop"}
    by_outcome = dict(run_sql("SELECT outcome, count(*) FROM django_jobs_run GROUP BY 1"))
    assert by_outcome == dict.fromkeys(("succeeded", "failed", "lost", "released"), 1)
    for outcome, runs in by_outcome.items():
        assert value("runs_total", outcome=outcome, **of) == runs
    for outcome in set(RunState) - set(by_outcome):
        assert value("runs_total", outcome=outcome, **of) == 0
    assert value("retries_total", **of) == value("jobs_dead_total", **of) == 0
    (totals,) = take_totals().types
    for name, histogram, count, seconds in (
        ("run_waiting", totals.waiting, 4, 6),
        ("run_start_lag", totals.start_lag, 3, 1),
        ("run_duration", totals.runtime, 3, 3),
    ):
        assert value(f"{name}_seconds_count", **of) == histogram.count == count
        assert value(f"{name}_seconds_sum", **of) == histogram.seconds == count * seconds
        for bound, below in zip((*BOUNDS, "+Inf"), accumulate(histogram.counts), strict=True):
            assert value(f"{name}_seconds_bucket", le=str(bound), **of) == below
            assert below == (count if float(bound) >= seconds else 0)
    with moment() as now:
        age = value("totals_age_seconds")
    assert age in now.since(RunWatermark.objects.get().reached_at)
    run_sql("DELETE FROM django_jobs_run")
    assert scraped()("runs_total", outcome="succeeded", **of) == 1


def test_retries_and_dead_jobs() -> None:
    worker = register_worker()
    dead, failed = make_dead(), make_dead()
    job_operations.replay([failed.pk], check=lambda job: None)
    for outcome in (failure(), failure(final=True)):
        (held,) = claim_ready(worker)
        settle_one(held, outcome)
        fold_runs()
        job_operations.run_now([failed.pk])
    value, of = scraped(), {"queue": "default", "job_type": "app.noop"}
    ((retries,),) = run_sql("SELECT count(*) FROM django_jobs_run WHERE attempt > 1")
    assert value("retries_total", **of) == retries == 2
    assert value("jobs_dead_total", **of) == counted("status = 'dead'") == 2
    assert dead.pk != failed.pk


def test_duplicates_that_were_prevented() -> None:
    held = enqueue_and_claim(noop)
    progress.store(held, "charge", "1")
    settle_one(held, Released(reason="drain"))
    (again,) = claim_ready(register_worker())
    for _ in range(2):
        progress.look_up(again, "charge")
    settle_one(again, Succeeded())
    fold_runs()
    ((prevented,),) = run_sql("SELECT sum(prevented) FROM django_jobs_receipt")
    labels = {"queue": "default", "job_type": "app.noop"}
    assert scraped()("duplicates_prevented_total", **labels) == prevented == 2


def test_objectives() -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60, slo_target=0.9)
    value = scraped()
    assert value("slo_runs_total", queue="default") == 0
    assert value("slo_met_runs_total", queue="default") == 0
    assert value("slo_runs_total", queue="bulk") is None
    noop.enqueue_many([{}] * 5)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 h' WHERE id % 2 = 0")
    for held in claim_ready(register_worker(), limit=3):
        settle_one(held, Succeeded(), started=time.monotonic())
    fold_runs()
    value, (objective,) = scraped(), take_objectives()
    late = counted("status = 'ready' AND available_at < now() - interval '60 s'")
    assert value("slo_late_jobs", queue="default") == objective.late == late
    assert value("slo_runs_total", queue="default") == objective.hour.runs - late == 3
    in_time = counted("status = 'succeeded' AND available_at > now() - interval '60 s'")
    assert value("slo_met_runs_total", queue="default") == objective.hour.met == in_time
    assert value("queue_slo_seconds", queue="default") == 60
    assert value("queue_slo_target_ratio", queue="default") == 0.9
    assert value("queue_slo_seconds", queue="bulk") is None
    assert value("queue_slo_target_ratio", queue="bulk") is None


def test_due_jobs_that_nothing_makes_ready_are_overdue_and_late() -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60)
    noop.using(delay=60).enqueue_many([{}] * 6)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '90 s' WHERE id % 2 = 0")
    noop.enqueue_many([{}] * 2)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '70 s' WHERE status='ready'"
    )
    with moment() as now:
        value, (objective,) = scraped(), take_objectives()
        (queue,) = (one for one in status()["queues"] if one["name"] == "default")
        overdue = value("overdue_scheduled_age_seconds", queue="default")
    for seconds in (overdue, queue["overdue_scheduled_seconds"]):
        assert seconds in now.since(Job.objects.earliest("available_at").available_at)
    assert value("overdue_scheduled_age_seconds", queue="bulk") == 0
    assert value("slo_late_jobs", queue="default") == objective.late == 5


def test_when_a_backlog_will_be_gone_is_foretold_as_of_its_last_sample() -> None:
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs,"
        " drain_seconds) SELECT queue, now() - make_interval(secs => ago), 5, 0, 0, drain FROM"
        " (VALUES ('default', 900, 9.0), ('default', 40, 600.0), ('bulk', 40, null),"
        " ('emails', 200, 9.0), ('strict', 40, 30.0)) AS sample (queue, ago, drain)"
    )
    with moment() as now:
        value = scraped()
        drain = value("queue_drain_seconds", queue="default")
    assert drain is not None
    sampled = BacklogSample.objects.filter(queue="default").latest("taken_at")
    assert 600 - drain in now.since(sampled.taken_at)
    assert value("queue_drain_seconds", queue="strict") == 0
    assert value("queue_drain_seconds", queue="bulk") is None
    assert value("queue_drain_seconds", queue="emails") is None


def test_the_samples_and_jobstatus_foretell_the_same() -> None:
    noop.enqueue_many([{}] * 100)
    fold_runs()
    sample_backlogs()
    run_sql("UPDATE django_jobs_backlogsample SET taken_at = taken_at - interval '100 s'")
    for held in claim_ready(register_worker(), limit=50):
        settle_one(held, Succeeded())
    fold_runs()
    sample_backlogs()
    (shown,) = (one for one in status()["forecast"]["queues"] if one["queue"] == "default")
    drain = scraped()("queue_drain_seconds", queue="default")
    assert drain == pytest.approx(shown["drain_seconds"], rel=0.2)


def test_late_jobs_beyond_the_first_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gauges.BOUNDS, "head", 20)
    Queue.objects.filter(name="default").update(slo_seconds=60)
    noop.enqueue_many([{}] * 50)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 h' WHERE id % 5 > 0")
    assert scraped()("slo_late_jobs", queue="default") == 40


def test_workflows_and_failures() -> None:
    start_graph({"a": "", "b": "a"})
    start_graph({"a": ""})
    (first, second) = claim_ready(register_worker())
    settle_one(first, failure("boom", final=True))
    settle_one(second, failure("boom"))
    fold_runs()
    value = scraped()
    ((status, ended),) = run_sql(
        "SELECT status, count(*) FROM django_jobs_workflowrun WHERE status <> 'running' GROUP BY 1"
    )
    assert value("workflow_runs") == 1
    assert value("workflow_runs_ended", status=status) == ended == 1
    ((fingerprint,),) = run_sql("SELECT DISTINCT fingerprint FROM django_jobs_run")
    assert value("recent_failures", error_type="ValueError", fingerprint=fingerprint) == 2


def test_the_errors_of_a_whole_hour_are_counted_however_many_runs_it_has() -> None:
    noop.enqueue_many([{}] * 5)
    for number, held in enumerate(claim_ready(register_worker()), start=1):
        settle_one(held, failure("boom", kind="KeyError" if number % 2 else "OSError"))
    run_sql("UPDATE django_jobs_run SET finished_at = finished_at - interval '50 min'")
    run_sql(
        "UPDATE django_jobs_run SET finished_at = finished_at - interval '20 min' WHERE id ="
        " (SELECT max(id) FROM django_jobs_run WHERE error_type = 'KeyError')"
    )
    noop.enqueue_many([{}] * 4_000)
    settle([Ending(held, Succeeded()) for held in claim_ready(register_worker(), limit=4_000)])
    fold_runs()
    value = scraped()
    errors = run_sql(
        "SELECT error_type, fingerprint, count(*) FROM django_jobs_run WHERE fingerprint <> ''"
        " AND finished_at > now() - interval '1 h' GROUP BY 1, 2"
    )
    assert sorted(runs for _, _, runs in errors) == [2, 2]
    for error_type, fingerprint, runs in errors:
        labels = {"error_type": error_type, "fingerprint": fingerprint}
        assert value("recent_failures", **labels) == runs


def test_a_snooze_and_a_release_are_no_failures_whatever_their_reason() -> None:
    noop.enqueue_many([{}] * 4)
    outcomes = (
        *(Snoozed(seconds=60, reason="the shop is closed"), Released(reason="a deploy")),
        *(failure(), Lost(reason="SIGKILL")),
    )
    for held, outcome in zip(claim_ready(register_worker()), outcomes, strict=True):
        settle_one(held, outcome)
    fold_runs()
    value = scraped()
    overview = {one["error_type"]: one["runs"] for one in read_overview([], [], [], [])["failures"]}
    errors = run_sql("SELECT outcome, error_type, fingerprint FROM django_jobs_run")
    assert len(errors) == 4
    for outcome, error_type, fingerprint in errors:
        runs = 1 if outcome in ("failed", "lost") else None
        assert value("recent_failures", error_type=error_type, fingerprint=fingerprint) == runs
        assert overview.get(error_type) == runs


def test_the_database() -> None:
    value = scraped()
    ((size,),) = run_sql("SELECT pg_total_relation_size('django_jobs_job_live')")
    assert value("table_size_bytes", table="job_live") == size
    assert value("table_dead_rows", table="job_live") is not None
    assert value("metrics_refresh_seconds") > 0  # type: ignore[operator]
    with moment() as now:
        age = value("metrics_age_seconds")
    assert age in now.since(StoredMetrics.objects.get().taken_at)
