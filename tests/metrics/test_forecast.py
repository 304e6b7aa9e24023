"""Forecasts from known traffic, and how far past ones were off."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db.models.functions import Now
from pytest_django import Settings

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import backlog_samples
from django_jobs.lifecycle.backlog_samples import PAST, SECONDS_KEPT
from django_jobs.lifecycle.operations.jobs import pause, resume
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.maintenance.tasks import sample_backlogs
from django_jobs.management.status_text import age
from django_jobs.metrics import forecast, snapshot
from django_jobs.metrics.forecast import QueueForecast, take_forecast
from django_jobs.metrics.snapshot import take_snapshot
from django_jobs.models import BacklogSample, Job, Queue
from tests.factories import claim_ready, explain, fold_runs, register_worker, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def pass_time(seconds: float) -> None:
    """All samples were taken, and all backlogs drained, so much earlier."""
    run_sql(
        "UPDATE django_jobs_backlogsample SET taken_at = taken_at - make_interval(secs => %(s)s),"
        " drained_at = drained_at - make_interval(secs => %(s)s)",
        {"s": seconds},  # type: ignore[arg-type]
    )


def run_ready(count: int, took: float = 0.0) -> None:
    held = claim_ready(register_worker(), limit=count)
    now = time.monotonic()
    settle([Ending(job, Succeeded(), started=now - took, finished=now) for job in held])
    fold_runs()


def sample(*, taken: float, drain: float, drained: float | None = None) -> None:
    """A forecast of so many seconds ago, and when its backlog was drained."""
    run_sql(
        "INSERT INTO django_jobs_backlogsample"
        " (queue, taken_at, ready, running, runs, drain_seconds, drained_at)"
        " SELECT 'default', now() - make_interval(secs => %s), 5, 0, 5, %s,"
        " now() - make_interval(secs => %s)",
        [taken, drain, drained],
    )


def of_default() -> QueueForecast:
    taken = take_snapshot()
    return next(one for one in taken.forecast.queues if one.queue == "default")


def test_a_backlog_is_drained_at_the_rates_of_the_last_minutes() -> None:
    enqueue_many("app.noop", [{}] * 100)
    sample_backlogs()
    pass_time(100)
    enqueue_many("app.noop", [{}] * 20)
    run_ready(60)
    found = of_default()
    assert found.ready == 60
    assert found.arrived_per_second == pytest.approx(0.2, rel=0.05)
    assert found.ended_per_second == pytest.approx(0.6, rel=0.05)
    assert found.drain_seconds == pytest.approx(150, rel=0.05)
    ((soon, late),) = run_sql(
        "SELECT %s::timestamptz > now() + interval '130 s',"
        " %s::timestamptz > now() + interval '170 s'",
        [found.drained_at, found.drained_at],
    )
    assert (soon, late) == (True, False)


def test_a_backlog_that_grows_has_no_end() -> None:
    enqueue_many("app.noop", [{}] * 10)
    sample_backlogs()
    pass_time(60)
    enqueue_many("app.noop", [{}] * 10)
    run_ready(5)
    found = of_default()
    assert found.arrived_per_second == pytest.approx(10 / 60, rel=0.05)
    assert (found.drain_seconds, found.drained_at) == (None, None)


def shown_of_default() -> list[str]:
    out = StringIO()
    call_command("jobstatus", stdout=out)
    (_, shown) = out.getvalue().split("ARRIVE/S")
    return next(line for line in shown.splitlines() if line.startswith("default")).split()


def test_a_paused_stretch_is_no_part_of_the_rates() -> None:
    enqueue_many("app.noop", [{}] * 100)
    sample_backlogs()
    pause(["default"])
    pass_time(200)
    assert (of_default().claimed_per_second, of_default().drain_seconds) == (None, None)
    resume(["default"])
    assert of_default().drain_seconds is None
    assert shown_of_default() == ["default", "-", "-", "-", "-", "-"]
    sample_backlogs()
    run_sql("UPDATE django_jobs_queue SET resumed_at = resumed_at - interval '70 s'")
    pass_time(60)
    run_ready(60)
    found = of_default()
    assert found.claimed_per_second == pytest.approx(1, rel=0.05)
    assert found.drain_seconds == pytest.approx(40, rel=0.05)


def test_half_a_minute_is_too_short_for_rates() -> None:
    enqueue_many("app.noop", [{}] * 100)
    sample_backlogs()
    pass_time(20)
    run_ready(60)
    assert of_default().drain_seconds is None
    pass_time(20)
    assert of_default().drain_seconds == pytest.approx(27, rel=0.1)


def test_a_backlog_that_nobody_claims_stands_still() -> None:
    enqueue_many("app.noop", [{}] * 40)
    fold_runs()
    sample_backlogs()
    pass_time(60)
    assert shown_of_default() == ["default", "0.0", "0.0", "0.0", "stands", "still", "-"]


def test_a_backlog_shrinks_by_claims_of_jobs_that_run_for_long() -> None:
    enqueue_many("app.noop", [{}] * 40)
    fold_runs()
    sample_backlogs()
    pass_time(60)
    claim_ready(register_worker(), limit=10)
    found = of_default()
    assert found.claimed_per_second == pytest.approx(10 / 60, rel=0.05)
    assert (found.arrived_per_second, found.ended_per_second) == (0, 0)
    assert found.drain_seconds == pytest.approx(180, rel=0.05)
    assert shown_of_default() == ["default", "0.0", "0.2", "0.0", "in", "3m", "-"]


@pytest.fixture
def _count_to_fifty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count for a person stops at 50 ready jobs instead of 100,000."""
    monkeypatch.setattr(backlog_samples, "MOST_COUNTED", 50)
    monkeypatch.setattr(snapshot, "MOST_COUNTED", 50)
    monkeypatch.setattr(forecast, "MOST_COUNTED", 50)


@pytest.mark.usefixtures("_count_to_fifty")
def test_a_backlog_that_is_not_counted_to_its_end_is_forecast_from_its_samples() -> None:
    enqueue_many("app.noop", [{}] * 200)
    sample_backlogs()
    pass_time(100)
    enqueue_many("app.noop", [{}] * 20)
    run_ready(60)
    sample_backlogs()
    pass_time(50)
    found = of_default()
    assert found.ready == 160
    assert found.arrived_per_second == pytest.approx(0.2, rel=0.05)
    assert found.claimed_per_second == pytest.approx(0.6, rel=0.05)
    # 400 seconds from the last sample on, which was taken 50 seconds ago.
    assert found.drain_seconds == pytest.approx(350, rel=0.05)
    assert shown_of_default()[4:6] == ["in", "6m"]
    ((foretold,),) = run_sql(
        "SELECT drain_seconds FROM django_jobs_backlogsample"
        " WHERE queue = 'default' ORDER BY taken_at DESC LIMIT 1"
    )
    assert foretold == pytest.approx(400, rel=0.05)


@pytest.mark.usefixtures("_count_to_fifty")
def test_a_backlog_that_shrinks_below_what_is_counted_keeps_its_rates() -> None:
    enqueue_many("app.noop", [{}] * 80)
    sample_backlogs()
    pass_time(100)
    run_ready(50)
    assert of_default().drain_seconds == pytest.approx(60, rel=0.05)


@pytest.mark.usefixtures("_count_to_fifty")
@pytest.mark.parametrize("first, last", [(60, 40), (290, 200)], ids=["too near", "too old"])
def test_two_samples_make_a_forecast_if_they_are_apart_and_one_is_fresh(
    first: float, last: float
) -> None:
    enqueue_many("app.noop", [{}] * 80)
    fold_runs()
    sample_backlogs()
    pass_time(60)
    assert (of_default().ready, of_default().ended_per_second) == (50, None)
    sample_backlogs()
    assert (of_default().ready, of_default().ended_per_second) == (80, 0)
    run_sql(
        "UPDATE django_jobs_backlogsample SET taken_at = now() - make_interval(secs =>"
        " CASE WHEN taken_at = now() THEN %s ELSE %s END)",
        [last, first],
    )
    assert (of_default().ready, of_default().ended_per_second) == (50, None)


@pytest.mark.usefixtures("_count_to_fifty")
def test_a_backlog_that_takes_too_long_to_count_has_a_sample_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_samples, "COUNTING_SECONDS", 0)
    enqueue_many("app.noop", [{}] * 80)
    enqueue_many("app.noop", [{}] * 7, queue="bulk")
    sample_backlogs()
    sampled = dict(BacklogSample.objects.values_list("queue", "ready"))
    assert (sampled["default"], sampled["bulk"]) == (None, 7)
    monkeypatch.undo()
    pass_time(60)
    assert of_default().ended_per_second is None


def test_a_count_that_takes_too_long_ends_and_leaves_the_limit_of_the_session() -> None:
    run_sql("SET LOCAL statement_timeout = '1h'")
    enqueue_many("app.noop", [{}] * 20_000)
    assert backlog_samples.count_all("default", 0.001) is None
    assert backlog_samples.count_all("default", 60) == 20_000
    assert run_sql("SHOW statement_timeout") == [("1h",)]


@pytest.mark.usefixtures("fresh_tables")
def test_a_sample_counts_the_live_jobs_alone_and_sorts_none() -> None:
    enqueue_many("app.noop", [{}] * 5_000)
    enqueue_many("app.noop", [{}] * 500, queue="bulk")
    run_sql("ANALYZE django_jobs_job_live")
    nodes = explain(backlog_samples.COUNT_ALL, {"queue": "bulk"})
    (scan,) = [node for node in nodes if "Relation Name" in node]
    assert (scan["Relation Name"], scan["Actual Rows"]) == ("django_jobs_job_live", 500)
    assert "Sort" not in {node["Node Type"] for node in nodes}


def test_nothing_is_foretold_while_runs_are_not_counted() -> None:
    enqueue_many("app.noop", [{}] * 40)
    run_ready(10)
    sample_backlogs()
    pass_time(120)
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() - interval '70 s'")
    assert of_default().ended_per_second == 0  # no run has ended since
    held = claim_ready(register_worker(), limit=5)
    settle([Ending(job, Succeeded(), started=1.0, finished=1.0) for job in held])
    assert of_default().ended_per_second is None
    assert shown_of_default() == ["default", "-", "-", "-", "-", "-"]
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() - interval '20 s'")
    assert of_default().ended_per_second == 0


def test_nothing_is_foretold_without_a_sample_of_the_last_minutes() -> None:
    enqueue_many("app.noop", [{}] * 10)
    assert of_default() == QueueForecast(queue="default", ready=10)
    sample_backlogs()
    pass_time(400)
    assert of_default().ended_per_second is None


def test_the_error_of_past_forecasts_is_how_far_they_were_off() -> None:
    enqueue_many("app.noop", [{}] * 100)
    sample_backlogs()
    pass_time(100)
    run_ready(20)
    assert sample_backlogs()
    foretold = BacklogSample.objects.filter(queue="default").latest("taken_at").drain_seconds
    assert foretold == pytest.approx(400, rel=0.05)
    pass_time(800)  # it took twice as long
    run_ready(80)
    sample_backlogs()
    found = of_default()
    assert found.forecasts == 1
    assert found.error_ratio == pytest.approx(0.5, rel=0.05)


def test_a_forecast_that_is_overdue_is_judged_by_now() -> None:
    sample(taken=1000, drain=400)
    sample(taken=1001, drain=1200)  # may still come true
    found = of_default()
    assert found.forecasts == 1
    assert found.error_ratio == pytest.approx(0.6, rel=0.01)


def test_forecasts_that_a_pause_delayed_are_not_judged() -> None:
    sample(taken=5000, drain=600, drained=4300)
    sample(taken=3000, drain=600, drained=500)
    sample(taken=2900, drain=600)
    Queue.objects.filter(name="default").update(resumed_at=Now() - timedelta(seconds=1000))
    assert of_default().forecasts == 1
    Queue.objects.filter(name="default").update(paused_at=Now(), resumed_at=None)
    assert of_default().forecasts == 2


def test_samples_are_taken_after_the_clock_was_set_back() -> None:
    sample(taken=-86_400, drain=600)
    assert sample_backlogs()
    ((future, past),) = run_sql(
        "SELECT count(*) FILTER (WHERE taken_at > now()),"
        " count(*) FILTER (WHERE taken_at <= now() AND queue = 'default')"
        " FROM django_jobs_backlogsample"
    )
    assert (future, past) == (0, 1)


def test_nothing_is_foretold_where_successes_leave_no_run(settings: Settings) -> None:
    enqueue_many("app.noop", [{}] * 40)
    fold_runs()
    sample_backlogs()
    pass_time(60)
    for kept, is_known in (("0s", False), (0, False), ("1d", True), (5.5, True), ("what", True)):
        Queue.objects.filter(name="default").update(retention={"succeeded": kept})
        assert (of_default().claimed_per_second is not None) == is_known
    Queue.objects.filter(name="default").update(retention=None)
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "RETENTION": {"succeeded": 0}}
    assert of_default().claimed_per_second is None
    Queue.objects.filter(name="default").update(retention={"succeeded": None})  # for ever
    assert of_default().claimed_per_second is not None
    Queue.objects.filter(name="default").update(retention={"dead": None})
    assert of_default().claimed_per_second is None
    assert shown_of_default() == ["default", "-", "-", "-", "-", "-"]


def test_short_forecasts_are_not_judged_by_the_time_between_samples() -> None:
    for number in range(50):
        sample(taken=1000 + number, drain=0.5, drained=940 + number)
    assert (of_default().forecasts, of_default().error_ratio) == (0, None)
    sample(taken=2000, drain=600, drained=1400)
    assert of_default().error_ratio == pytest.approx(0, abs=0.01)


def test_one_worker_of_the_fleet_samples_once_a_minute() -> None:
    queues = Queue.objects.count()
    assert sample_backlogs() == queues
    pass_time(30)
    assert sample_backlogs() == 0
    pass_time(30)
    assert sample_backlogs() == queues


def test_samples_are_deleted_after_six_hours() -> None:
    sample_backlogs()
    pass_time(SECONDS_KEPT + 1)
    sample_backlogs()
    assert BacklogSample.objects.count() == Queue.objects.count()


def claimed_at() -> datetime | None:
    return Job.objects.filter(status="running").latest("claimed_at").claimed_at


def test_a_deploy_waits_for_the_slowest_of_the_running_jobs() -> None:
    enqueue_many("app.noop", [{}] * 40)
    run_ready(40, took=50)
    enqueue_many("app.noop", [{}] * 2)
    enqueue_many("app.add", [{"first": 1}])
    claim_ready(register_worker(threads=2, async_slots=1))
    run_sql("UPDATE django_jobs_job SET claimed_at = now() - interval '20 s'")
    with moment() as now:
        found = take_forecast({})
    # All took 50 s, so the 95th percentile lies at 58.5 s of the bucket from 30 to 60 s.
    assert 58.5 - found.deploy_seconds in now.since(claimed_at())
    assert (found.running, found.unknown) == (3, 1)
    out = StringIO()
    call_command("jobstatus", stdout=out)
    line = f"A deploy waits {age(found.deploy_seconds)} for 3 running jobs, 1 of unknown length."
    assert line in out.getvalue().splitlines()


def test_jobs_of_a_type_that_takes_more_than_an_hour_are_unknown() -> None:
    enqueue_many("app.noop", [{}] * 20)
    run_ready(20, took=4 * 3600)
    enqueue_many("app.noop", [{}] * 2)
    claim_ready(register_worker(threads=2))
    run_sql("UPDATE django_jobs_job SET claimed_at = now() - interval '50 min'")
    with moment() as now:
        found = take_forecast({})
    assert 3600 - found.deploy_seconds in now.since(claimed_at())
    assert (found.running, found.unknown) == (2, 2)
    run_sql("UPDATE django_jobs_job SET claimed_at = now() - interval '2 h'")
    assert take_forecast({}) == replace(found, deploy_seconds=0)


def test_a_deploy_does_not_wait_for_prefetched_jobs() -> None:
    enqueue_many("app.noop", [{}] * 10)
    for name in ("one", "other"):
        claim_ready(register_worker(name, threads=2), limit=5)
    assert (take_forecast({}).running, take_forecast({}).unknown) == (4, 4)


def test_no_running_job_holds_up_a_deploy() -> None:
    assert take_forecast({}).deploy_seconds == 0
    out = StringIO()
    call_command("jobstatus", stdout=out)
    assert "A deploy" not in out.getvalue()


def test_the_sample_of_a_queue_is_found_by_the_key() -> None:
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " SELECT name, now() - make_interval(mins => minute), 5, 0, 5"
        " FROM django_jobs_queue, generate_series(1, 3000) AS minute"
    )
    run_sql("ANALYZE django_jobs_backlogsample")
    nodes = explain(PAST, {"seconds": 330, "most": 1000})
    by_key = ("django_jobs_backlogsample", "django_jobs_backlogsample_1")
    scans = [node for node in nodes if node.get("Alias") in by_key]
    assert len(scans) == 2
    assert all("Index" in node["Node Type"] for node in scans)
    assert all(node["Actual Rows"] <= 1 for node in scans)


def test_jobstatus_shows_the_forecast_to_people_and_as_json() -> None:
    enqueue_many("app.noop", [{}] * 100)
    sample_backlogs()
    pass_time(100)
    run_ready(50)
    out = StringIO()
    call_command("jobstatus", stdout=out)
    line = next(line for line in out.getvalue().splitlines() if line.startswith("default  0.0"))
    assert line.split()[:4] == ["default", "0.0", "0.5", "0.5"]
    out = StringIO()
    call_command("jobstatus", "--json", stdout=out)
    shown = json.loads(out.getvalue())["forecast"]
    assert shown["deploy_seconds"] == 0
    default = next(one for one in shown["queues"] if one["queue"] == "default")
    assert default["drain_seconds"] == pytest.approx(100, rel=0.1)
