"""Each panel of the board shows numbers of the tables, once though two targets are scraped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from django_jobs.domain.histograms import Histogram
from django_jobs.domain.outcomes import Lost, Succeeded, TimedOut
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations.limits import open_breaker
from django_jobs.lifecycle.workers import Load, renew
from tests.app.jobs import add, noop
from tests.factories import claim_ready, failure, fold_runs, register_worker, run_sql, settle_one
from tests.metrics.totals import take_totals

from .promtool import Phase, assert_each, needs_promtool, notation
from .scraping import make_everything, scrape
from .test_board import panels, queries

pytestmark = [needs_promtool, pytest.mark.django_db(transaction=True)]


def jobs(*states: str) -> str:
    """The jobs of each queue in each of these states, also none."""
    return f"""
        SELECT name, state, count(job.id) FROM django_jobs_queue
        CROSS JOIN unnest(ARRAY{[*states]}) AS state
        LEFT JOIN django_jobs_job AS job ON job.queue = name AND job.status = state
        GROUP BY 1, 2"""


def jobs_in(state: str) -> str:
    return f"SELECT name, count FROM ({jobs(state)}) AS counted (name, state, count)"


def with_resource(*states: str) -> str:
    return f"""
        SELECT name, count(job.id) FROM django_jobs_resource
        LEFT JOIN django_jobs_job AS job ON resources @> to_jsonb(name)
            AND status = ANY(ARRAY{[*states]})
        GROUP BY 1"""


NUMBERS = {
    ("Workers", 0): ("", "SELECT count(*) FROM django_jobs_worker WHERE status = 'running'"),
    ("Ready jobs", 0): ("queue", jobs_in("ready")),
    ("Ready jobs", 1): (
        "queue",
        "SELECT name, max_backlog FROM django_jobs_queue WHERE max_backlog IS NOT NULL",
    ),
    ("Running jobs", 0): ("queue", jobs_in("running")),
    ("Dead jobs", 0): ("queue", jobs_in("dead")),
    ("Busy slots of a queue", 0): ("queue", jobs_in("running")),
    ("Jobs that are not due or not free", 0): (
        "queue state",
        jobs("scheduled", "waiting", "blocked"),
    ),
    ("Workers by state", 0): (
        "status",
        """SELECT status, count(*) FROM django_jobs_worker WHERE status <> 'stopped' GROUP BY 1""",
    ),
    ("Workers by state", 2): ("", "SELECT sum(claim_failures) FROM django_jobs_worker"),
    ("Versions of the code", 0): (
        "version",
        """SELECT code_version, count(*) FROM django_jobs_worker WHERE status = 'running'
        GROUP BY 1""",
    ),
    ("Utilisation", 0): (
        "",
        """SELECT sum(jsonb_array_length(started_jobs))::float8 / sum(threads + async_slots)
        FROM django_jobs_worker WHERE status = 'running'""",
    ),
    ("Lost, quarantined, unclaimable", 1): (
        "job_type",
        """SELECT quarantine.job_type, count(job.id) FROM django_jobs_quarantine AS quarantine
        LEFT JOIN django_jobs_job AS job ON job.job_type = quarantine.job_type
            AND job.reason = 'quarantined' GROUP BY 1""",
    ),
    ("Most frequent errors of the last hour", 0): (
        "error_type fingerprint",
        """SELECT error_type, fingerprint, count(*) FROM django_jobs_run WHERE fingerprint <> ''
        GROUP BY 1, 2""",
    ),
    ("Jobs that started in time", 1): (
        "queue",
        "SELECT name, slo_target FROM django_jobs_queue WHERE slo_seconds IS NOT NULL",
    ),
    ("Late jobs", 0): (
        "queue",
        """SELECT name, count(job.id) FROM django_jobs_queue AS queue
        LEFT JOIN django_jobs_job AS job ON job.queue = name AND job.status = 'ready'
            AND job.available_at < now() - make_interval(secs => slo_seconds)
        WHERE slo_seconds IS NOT NULL GROUP BY 1""",
    ),
    ("Schedules by state", 0): (
        "state",
        """SELECT state, (SELECT count(*) FROM django_jobs_schedule WHERE state = 'on')
        FROM unnest(ARRAY['on', 'overdue', 'paused', 'error', 'disabled', 'ended']) AS state""",
    ),
    ("Resources: taken and limit", 0): ("resource", with_resource("ready", "running")),
    ("Resources: taken and limit", 1): (
        "resource",
        "SELECT name, max_concurrency FROM django_jobs_resource WHERE max_concurrency IS NOT NULL",
    ),
    ("Resources: waiting", 0): ("resource", with_resource("blocked")),
    ("Circuit breakers and retries", 1): (
        "resource state",
        "SELECT name, breaker_state, 1 FROM django_jobs_resource WHERE breaker_state <> 'closed'",
    ),
    ("Tenants: waiting", 0): (
        "tenant",
        """SELECT tenant, count(*) FROM django_jobs_job WHERE status = 'blocked'
        AND tenant IS NOT NULL GROUP BY 1""",
    ),
    ("Runs of workflows", 0): (
        "",
        "SELECT count(*) FROM django_jobs_workflowrun WHERE status = 'running'",
    ),
    ("Runs of workflows", 1): (
        "status",
        "SELECT status, count(*) FROM django_jobs_workflowrun WHERE status <> 'running' GROUP BY 1",
    ),
}
"""What a query of a panel shows: its labels, and the same from the tables."""

OF_AN_HOUR = {
    "Runs per second": (
        "outcome",
        """SELECT state, count(run.id) / 3600.0 FROM unnest(ARRAY['succeeded', 'failed',
            'timed_out', 'lost', 'snoozed', 'cancelled', 'released']) AS state
        LEFT JOIN django_jobs_run AS run ON run.outcome = state AND run.id > %s GROUP BY 1""",
    ),
    "Share of attempts that fail": (
        "queue",
        """SELECT queue, count(*) FILTER (WHERE outcome IN ('failed', 'timed_out', 'lost'))::float8
            / count(*)
        FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = job_id
        WHERE run.id > %s AND outcome IN ('failed', 'timed_out', 'lost', 'succeeded') GROUP BY 1""",
    ),
    "Failed attempts by job type": (
        "job_type",
        """SELECT job_type,
            count(*) FILTER (WHERE outcome IN ('failed', 'timed_out', 'lost')) / 3600.0
        FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = job_id
        WHERE run.id > %s GROUP BY 1""",
    ),
    "What occupies the slots": (
        "job_type",
        """SELECT job_type, sum(date_part('epoch', run.finished_at - run.started_at)) / 3600
        FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = job_id
        WHERE run.id > %s GROUP BY 1""",
    ),
}
"""The same for rates, by the runs of an hour after the one with this id."""

TIMES = {"Waiting": "waiting", "Start lag": "start_lag", "Runtime": "runtime"}
"""Panels of percentiles, with the histogram that they are made of."""

COMPARED_ELSEWHERE = {
    "Which of the three?": "test_board.py has each state of it",
    "Burn rate": "test_board.py compares it with jobstatus",
    "Age of the oldest ready job": "an age, in tests/metrics/test_known_traffic.py",
    "Lag": "an age, in tests/metrics/test_known_traffic.py",
    "Last look at the schedules": "an age, in tests/metrics/test_known_traffic.py",
    "Age of these numbers": "an age, in tests/metrics/test_gauges.py",
    "Cost and age of these numbers": "ages, in tests/metrics/test_gauges.py",
    "Growth of the ready jobs": "the derivative of what the panel before it shows",
    "Oldest transaction": "an age, in tests/metrics/test_database_health.py",
    "Dead rows": "PostgreSQL's estimate, in tests/metrics/test_known_traffic.py",
    "Size of the tables": "in tests/metrics/test_known_traffic.py",
}


def test_each_panel_is_compared_with_the_tables_or_says_where_it_is() -> None:
    compared = {title for title, _ in NUMBERS} | OF_AN_HOUR.keys() | TIMES.keys()
    titles = {panel["title"] for panel in panels() if panel["type"] != "row"}
    assert compared | COMPARED_ELSEWHERE.keys() == titles
    assert compared & COMPARED_ELSEWHERE.keys() == set()


def query_of(title: str, place: int = 0) -> str:
    (panel,) = (one for one in panels() if one["title"] == title and one["type"] != "row")
    return queries(panel)[place]


def by_labels(labels: str, rows: list[tuple[Any, ...]]) -> dict[str, float]:
    """The rows as the samples of a query: an empty label is none."""
    names = labels.split()
    return {
        notation(
            "", {name: text for name, text in zip(names, row[:-1], strict=True) if text}
        ): float(row[-1])
        for row in rows
    }


def test_panels_show_the_numbers_of_the_tables() -> None:
    make_everything()
    run_sql("UPDATE django_jobs_queue SET slo_seconds = 60 WHERE name = 'strict'")
    open_breaker(["ledger"])
    noop.using(queue="strict").enqueue_many([{}] * 3)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '90 s'"
        " WHERE queue = 'strict' AND id % 2 = 0"
    )
    run_sql(
        "UPDATE django_jobs_job SET status = 'ready' WHERE id = (SELECT min(id) FROM"
        " django_jobs_job WHERE status = 'blocked' AND resources IS NOT NULL)"
    )
    worker = register_worker(threads=5, queues=("strict",))
    (held, *_) = claim_ready(worker, "strict", limit=1)
    renew([worker], 30, claim_failures={worker: 2}, loads={worker: Load(9, [(held.id, 0.1, None)])})
    history, wanted = [Phase(scrape(), 20)], []
    for (title, place), (labels, sql) in NUMBERS.items():
        rows = run_sql(sql)
        assert any(row[-1] for row in rows), title
        wanted.append((query_of(title, place), by_labels(labels, rows)))
    assert_each(history, wanted)


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """As PromQL's ``round(…, 0.000001)``."""
    return {labels: math.floor(value * 1e6 + 0.5) / 1e6 for labels, value in values.items()}


def end_attempts(worker: int, times: int) -> None:
    """Attempts of two types with four outcomes, that took and waited for some seconds."""
    outcomes = Succeeded(), failure(final=True), TimedOut(seconds=1), Lost(reason="SIGKILL")
    ((last,),) = run_sql("SELECT coalesce(max(id), 0) FROM django_jobs_run")
    for number in range(times):
        for outcome in outcomes[: 1 + number % 4]:
            (add if number % 3 else noop).using(max_attempts=1).enqueue(*[1] * bool(number % 3))
            (held,) = claim_ready(worker)
            settle_one(held, outcome)
            job_operations.cancel([held.id])
    run_sql(
        "UPDATE django_jobs_run SET started_at = finished_at - make_interval(secs => id %% 7 + 1),"
        " claimed_at = finished_at - make_interval(secs => id %% 7 + 2),"
        " available_at = finished_at - make_interval(secs => id %% 7 + 2 + id %% 40) WHERE id > %s",
        [last],
    )
    fold_runs()


def histograms() -> dict[str, Histogram]:
    found = {name: Histogram() for name in TIMES.values()}
    for one in take_totals().types:
        for name in found:
            found[name] += getattr(one, name)
    return found


def test_rates_and_percentiles_are_those_of_the_runs_of_the_time() -> None:
    run_sql("DELETE FROM django_jobs_queue WHERE name <> 'default'")
    worker = register_worker()
    end_attempts(worker, 12)
    first, before = scrape(), histograms()
    ((last,),) = run_sql("SELECT max(id) FROM django_jobs_run")
    end_attempts(worker, 24)
    later, after = scrape(), histograms()
    wanted = [
        (query_of(title), by_labels(labels, run_sql(sql, [last])))
        for title, (labels, sql) in OF_AN_HOUR.items()
    ]
    for title, name in TIMES.items():
        counts = zip(after[name].counts, before[name].counts, strict=True)
        times = Histogram(tuple(more - few for more, few in counts))
        for place, share in enumerate((0.5, 0.95, 0.99)):
            seconds = times.percentile(share)
            assert seconds
            wanted.append((query_of(title, place), {'{queue="default"}': seconds}))
    assert_each(
        [Phase(first, 61, later)],
        [(f"round({query}, 0.000001)", rounded(values)) for query, values in wanted],
    )
