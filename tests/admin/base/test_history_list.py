"""A list with a filter reads the newest rows of each part, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.admin.base import history_list
from django_jobs.admin.base.model_admin import CappedPaginator
from django_jobs.models import Job, Run
from django_jobs.testing import run_jobs
from tests.app.jobs import add, noop
from tests.factories import analyze, make_dead, plan_nodes, rows_read, run_sql

from ..walking import Page, list_url

pytestmark = pytest.mark.django_db

ENDED = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, max_attempts, max_crashes, finished_at, headers, created_at)
SELECT 'default', 'app.noop', '{}', 1, status, 0, 0, now(), 5, 3,
    CASE status WHEN 'succeeded' THEN now() END, '{}', now()
FROM unnest(ARRAY['succeeded', 'scheduled', 'ready']) AS status, generate_series(1, %s)
"""


@pytest.fixture
def newest_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_list, "NEWEST", 2)


def listed(page: Page, model: Any = Job, **query: str) -> tuple[list[int], str]:
    """The ids in a list, and what the page says about what was searched."""
    response = page.client.get(list_url(model), query)
    rows = [row.pk for row in response.context["cl"].result_list]
    text = " ".join(response.content.decode().split())
    return rows, text.partition('<p class="jobs-capped">')[2].partition("</div>")[0]


@pytest.mark.usefixtures("newest_two")
def test_the_newest_of_each_part_are_searched_and_the_list_says_of_which(page: Page) -> None:
    dead = make_dead(add, 0).pk
    first, second, third = (add.enqueue(n).pk for n in range(3))
    rows, note = listed(page, job_type="app.add")
    assert rows == [third, second, dead]
    assert "Of the jobs that are ready, only those among the newest 2 were searched." in note
    assert "choose the day" not in note
    assert first not in rows
    run_jobs()
    rows, note = listed(page, job_type="app.add")
    assert rows == [third, second, dead]
    assert "Of the jobs that are succeeded or cancelled, only those among the newest 2" in note
    assert "To search older ones, choose the day on which they finished." in note


@pytest.mark.usefixtures("newest_two")
def test_a_few_old_jobs_are_found_below_many_of_another_part(page: Page) -> None:
    dead = make_dead(add, 0).pk
    rare = add.using(queue="bulk").enqueue(1).pk
    noop.enqueue_many([{}] * 3)
    noop.using(delay=60).enqueue_many([{}] * 3)
    assert listed(page, queue="bulk")[0] == [rare]
    assert listed(page, job_type="app.add", status="dead") == ([dead], "")
    assert listed(page, queue="bulk", status="ready") == ([rare], "")
    assert listed(page, tenant="none")[0] == []


@pytest.mark.usefixtures("newest_two")
def test_a_count_of_the_newest_ends_with_a_plus_and_an_action_reaches_all(page: Page) -> None:
    jobs = [add.enqueue(n).pk for n in range(4)]
    response = page.client.get(list_url(Job), {"job_type": "app.add"})
    assert response.context["cl"].count_text == "2+"
    assert "Cancel all 2+ that match" in " ".join(response.content.decode().split())
    chosen = {"action": "cancel_jobs", "select_across": "1", "_selected_action": "0"}
    question = page.client.post(f"{list_url(Job)}?job_type=app.add", chosen)
    assert question.context["count"] == len(jobs)


@pytest.mark.usefixtures("newest_two")
def test_without_a_filter_and_by_a_status_alone_all_live_jobs_are_listed(page: Page) -> None:
    jobs = [add.enqueue(n).pk for n in range(4)]
    for query in ({}, {"status": "ready"}):
        assert listed(page, **query) == (jobs[::-1], "")


@pytest.mark.usefixtures("newest_two")
def test_runs_are_read_alike(page: Page) -> None:
    for number in range(3):
        add.enqueue(number)
    run_jobs()
    runs = sorted(Run.objects.values_list("pk", flat=True), reverse=True)
    rows, note = listed(page, Run, outcome="succeeded")
    assert rows == runs[:2]
    assert "Of the runs that are finished, only those among the newest 2 were searched." in note
    assert listed(page, Run) == (runs, "")


def test_pages_are_cut_from_what_was_found(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_list.HistoryAdmin, "list_per_page", 2)
    monkeypatch.setattr(history_list.HistoryList, "list_max_show_all", 2, raising=False)
    monkeypatch.setattr(history_list.HistoryAdmin, "list_max_show_all", 2)
    jobs = [add.enqueue(n).pk for n in range(5)][::-1]
    noop.enqueue()
    pages = [listed(page, job_type="app.add", p=str(number))[0] for number in (1, 2, 3)]
    assert pages == [jobs[:2], jobs[2:4], jobs[4:]]
    monkeypatch.setattr(CappedPaginator, "cap", 3)
    last, text = listed(page, job_type="app.add", p="2")
    assert last == [jobs[2]]
    assert "There are more than 3." in text


def test_a_search_is_cut_into_pages_of_what_was_found(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_list.HistoryAdmin, "list_per_page", 2)
    jobs = [add.enqueue(n).pk for n in range(5)][::-1]
    noop.enqueue()
    pages = [listed(page, q="type:app.add", p=str(number))[0] for number in (1, 2, 3)]
    assert pages == [jobs[:2], jobs[2:4], jobs[4:]]
    assert listed(page, q="type:app.add", all="")[0] == jobs


def plans(page: Page, query: dict[str, str]) -> Iterator[list[dict[str, Any]]]:
    """The nodes of each statement of a list that reads jobs, the topmost first."""
    with CaptureQueriesContext(connection) as queries:
        page.client.get(list_url(Job), query)
    for sql in (one["sql"] for one in queries if "django_jobs_job" in one["sql"]):
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.replace('%', '%%')}", [])
            (plan,) = cursor.fetchone()
        yield plan_nodes(plan)


@pytest.mark.parametrize(
    "query", [{"job_type": "none"}, {"queue": "none"}, {"tenant": "none"}, {"status": "cancelled"}]
)
@pytest.mark.usefixtures("fresh_tables")
def test_the_plans_read_no_more_than_the_newest_of_each_part(
    page: Page, query: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, rows = 200, 5_000
    monkeypatch.setattr(history_list, "NEWEST", newest)
    run_sql(ENDED, [rows])
    analyze("django_jobs_job")
    read = 0.0
    for nodes in plans(page, query):
        scans = [one for one in nodes if one.get("Relation Name", "").startswith("django_jobs_job")]
        read += sum(rows_read(one) * one["Actual Loops"] for one in scans)
    assert 0 < read < 12 * newest


@pytest.mark.usefixtures("fresh_tables")
def test_of_all_parts_together_no_more_is_sent_than_the_list_counts(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 60
    monkeypatch.setattr(CappedPaginator, "cap", most)
    run_sql(ENDED, [1_000])
    analyze("django_jobs_job")
    sent = [nodes[0]["Actual Rows"] for nodes in plans(page, {"job_type": "app.noop"})]
    assert max(sent) == most + 1
