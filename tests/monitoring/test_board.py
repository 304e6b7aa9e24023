"""Each panel of the board has data, and the first one tells outage, lack of capacity and backlog
apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from django_jobs import Backoff
from django_jobs.domain.outcomes import Lost, Outcome, Released, Succeeded, TimedOut
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.workers import Load, renew
from django_jobs.metrics.slo import take_objectives
from django_jobs.models import Queue
from django_jobs.testing import run_jobs
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    declared,
    failure,
    fold_runs,
    register_worker,
    run_sql,
    settle_one,
)
from tests.test_docs import page, section

from .promtool import BOARD, Phase, assert_have_data, assert_values, needs_promtool
from .scraping import make_everything, scrape

ROWS = [
    "Backlog: does work wait, and does it become less?",
    "Outage: is work done at all?",
    "Lack of capacity: are the slots enough?",
    *("Failures", "Latency", "Objectives", "Schedules", "Limits", "Workflows", "Database"),
]
WORKS, BACKLOG, LACK_OF_CAPACITY, OUTAGE, PAUSED = range(5)


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(BOARD.read_text())["panels"]
    return found


def queries(panel: dict[str, Any]) -> list[str]:
    """Its expressions, for all queues."""
    return [one["expr"].replace("$queue", ".*") for one in panel.get("targets", ())]


def test_the_rows_are_in_the_order_of_the_page() -> None:
    assert [panel["title"] for panel in panels() if panel["type"] == "row"] == ROWS


def test_no_two_panels_overlap() -> None:
    def cells(panel: dict[str, Any]) -> Iterator[tuple[int, int]]:
        place = panel["gridPos"]
        left, top = place["x"], place["y"]
        assert left + place["w"] <= 24
        columns, lines = range(left, left + place["w"]), range(top, top + place["h"])
        return ((column, line) for column in columns for line in lines)

    for one, other in combinations(panels(), 2):
        assert one["id"] != other["id"]
        assert not set(cells(one)) & set(cells(other)), (one["title"], other["title"])


def test_each_panel_says_what_it_shows() -> None:
    for panel in panels():
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"


@pytest.fixture
def _one_queue(transactional_db: None) -> None:
    """Without those of the settings."""
    run_sql("DELETE FROM django_jobs_queue WHERE name <> 'default'")


def enqueue_old(count: int) -> None:
    """Jobs that have been ready for two minutes."""
    noop.enqueue_many([{}] * count)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '120 s'")


def assert_is(history: list[Phase], *states: int) -> None:
    (condition,) = queries(panels()[0])
    assert_values(history, condition, *({'{queue="default"}': state} for state in states))


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_a_queue_without_a_worker_is_an_outage() -> None:
    before = scrape()
    enqueue_old(5)
    assert_is([Phase(before, 20), Phase(scrape(), 20)], WORKS, OUTAGE)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_due_jobs_that_nothing_makes_ready_are_an_outage() -> None:
    before = scrape()
    noop.using(delay=60).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '120 s'")
    assert_is([Phase(before, 20), Phase(scrape(), 20)], WORKS, OUTAGE)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_a_queue_whose_attempts_fail_is_an_outage() -> None:
    def refuse() -> None:
        raise ConnectionRefusedError

    with declared(refuse, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue()
        run_jobs()
        first = scrape()
        flaky.enqueue_many([{}] * 3)
        run_jobs()
        assert_is([Phase(first, 20), Phase(scrape(), 3)], WORKS, OUTAGE)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_a_failure_where_no_successes_are_kept_is_no_outage() -> None:
    def fail_at_zero(number: int) -> None:
        1 / number

    Queue.objects.filter(name="default").update(retention={"succeeded": 0})
    with declared(fail_at_zero, max_attempts=99, backoff=Backoff.fixed(3_600)) as flaky:
        flaky.enqueue(number=0)
        run_jobs()
        first = scrape()
        flaky.enqueue_many([{"number": number} for number in range(20)])
        run_jobs()
        assert_is([Phase(first, 20), Phase(scrape(), 3)], WORKS, WORKS)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_jobs_that_run_while_more_and_more_are_ready_lack_capacity() -> None:
    worker = register_worker()
    enqueue_old(5)
    claim_ready(worker, limit=2)
    first = scrape()
    enqueue_old(5)
    assert_is([Phase(first, 20), Phase(scrape(), 5)], LACK_OF_CAPACITY, LACK_OF_CAPACITY)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_jobs_that_run_while_fewer_and_fewer_are_ready_are_a_backlog() -> None:
    worker = register_worker()
    enqueue_old(50)
    claim_ready(worker, limit=2)
    first = scrape()
    claim_ready(worker, limit=20)
    assert_is([Phase(first, 20), Phase(scrape(), 5)], LACK_OF_CAPACITY, BACKLOG)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_a_paused_queue_is_neither() -> None:
    enqueue_old(5)
    job_operations.pause(["default"])
    assert_is([Phase(scrape(), 20)], PAUSED)


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_an_objective_burns_on_the_board_during_an_outage_as_in_jobstatus() -> None:
    Queue.objects.update(slo_seconds=60)
    enqueue_old(5)
    (objective,) = take_objectives()
    history = [Phase(scrape(), 20)]
    by_title = {panel["title"]: panel for panel in panels()}
    for title, value in (
        ("Burn rate", objective.hour.burn_rate),
        ("Jobs that started in time", objective.hour.ratio),
    ):
        assert value is not None
        query, *_ = queries(by_title[title])
        assert_values(history, query, {'{queue="default"}': value})


@needs_promtool
@pytest.mark.django_db(transaction=True)
def test_each_query_of_each_panel_has_data() -> None:
    run_sql("UPDATE django_jobs_queue SET slo_seconds = 60")
    noop.enqueue()
    run_jobs()
    before = scrape()
    make_everything()
    history = [Phase(before, 20), Phase(scrape(), 3)]
    wanted = [query for panel in panels() for query in queries(panel)]
    assert len(wanted) > 40
    assert_have_data(history, wanted)


EXPRESSION = re.compile(r"^\| ([^|]+) \| `((?:[^`|]|\\\|)+)` \|$", re.M)
OF_EXPRESSIONS = {
    "attempts per success": """
        SELECT count(*) FILTER (WHERE outcome <> 'released')::float8
            / count(*) FILTER (WHERE outcome = 'succeeded')
        FROM django_jobs_run WHERE id > %s""",
    "the share of failed attempts": """
        SELECT count(*) FILTER (WHERE outcome IN ('failed', 'timed_out', 'lost'))::float8 / count(*)
        FROM django_jobs_run WHERE id > %s""",
    "utilisation of the workers, as of their last heartbeats": """
        SELECT sum(jsonb_array_length(started_jobs))::float8 / sum(threads + async_slots)
        FROM django_jobs_worker WHERE id > %s""",
}
"""What an expression of the page shows after the run with this id, from the tables."""


def expressions() -> dict[str, str]:
    """Those of the page, by what they show."""
    table = section(page("reference/metrics.md"), "## Expressions")
    return {text: found.replace("\\|", "|") for text, found in EXPRESSION.findall(table)}


def end_attempts(worker: int, *outcomes: Outcome) -> None:
    """One attempt each. What they left for another attempt is deleted."""
    noop.enqueue_many([{}] * len(outcomes))
    for held, outcome in zip(claim_ready(worker), outcomes, strict=True):
        settle_one(held, outcome)
    fold_runs()
    run_sql("DELETE FROM django_jobs_job WHERE status IN ('ready', 'scheduled')")


@needs_promtool
@pytest.mark.usefixtures("_one_queue")
def test_the_expressions_of_the_page_have_the_numbers_of_the_tables() -> None:
    worker = register_worker(threads=5, async_slots=3)
    each = (
        Succeeded(),
        failure(),
        TimedOut(seconds=1),
        Lost(reason="SIGKILL"),
        Released(reason=""),
    )
    end_attempts(worker, *each)
    before = scrape()
    ((last,),) = run_sql("SELECT max(id) FROM django_jobs_run")
    end_attempts(worker, *each, *[Succeeded()] * 6, failure(), Released(reason=""))
    noop.enqueue_many([{}] * 4)
    held = claim_ready(worker)
    renew([worker], 30, loads={worker: Load(9, [(one.id, 0.1, None) for one in held[:3]])})
    history = [Phase(before, 60), Phase(scrape(), 3)]
    written, wanted = expressions(), []
    for text, sql in OF_EXPRESSIONS.items():
        ((value,),) = run_sql(sql, [last])
        assert 0 < value != 1, text
        wanted.append(f"abs({written[text]} - {value}) < 1e-9")
    assert_have_data(history, wanted)
