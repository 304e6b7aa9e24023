"""The totals compared with the ledger."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import enqueue_many
from django_jobs.domain.histograms import BOUNDS, BUCKETS, Histogram
from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.domain.states import RunState
from django_jobs.lifecycle.operations.jobs import replay, run_now
from django_jobs.lifecycle.run_totals import SINCE_THE_BEGINNING
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.metrics import gauges
from django_jobs.models import Job, Run
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    explain,
    failure,
    fold_runs,
    make_dead,
    register_worker,
    run_sql,
)
from tests.metrics.totals import READ, take_recent, take_totals
from tests.moments import moment

pytestmark = pytest.mark.django_db

SECONDS = (0.0, 0.004, 0.005, 0.006, 0.3, 1.0, 1.1, 59.0, 3_600.0, 3_601.0)


def known_traffic() -> None:
    """Runs of two types in two queues, that ended in three ways and took between nothing and more
    than an hour."""
    worker = register_worker(queues=["default", "bulk"])
    enqueue_many("app.noop", [{}] * 40, queue="default")
    enqueue_many("app.noop", [{}] * 10, queue="bulk")
    enqueue_many("app.add", [{"first": 1}] * 20, queue="bulk")
    outcomes = Succeeded(), failure(), failure(final=True), Snoozed(seconds=60)
    for queue in ("default", "bulk"):
        held = claim_ready(worker, queue)
        settle([Ending(job, outcomes[number % 4]) for number, job in enumerate(held)])
    run_now(Job.objects.filter(status="scheduled").values_list("pk", flat=True)[:9])
    held = claim_ready(worker, "default") + claim_ready(worker, "bulk")
    settle([Ending(job, outcomes[number % 3]) for number, job in enumerate(held)])
    for number, run in enumerate(Run.objects.order_by("id")):
        lengths = [SECONDS[(number * step) % len(SECONDS)] for step in (1, 3, 7)]
        run_sql(
            "UPDATE django_jobs_run SET"
            " started_at = finished_at - make_interval(secs => %s),"
            " claimed_at = finished_at - make_interval(secs => %s),"
            " available_at = finished_at - make_interval(secs => %s) WHERE id = %s",
            [lengths[0], sum(lengths[:2]), sum(lengths), run.pk],
        )
    run_sql("UPDATE django_jobs_run SET started_at = NULL WHERE id % 13 = 0")


def of_the_ledger() -> dict[tuple[str, str], tuple[Counter[str], list[Histogram]]]:
    """What the totals should be, from the rows."""
    found: dict[tuple[str, str], tuple[Counter[str], list[Histogram]]] = {}
    for run in Run.objects.select_related("job"):
        outcomes, times = found.setdefault(
            (run.job.queue, run.job.job_type), (Counter(), [Histogram()] * 3)
        )
        outcomes[run.outcome] += 1
        moments = [run.available_at, run.claimed_at, run.started_at, run.finished_at]
        for place in range(3):
            begin, end = moments[place], moments[place + 1]
            if begin is not None and end is not None:
                seconds = (end - begin).total_seconds()
                counts = tuple(int(n == bisect_left(BOUNDS, seconds)) for n in range(BUCKETS))
                times[place] += Histogram(counts, seconds)
    return found


@pytest.mark.parametrize("seconds", [None, 60, 86_400])
def test_the_totals_of_known_traffic_are_those_of_the_ledger(seconds: float | None) -> None:
    known_traffic()
    fold_runs()
    expected = of_the_ledger()
    totals = (take_totals() if seconds is None else take_recent(seconds)).types
    assert [(one.queue, one.job_type) for one in totals] == sorted(expected)
    assert sum(one.runs for one in totals) == 79
    for one in totals:
        outcomes, times = expected[one.queue, one.job_type]
        assert one.outcomes == outcomes
        for found, wanted in zip((one.waiting, one.start_lag, one.runtime), times, strict=True):
            assert found.counts == wanted.counts
            assert found.seconds == pytest.approx(wanted.seconds)


def test_retries_and_deaths_of_known_traffic_are_those_of_the_ledger() -> None:
    known_traffic()
    fold_runs()
    for columns, condition in (
        ("retries", "run.attempt > 1"),
        ("died", "job.status = 'dead' AND job.attempt = run.attempt"),
    ):
        expected = run_sql(
            f"SELECT job.queue, job.job_type, count(*) FILTER (WHERE {condition})"
            " FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = run.job_id"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        )
        found = [(one.queue, one.job_type, getattr(one, columns)) for one in take_totals().types]
        assert found == expected
        assert sum(number for *_, number in found) >= 9


def no_problem(job: Job) -> None:
    """Any job may be replayed."""


def test_a_death_is_counted_once_and_not_if_the_job_was_replayed_before() -> None:
    def died() -> int:
        fold_runs()
        return sum(one.died for one in take_totals().types)

    job = make_dead()
    assert died() == 1
    replay([job.pk], check=no_problem)
    (held,) = claim_ready(register_worker())
    settle([Ending(held, failure())])
    assert died() == 1
    run_now([job.pk])
    (held,) = claim_ready(register_worker())
    settle([Ending(held, failure(final=True))])
    assert died() == 2
    replay([make_dead().pk], check=no_problem)
    assert died() == 2


def test_the_totals_stay_when_their_jobs_and_runs_are_deleted() -> None:
    known_traffic()
    fold_runs()
    before = take_totals()
    Run.objects.all().delete()
    Job.objects.all().delete()
    fold_runs()
    assert take_totals().types == before.types


def test_recent_totals_begin_with_a_whole_minute_or_hour() -> None:
    known_traffic()
    fold_runs()
    run_sql("UPDATE django_jobs_runtotal SET began_at = began_at - interval '2 h' WHERE period > 0")
    assert take_recent(600).types == ()
    assert sum(one.runs for one in take_recent(7_300).types) == 79
    run_sql("UPDATE django_jobs_runtotal SET began_at = began_at - interval '2 d' WHERE period > 0")
    assert take_recent(86_400).types == ()
    assert sum(one.runs for one in take_recent(3 * 86_400).types) == 79
    with moment() as now:
        recent = take_recent(600)
    assert recent.since is not None
    assert recent.since.second == 0
    assert recent.seconds in now.since(recent.since)
    assert 0 <= (now.first - recent.since).total_seconds() - 600 < 60


def test_totals_of_nothing_are_empty() -> None:
    assert take_totals().types == take_recent(60).types == ()
    assert take_recent(60).seconds is None


@pytest.mark.usefixtures("fresh_tables")
def test_two_hundred_types_are_read_by_a_scan_that_visits_no_other_period() -> None:
    noop.enqueue()
    (held,) = claim_ready(register_worker())
    settle([Ending(held, Succeeded())])
    fold_runs()
    columns = (
        "waiting_buckets, waiting_seconds, start_lag_buckets, start_lag_seconds,"
        " runtime_buckets, runtime_seconds, gate_buckets, gate_seconds, slo_runs, slo_met"
    )
    run_sql(
        f"INSERT INTO django_jobs_runtotal (period, began_at, queue, job_type, outcome, runs,"
        f" {columns}) SELECT period, began_at - make_interval(secs => minute * period), 'default',"
        f" 'app.type_' || number, outcome.name, runs, {columns} FROM django_jobs_runtotal,"
        " generate_series(1, 200) AS number, generate_series(0, 20) AS minute,"
        " (VALUES ('succeeded'), ('failed')) AS outcome (name)"
        " WHERE period > 0 OR minute = 0"
    )
    run_sql("ANALYZE django_jobs_runtotal")
    with CaptureQueriesContext(connection) as asked:
        assert len(take_totals().types) == 201
    assert len(asked) == 2  # the other reads how far they reach
    (scan,) = (
        node
        for node in explain(READ, {"period": 0, "since": "-infinity"})
        if node.get("Relation Name") == "django_jobs_runtotal"
    )
    ((rows,),) = run_sql("SELECT count(*) FROM django_jobs_runtotal")
    assert rows > 10_000
    assert scan["Actual Rows"] == 401
    assert scan.get("Rows Removed by Filter", 0) == 0


def test_a_scrape_takes_all_counts_and_times_of_the_busiest_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gauges, "BOUNDS", {**gauges.BOUNDS, "series": 3})
    run_sql(
        "INSERT INTO django_jobs_runtotal (period, began_at, queue, job_type, outcome, runs,"
        " slo_runs, slo_met, waiting_buckets, waiting_seconds, start_lag_buckets,"
        " start_lag_seconds, runtime_buckets, runtime_seconds, gate_buckets, gate_seconds)"
        " SELECT %s, '-infinity', 'q', 'app.' || n, outcome, n, 0, 0, zero, 0, zero, 0, zero, 0,"
        " zero, 0"
        " FROM generate_series(1, 9) AS n, unnest(ARRAY['succeeded', 'failed']) AS outcome,"
        " (SELECT array_fill(0, ARRAY[%s]) AS zero) AS zeros",
        [SINCE_THE_BEGINNING, BUCKETS],
    )
    taken = gauges.read_gauges()
    busiest = {"app.7", "app.8", "app.9"}
    assert {row["job_type"] for row in taken["times"]} == busiest
    assert {row["job_type"] for row in taken["runs"]} == busiest
    assert (len(taken["times"]), len(taken["runs"])) == (3, 3 * len(RunState))
    assert taken["pairs"] == [{"pairs": 9}]
