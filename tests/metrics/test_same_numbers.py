"""One traffic, and the same numbers in the metrics, ``jobstatus``, the admin and plain SQL."""

from __future__ import annotations

import pytest

from django_jobs.models import Queue
from tests.admin.conftest import page as page
from tests.admin.conftest import superuser as superuser
from tests.admin.overview.looking import overview, table, tiles
from tests.admin.overview.test_overview import counted, some_traffic
from tests.admin.queues.test_live import shown
from tests.admin.walking import Page, change_url
from tests.app.jobs import noop
from tests.factories import run_sql

from .test_known_traffic import scraped, status

pytestmark = pytest.mark.django_db

STATES = ("ready", "running", "scheduled", "dead")


def test_the_jobs_of_a_queue(page: Page) -> None:
    some_traffic()
    value, queues = scraped(), {queue["name"]: queue for queue in status()["queues"]}
    text = overview(page)
    listed = table(text, "Queues")
    for name in Queue.objects.names():
        of_queue = tiles(shown(page, name))
        of_queue["running"] = of_queue[next(one for one in of_queue if one.startswith("running"))]
        for state in STATES:
            jobs = counted(f"queue = '{name}' AND status = '{state}'")
            assert value("jobs", queue=name, state=state) == jobs
            assert queues[name][state] == jobs
            assert of_queue[state] == str(jobs)
            if state != "dead":
                assert listed[name][state.title()].partition(" ")[0] == str(jobs)
    for state, shown_there in tiles(text).items():
        if state in STATES:
            assert shown_there == str(counted(f"status = '{state}'"))


def test_the_attempts_and_those_that_failed(page: Page) -> None:
    some_traffic()
    failed = ("failed", "timed_out", "lost")
    ended = dict(
        run_sql(
            "SELECT outcome, count(*) FROM django_jobs_run"
            " WHERE finished_at < date_trunc('minute', now()) GROUP BY 1"
        )
    )
    value, text = scraped(), overview(page)
    of = {"queue": "default", "job_type": "app.noop"}
    assert {one: value("runs_total", outcome=one, **of) for one in ended} == ended
    listed = table(text, "Job types")["app.noop"]
    runs, bad = sum(ended.values()), sum(ended.get(one, 0) for one in failed)
    assert (listed["Attempts"], listed["Failed"]) == (str(runs), str(bad))
    assert tiles(text)["failed, last hour"] == f"{bad / (bad + ended['succeeded']):.1%}"
    of_queue = tiles(shown(page, "default"))
    assert of_queue["done a minute"] == f"{ended['succeeded'] / 5:g}"
    assert of_queue["failed a minute"] == f"{bad / 5:g}"


def test_the_slots_and_the_workers(page: Page) -> None:
    some_traffic()
    ((threads,),) = run_sql("SELECT sum(threads) FROM django_jobs_worker")
    value = scraped()
    assert value("worker_slots", version="", kind="thread") == threads
    assert sum(worker["threads"] for worker in status()["workers"]) == threads
    running = counted("status = 'running'")
    assert value("worker_jobs", version="") == running
    assert tiles(overview(page))[f"running or prefetched, {threads} slots"] == str(running)


def test_the_objective_of_a_queue(page: Page) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=42, slo_target=0.9)
    some_traffic()
    noop.enqueue_many([{}] * 3)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '50 s'"
        " WHERE status = 'ready' AND queue = 'default' AND id % 2 = 0"
    )
    late = counted("status = 'ready' AND available_at < now() - interval '42 s'")
    assert late > 0
    ((runs, met),) = run_sql(
        "SELECT count(*), count(*) FILTER (WHERE started_at <= available_at + interval '42 s')"
        " FROM django_jobs_run WHERE started_at IS NOT NULL"
        " AND finished_at < date_trunc('minute', now())"
    )
    value, (objective,) = scraped(), status()["objectives"]
    assert value("slo_runs_total", queue="default") == runs
    assert value("slo_met_runs_total", queue="default") == met
    assert value("slo_late_jobs", queue="default") == objective["late"] == late
    hour = objective["hour"]
    assert (hour["runs"], hour["met"]) == (runs + late, met)
    text = page.text(change_url(Queue, Queue.objects.get(name="default").pk))
    share, burn = met / (runs + late), (1 - met / (runs + late)) / (1 - 0.9)
    assert hour["burn_rate"] == pytest.approx(burn)
    assert f"{share:.2%} of {runs + late} jobs in time, burn rate {burn:.1f}" in text
