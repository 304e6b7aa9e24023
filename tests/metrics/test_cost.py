"""What the runs of each job type used, from real rows."""

from __future__ import annotations

import time

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.run_log import ALL_OF_ITS_TIME, RunCost
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.metrics.forecast import take_cost
from django_jobs.models import Job, Run
from tests.app.async_jobs import noop_async
from tests.app.jobs import add, noop
from tests.factories import enqueue_and_claim, run_sql

pytestmark = pytest.mark.django_db


def end(job: ClaimedJob, cost: RunCost | None, *, result: str | None = None) -> None:
    now = time.monotonic()
    settle([Ending(job, Succeeded(result=result), now - 2, now, cost=cost)])


def test_the_types_that_use_most_come_first_and_are_summed_up() -> None:
    for cpu in (0.25, 0.5):
        measured = RunCost(cpu_seconds=cpu, queries=4, query_seconds=0.125)
        end(enqueue_and_claim(add, 1), measured, result="1")  # a row of JSON
    end(enqueue_and_claim(noop), RunCost(cpu_seconds=3.0, max_rss_kb=51_200))
    end(enqueue_and_claim(noop), RunCost(cpu_seconds=1.0, max_rss_kb=10_240))
    end(enqueue_and_claim(noop_async), None)
    noops, adds, echoes = take_cost().types
    assert (noops.job_type, noops.runs, noops.cpu_seconds) == ("app.noop", 2, 4.0)
    assert (noops.max_rss_kb, noops.queries) == (51_200, None)
    assert (adds.job_type, adds.cpu_seconds, adds.queries) == ("app.add", 0.75, 8)
    assert adds.query_seconds == 0.25
    assert adds.seconds == pytest.approx(4.0, abs=1e-3)
    assert (echoes.runs, echoes.cpu_seconds, echoes.max_rss_kb) == (1, None, None)


def test_one_batch_has_runs_with_and_without_a_cost() -> None:
    jobs = [enqueue_and_claim(noop) for _ in range(3)]
    costs = [
        None,
        RunCost(cpu_seconds=0.5, max_rss_kb=2_000_001, queries=1_234_567),
        RunCost(cpu_seconds=1 / 3, queries=0, query_seconds=0.0),
    ]
    now = time.monotonic()
    settle(
        [
            Ending(job, Succeeded(), now, now, cost=cost)
            for job, cost in zip(jobs, costs, strict=True)
        ]
    )
    runs = [Job.objects.get(pk=job.id).runs.get() for job in jobs]
    kept = [(run.cpu_seconds, run.max_rss_kb, run.queries, run.query_seconds) for run in runs]
    assert kept == [
        (None, None, None, None),
        (0.5, 2_000_001, 1_234_567, None),
        (0.333333, None, 0, 0.0),
    ]


@pytest.mark.parametrize("result", [None, "1"])
@pytest.mark.parametrize("queries", [None, 0])
def test_a_short_run_used_the_time_that_it_ran(result: str | None, queries: int | None) -> None:
    jobs = [enqueue_and_claim(noop) for _ in range(3)]
    costs = [RunCost(ALL_OF_ITS_TIME, None, queries, queries)] * 2 + [None] * (queries is None)
    now = time.monotonic()
    settle(
        [
            Ending(job, Succeeded(result=result), now - 2, now, cost=cost)
            for job, cost in zip(jobs, costs, strict=False)
        ]
    )
    for run in Run.objects.filter(cpu_seconds__isnull=False):
        assert run.started_at is not None
        ran = (run.finished_at - run.started_at).total_seconds()
        assert run.cpu_seconds == pytest.approx(ran, abs=1e-5)
        assert run.queries == run.query_seconds == queries
    assert Run.objects.filter(cpu_seconds__isnull=False).count() == 2
    assert Run.objects.count() == len(costs)


def test_a_run_without_its_job_keeps_its_cost(settings: object) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"succeeded": 0, "runs": "1d"}}  # type: ignore[attr-defined]
    job = enqueue_and_claim(noop)
    now = time.monotonic()
    settle([Ending(job, Succeeded(), now, now, kept=False, cost=RunCost(cpu_seconds=0.5))])
    assert not Job.objects.filter(pk=job.id).exists()
    assert Run.objects.get(job_id=job.id).cpu_seconds == 0.5


def test_older_runs_and_those_beyond_the_newest_are_left_out() -> None:
    for _ in range(3):
        end(enqueue_and_claim(noop), RunCost(cpu_seconds=1.0))
    assert take_cost(most_runs=2).types[0].runs == 2
    run_sql("UPDATE django_jobs_run SET finished_at = now() - interval '61 minutes'")
    assert take_cost().types == ()
