"""Filters without an index search the newest rows of a table, and the list says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from django_jobs.admin.lists import change_list
from django_jobs.models import Schedule, Tick, WorkflowRun
from tests.factories import analyze, due_schedule, plan_nodes, rows_read, run_sql

from ..walking import Page, list_url

pytestmark = pytest.mark.django_db
NEWEST, ROWS = 200, 5_000
OTHERS = 4 * ROWS
"""Rows beside those of one name. If they were as many, a scan of all rows from the newest on, half
of which match, would cost about as much as the index of the names, and the planner take either."""


TICKS = """
INSERT INTO django_jobs_tick (schedule_id, due_at, outcome, reason, late_seconds, created_at)
SELECT %s, now() + n * interval '1 minute', CASE n WHEN 1 THEN 'skipped_late' ELSE 'fired' END, '',
    0, now() - (%s - n) * interval '1 hour'
FROM generate_series(1, %s) AS n
"""
RUNS = """
INSERT INTO django_jobs_workflowrun (name, status, payload, ends_left, started_at, finished_at)
SELECT %s, CASE n WHEN 1 THEN 'failed' ELSE 'succeeded' END, '{}', 0, now(), now()
FROM generate_series(1, %s) AS n
"""


@pytest.fixture
def newest_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_list, "NEWEST", 2)


def with_ticks(count: int, **fields: Any) -> Schedule:
    schedule = due_schedule(**fields)
    run_sql(TICKS, [schedule.pk, count, count])
    return schedule


def listed(page: Page, model: type[Model], **query: Any) -> tuple[int, str, str]:
    """How many rows the list has, its count as text, and what it says was searched."""
    rows = page.client.get(list_url(model), query).context["cl"]
    return len(rows.result_list), rows.count_text, " ".join(rows.filter_notes)


@pytest.mark.usefixtures("newest_two")
def test_the_newest_ticks_are_searched_by_outcome_and_the_list_says_so(page: Page) -> None:
    schedule = with_ticks(3)
    note = "Only the newest 2 ticks were searched."
    assert listed(page, Tick, outcome="skipped_late") == (0, "0+", note)
    assert listed(page, Tick, outcome="fired") == (2, "2+", note)
    assert listed(page, Tick) == (3, "3", "")
    of_schedule = {"schedule__id__exact": schedule.pk}
    with_ticks(3, name="other")
    note = "Only the newest 2 ticks of the schedule were searched."
    assert listed(page, Tick, outcome="fired", **of_schedule) == (2, "2+", note)
    assert listed(page, Tick, **of_schedule) == (3, "3", "")
    assert "Only the newest 2 ticks" in page.read(f"{list_url(Tick)}?outcome=fired")


@pytest.mark.usefixtures("newest_two")
def test_ticks_that_are_older_than_what_is_asked_for_are_no_loss(page: Page) -> None:
    with_ticks(5)
    assert listed(page, Tick, created="1h") == (1, "1", "")
    assert listed(page, Tick, created="24h")[1:] == ("2+", "Only the newest 2 ticks were searched.")
    assert listed(page, Tick, created="1h", outcome="fired") == (1, "1", "")


@pytest.mark.usefixtures("newest_two")
def test_the_newest_runs_are_searched_by_status_and_the_list_says_so(page: Page) -> None:
    run_sql(RUNS, ["rare", 2])
    run_sql(RUNS, ["often", 3])
    note = "Only the newest 2 workflow runs were searched."
    assert listed(page, WorkflowRun, status="failed") == (0, "0+", note)
    assert listed(page, WorkflowRun, status="failed", name="rare") == (1, "1", "")
    note = "Only the newest 2 runs of the workflow were searched."
    assert listed(page, WorkflowRun, status="succeeded", name="often") == (2, "2+", note)
    WorkflowRun.objects.filter(status="failed").update(status="running")
    assert listed(page, WorkflowRun, status="running") == (2, "2", "")
    assert listed(page, WorkflowRun, name="often") == (3, "3", "")


@contextmanager
def few_rows_of(table: str) -> Iterator[None]:
    """The statements inside the block read no more than the newest, each."""
    with CaptureQueriesContext(connection) as queries:
        yield
    read = [_rows_of(one["sql"], table) for one in queries if table in one["sql"]]
    assert 0 < max(read) < 2 * NEWEST


def _rows_of(sql: str, table: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.replace('%', '%%')}", [])
        (plan,) = cursor.fetchone()
    return sum(
        rows_read(one) * one["Actual Loops"]
        for one in plan_nodes(plan)
        if one.get("Relation Name") == table
    )


@pytest.mark.parametrize("query", [{"outcome": "skipped_overlap"}, {"created": "1h"}])
@pytest.mark.usefixtures("fresh_tables")
def test_the_plans_of_ticks_read_no_more_than_the_newest(
    page: Page, query: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_list, "NEWEST", NEWEST)
    schedule = with_ticks(ROWS)
    with_ticks(OTHERS, name="other")
    analyze("django_jobs_tick")
    with few_rows_of("django_jobs_tick"):
        page.client.get(list_url(Tick), query)
        page.client.get(list_url(Tick), {**query, "schedule__id__exact": schedule.pk})


@pytest.mark.usefixtures("fresh_tables")
def test_the_plans_of_runs_read_no_more_than_the_newest(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_list, "NEWEST", NEWEST)
    run_sql(RUNS, ["often", ROWS])
    run_sql(RUNS, ["other", OTHERS])
    analyze("django_jobs_workflowrun")
    with few_rows_of("django_jobs_workflowrun"):
        page.client.get(list_url(WorkflowRun), {"status": "failed"})
        page.client.get(list_url(WorkflowRun), {"status": "cancelled", "name": "often"})
