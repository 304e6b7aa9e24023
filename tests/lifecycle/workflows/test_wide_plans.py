"""The statements of one wide run read each of its rows a few times, whatever the statistics say."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.workflows import Fate
from django_jobs.lifecycle import opening
from django_jobs.lifecycle.job_columns import as_array
from django_jobs.lifecycle.opening import EndedStep, open_next
from django_jobs.lifecycle.workflows import restarting
from django_jobs.models import Job
from tests.factories import analyze, explain, rows_read, run_sql
from tests.workflows import start_graph

WIDTH = 600
MOST = 20 * WIDTH
"""A join from end to end takes 300,000."""
TABLES = "django_jobs_job", "django_jobs_dependency"
DOWN = {
    "opening.COUNT_DOWN": opening.COUNT_DOWN,
    "opening.COUNT_DOWN_ASKED": opening.COUNT_DOWN_ASKED,
    "opening.COUNT_DOWN_MET": opening.COUNT_DOWN_MET,
}
UP = {
    "restarting.BRING_BACK": restarting.BRING_BACK,
    "restarting.BROKEN": restarting.BROKEN,
    "restarting.COUNT_UP": restarting.COUNT_UP,
    "restarting.COUNT_AGAIN": restarting.COUNT_AGAIN,
}

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh_tables")]


@pytest.fixture(params=["older than the run", "of the run alone"])
def steps(request: pytest.FixtureRequest) -> list[Job]:
    """The steps of a run: one, many after it, and one after all of these."""
    members = {f"member-{number}": "first" for number in range(WIDTH)}
    analyze(*TABLES)
    run = start_graph({"first": "", **members, "then": " ".join(members)})
    if request.param == "of the run alone":
        analyze(*TABLES)
    return list(Job.objects.filter(workflow_run=run).order_by("pk"))


@pytest.mark.parametrize("name", DOWN)
@pytest.mark.parametrize("ended", [slice(1), slice(1, WIDTH + 1)], ids=["first", "members"])
def test_what_comes_after_a_step_is_counted_down(steps: list[Job], name: str, ended: slice) -> None:
    ids = [job.pk for job in steps[ended]]
    fate = "succeeded" if name == "opening.COUNT_DOWN_MET" else "failed"
    parameters = {
        "ids": as_array(ids),
        "runs": as_array([steps[0].workflow_run_id] * len(ids)),
        "fates": as_array([fate] * len(ids)),
    }
    assert most_rows(DOWN[name], parameters) <= MOST
    # Whether the planner takes nested loops may depend on the pages that deleted rows left.
    run_sql("SET LOCAL enable_hashjoin = off")
    run_sql("SET LOCAL enable_mergejoin = off")
    assert most_rows(DOWN[name], parameters) <= MOST


def test_what_can_no_longer_start_is_skipped(steps: list[Job]) -> None:
    members = steps[1:-1]
    parameters = {
        "ids": as_array(job.pk for job in members),
        "failed": as_array(True for _ in members),
        "parents": as_array(steps[0].pk for _ in members),
    }
    assert most_rows(opening.SKIP, parameters) <= MOST


@pytest.mark.parametrize("name", UP)
def test_what_was_skipped_comes_back(steps: list[Job], name: str) -> None:
    first, *others = steps
    run_sql(
        "UPDATE django_jobs_job SET status = 'dead', finished_at = now() WHERE id = %s", [first.pk]
    )
    assert first.workflow_run_id is not None
    open_next([EndedStep(first.pk, first.workflow_run_id, Fate.FAILED)])
    assert Job.objects.filter(skipped="failed").count() == len(others)
    if name != "restarting.BRING_BACK":
        run_sql("UPDATE django_jobs_job SET status = 'waiting', prerequisites = 1")
    parameters = {"ids": [job.pk for job in others], "run": first.workflow_run_id}
    assert most_rows(UP[name], parameters) <= MOST


def most_rows(sql: str, parameters: dict[str, Any]) -> float:
    """The rows that a part of the plan reads, or leaves out, in all its loops."""
    return max(
        node["Actual Loops"] * (rows_read(node) + node.get("Rows Removed by Join Filter", 0))
        for node in explain(sql, parameters)
    )
