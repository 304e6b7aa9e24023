"""The objectives of queues, compared with the rows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from io import StringIO
from types import MappingProxyType

import pytest
from django.core.management import call_command

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.metrics import gauges, slo
from django_jobs.metrics.slo import OBJECTIVES, SloWindow, take_objectives
from django_jobs.models import Queue, StoredMetrics
from tests.factories import claim_ready, explain, fold_runs, register_worker, run_sql
from tests.metrics.totals import take_totals

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _objective() -> None:
    Queue.objects.filter(name="default").update(slo_seconds=30)


def run_with_waits(
    *waits: float, queue: str = "default", let_go: Mapping[float, float] = MappingProxyType({})
) -> None:
    """Runs that started so many seconds after their due time, and ``let_go`` after that by their
    gates."""
    enqueue_many("app.noop", [{}] * len(waits), queue=queue)
    held = claim_ready(register_worker(), queue)
    now = time.monotonic()
    settle([Ending(job, Succeeded(), started=now, finished=now) for job in held])
    for number, wait in enumerate(waits):
        run_sql(
            "UPDATE django_jobs_run SET available_at = started_at - make_interval(secs => %s),"
            " ready_at = started_at - make_interval(secs => %s)"
            " WHERE id = (SELECT id FROM django_jobs_run ORDER BY id DESC OFFSET %s LIMIT 1)",
            [wait, let_go.get(wait), number],
        )
    fold_runs()


def ready_since(seconds: float, count: int = 1) -> None:
    ids = enqueue_many("app.noop", [{}] * count)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - make_interval(secs => %s)"
        " WHERE id = ANY(%s)",
        [seconds, ids],
    )


def test_the_share_of_jobs_that_started_in_time_is_that_of_the_ledger() -> None:
    run_with_waits(*[1.0] * 95, 30.0, 30.1, 31, 40, 3_600)
    run_with_waits(9_999, queue="bulk")
    (found,) = take_objectives()
    assert (found.queue, found.seconds, found.target, found.late) == ("default", 30, 0.99, 0)
    expected = run_sql(
        "SELECT count(*), count(*) FILTER (WHERE"
        " run.started_at <= run.available_at + interval '30 s')"
        " FROM django_jobs_run AS run JOIN django_jobs_job AS job ON job.id = job_id"
        " WHERE job.queue = 'default'"
    )
    assert [(found.hour.runs, found.hour.met)] == expected == [(100, 96)]
    assert found.hour.ratio == pytest.approx(0.96)
    assert found.hour.burn_rate == pytest.approx(4)
    assert found.day == found.hour
    totals = {one.queue: (one.slo_runs, one.slo_met) for one in take_totals().types}
    assert totals == {"default": (100, 96), "bulk": (0, 0)}


@pytest.mark.parametrize(("since", "met", "late"), [("due", 1, 29), ("ready", 2, 2)])
def test_an_objective_counts_from_the_due_time_or_from_when_gates_let_a_job_go(
    since: str, met: int, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue.objects.update(slo_since=since)
    # Without gates, with a moment that is of an earlier attempt, soon after the gates, and late.
    run_with_waits(31, 10, 4_000, 5_000, let_go={10: 900, 4_000: 10, 5_000: 60})
    waiting = (("ready", None), ("ready", "40 s"), ("blocked", None), *[("ready", "0 s")] * 27)
    ids = enqueue_many("app.noop", [{}] * len(waiting))
    for id_, (status, before) in zip(ids, waiting, strict=True):
        run_sql(
            "UPDATE django_jobs_job SET available_at = now() - interval '1 h', status = %s,"
            " ready_at = now() - %s::interval WHERE id = %s",
            [status, before, id_],
        )
    for head in (gauges.BOUNDS["head"], 0):  # all are counted, or estimated
        monkeypatch.setitem(gauges.BOUNDS, "head", head)
        StoredMetrics.objects.all().delete()
        (scraped,) = (row for row in gauges.read_gauges()["queues"] if row["queue"] == "default")
        (found,) = take_objectives()
        assert (found.since, found.hour.met) == (since, met)
        assert found.late == scraped["late"] == found.hour.runs - 4 == late


def test_a_run_that_never_started_neither_meets_nor_misses() -> None:
    run_with_waits(1)
    enqueue_many("app.noop", [{}])
    settle([Ending(job, Succeeded()) for job in claim_ready(register_worker())])
    fold_runs()
    assert take_objectives()[0].hour.runs == 1


def test_jobs_that_are_late_and_have_not_started_count_as_missed() -> None:
    run_with_waits(1, 1, 1)
    ready_since(31)
    ready_since(10)
    (found,) = take_objectives()
    assert found.late == 1
    assert (found.hour.runs, found.hour.met) == (4, 3)
    assert found.hour.burn_rate == pytest.approx(25)


def test_a_queue_whose_jobs_all_wait_has_an_objective_that_is_missed() -> None:
    ready_since(60, count=5)
    (found,) = take_objectives()
    assert (found.late, found.hour.ratio, found.day.ratio) == (5, 0, 0)
    assert found.hour.burn_rate == pytest.approx(100)


def test_an_hour_ends_before_a_day() -> None:
    run_with_waits(1, 60)
    run_sql("UPDATE django_jobs_runtotal SET began_at = began_at - interval '90 min'")
    (found,) = take_objectives()
    assert (found.hour.runs, found.hour.ratio, found.hour.burn_rate) == (0, None, None)
    assert (found.day.runs, found.day.ratio) == (2, 0.5)
    run_sql("UPDATE django_jobs_runtotal SET began_at = began_at - interval '1 day'")
    assert take_objectives()[0].day.runs == 0


def test_a_target_of_a_half_has_fifty_times_the_budget_of_one_in_a_hundred() -> None:
    assert SloWindow.of(4, 2, 0, 0.5).burn_rate == pytest.approx(1)
    assert SloWindow.of(4, 2, 0, 0.99).burn_rate == pytest.approx(50)
    assert SloWindow.of(0, 0, 0, 0.99).burn_rate is None


def test_a_queue_without_an_objective_is_not_listed() -> None:
    Queue.objects.update(slo_seconds=None)
    ready_since(60)
    assert take_objectives() == ()


def test_late_jobs_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slo, "MOST_LATE", 3)
    ready_since(60, count=5)
    assert take_objectives()[0].late == 3


@pytest.mark.usefixtures("fresh_tables")
def test_late_jobs_are_read_from_the_head_of_the_ready_index() -> None:
    ready_since(60, count=2_000)
    run_sql("ANALYZE django_jobs_job_live")
    nodes = explain(OBJECTIVES, {"most": 100})
    scans = [node for node in nodes if node.get("Relation Name") == "django_jobs_job_live"]
    assert {node["Node Type"] for node in scans} == {"Index Scan"}
    assert max(node["Actual Rows"] for node in scans) <= 100


def test_jobstatus_shows_objectives_to_people_and_as_json() -> None:
    run_with_waits(1, 1, 1, 60)
    out = StringIO()
    call_command("jobstatus", stdout=out)
    line = next(line for line in out.getvalue().splitlines() if line.startswith("default  30s"))
    assert line.split() == [
        *("default", "30s", "99%", "75.00%", "(burn", "rate", "25.0)"),
        *("75.00%", "(burn", "rate", "25.0)", "0"),
    ]
    out = StringIO()
    call_command("jobstatus", "--json", stdout=out)
    (shown,) = json.loads(out.getvalue())["objectives"]
    assert shown["hour"] == {"runs": 4, "met": 3, "ratio": 0.75, "burn_rate": pytest.approx(25)}
