"""What a workflow run refuses of its steps is not offered on the pages."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from django_jobs.models import DeadLetter, Job, WorkflowRun
from tests.admin.walking import BROKEN_PAYLOADS, Page, change_url, message_of
from tests.admin.workflows.graphs import run_of, step
from tests.factories import run_sql

pytestmark = pytest.mark.django_db


def undone_run() -> tuple[WorkflowRun, Job, Job]:
    """A run with a failed compensation, its dead step, and that compensation."""
    run = run_of({"a": step("dead"), "undo a": step("dead", "a")}, status="failed")
    failed, undo = Job.objects.filter(workflow_run=run).order_by("pk")
    WorkflowRun.objects.update(compensations={"begun": undo.pk})
    return run, failed, undo


def test_a_dead_step_of_a_run_that_is_undone_offers_nothing_that_is_refused(page: Page) -> None:
    _, refused, undo = undone_run()
    text = page.read(change_url(Job, refused.pk))
    why = "the compensations of the workflow run have begun"
    assert f"It can be neither replayed, edited nor skipped: {why}." in text
    assert "It runs again only if it is replayed" not in text
    assert not re.findall(r'value="replay_jobs"|value="skip_steps"|/edit/"', text)
    assert 'value="dismiss_jobs"' in text
    edit = page.client.get(reverse("admin:django_jobs_job_edit", args=[refused.pk]))
    assert message_of(edit) == f"The job cannot be replayed: {why}."
    text = page.read(change_url(Job, undo.pk))
    assert "It can be neither" not in text
    assert len(re.findall(r'value="replay_jobs"|value="skip_steps"|/edit/"', text)) == 3


def test_a_dead_step_is_dismissed_once_its_run_has_ended(page: Page) -> None:
    run = run_of({"a": step("dead"), "b": step("ready"), "c": step("ready")})
    dead = Job.objects.dead().get(workflow_run=run)
    for url in (change_url(Job, dead.pk), change_url(WorkflowRun, run.pk)):
        assert 'value="dismiss_jobs"' not in page.read(url)
    assert "its workflow run has not ended" in page.act(Job, "dismiss_jobs", dead.pk)
    WorkflowRun.objects.update(status="failed", finished_at="2026-01-01T00:00Z")
    assert 'value="dismiss_jobs"' in page.read(change_url(Job, dead.pk))
    assert page.read(change_url(WorkflowRun, run.pk)).count('value="dismiss_jobs"') == 1
    assert page.act(Job, "dismiss_jobs", dead.pk) == "1 job was dismissed."
    assert not Job.objects.dead().exists()


def test_the_dead_steps_among_all_that_match_are_dismissed_if_their_runs_have_ended(
    page: Page,
) -> None:
    for status in ("running", "failed"):
        run_of({"a": step("dead")}, status=status)
    question = page.ask(DeadLetter, "dismiss_jobs", 0, select_across=1)
    assert 'value="Dismiss 1 job"' in question.rendered_content


def test_the_page_of_a_run_that_is_undone_retries_and_skips_compensations_alone(
    page: Page,
) -> None:
    run, _, undo = undone_run()
    text = page.read(change_url(WorkflowRun, run.pk))
    assert text.count('value="skip_steps"') == text.count('value="retry_workflow_runs"') == 1
    Job.objects.filter(pk=undo.pk).update(status="succeeded")
    assert 'value="retry_workflow_runs"' not in page.read(change_url(WorkflowRun, run.pk))


@pytest.mark.parametrize("stored", [*BROKEN_PAYLOADS.values(), '{"odd": 1}', "7"])
def test_a_step_whose_run_is_gone_or_cannot_be_read_still_has_a_page(
    page: Page, stored: str
) -> None:
    run = run_of({"a": step("dead")}, status="failed")
    job = Job.objects.get(workflow_run=run)
    run_sql("UPDATE django_jobs_workflowrun SET compensations = %s", [stored])
    assert 'value="replay_jobs"' in page.read(change_url(Job, job.pk))
    run.delete()
    text = page.read(change_url(Job, job.pk))
    assert "nor skipped: its workflow run does not exist." in text
    assert 'value="replay_jobs"' not in text
