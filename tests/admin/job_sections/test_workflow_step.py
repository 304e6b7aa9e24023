"""What the page of a job shows of the workflow that it is a step of."""

from __future__ import annotations

import pytest

from django_jobs.models import Job, WorkflowRun
from tests.admin.walking import Page, change_url
from tests.admin.workflows.graphs import order, run_of, step
from tests.factories import run_sql
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db


def page_of_step(page: Page, run: WorkflowRun, name: str) -> str:
    job = Job.objects.get(workflow_run=run, step=name)
    return " ".join(page.read(change_url(Job, job.pk)).split())


def test_the_page_of_a_step_links_to_its_run(page: Page) -> None:
    run = order()
    text = page_of_step(page, run, "charge_card")
    link = f'<a href="{change_url(WorkflowRun, run.pk)}">orders.fulfil #{run.pk}</a>'
    assert f"{link}, step charge_card" in text
    assert "a step before it failed" in page_of_step(page, run, "ship_order")


def test_the_page_of_a_waiting_step_names_what_it_waits_for(page: Page) -> None:
    run = start_graph({"a": "", "b": "", "c": "a *b"})
    first = Job.objects.get(workflow_run=run, step="a")
    text = page_of_step(page, run, "c")
    link = f'<a href="{change_url(Job, first.pk)}">a</a>'
    assert f"Waits for the steps {link} (ready), " in text
    assert "b</a> (ready, has to be finished)" in text


def test_few_of_many_steps_before_are_named(page: Page) -> None:
    run = start_graph({**dict.fromkeys("abcdefg", ""), "last": "a b c d e f g"})
    assert "and more" in page_of_step(page, run, "last")


def test_the_page_of_a_job_that_waits_for_a_signal_names_it(page: Page) -> None:
    run = run_of({"approval": step("waiting", awaits="approved")})
    assert "Waits for the signal approved." in page_of_step(page, run, "approval")


def test_a_step_whose_run_was_deleted_is_still_shown(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    run_sql("DELETE FROM django_jobs_workflowrun")
    assert f"workflow run {run.pk} (deleted)" in page_of_step(page, run, "b")
