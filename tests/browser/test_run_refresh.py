"""Pages that keep themselves fresh."""

from __future__ import annotations

from django.db.models.functions import Now

from django_jobs.models import Job, WorkflowRun
from tests.admin.walking import change_url

from .visitor import Visitor


def test_a_run_shows_what_its_steps_do_until_it_has_ended(visitor: Visitor) -> None:
    run = WorkflowRun.objects.filter(status="running").latest("pk")
    visitor.visit(change_url(WorkflowRun, run.pk))
    page = visitor.page
    step = Job.objects.filter(workflow_run=run, status="ready").earliest("pk")
    buttons = page.locator(f"button[form=skip_steps-{step.pk}], form#skip_steps-{step.pk}")
    assert buttons.count() == 2
    assert page.locator(".jobs-now-facts").count() == 0
    Job.objects.filter(pk=step.pk).update(status="dead")
    page.wait_for_selector(f".jobs-now-facts >> text={step.step}")
    assert buttons.count() == 2
    WorkflowRun.objects.filter(pk=run.pk).update(
        status="failed", reason="out of stock", finished_at=Now()
    )
    page.wait_for_selector("text=out of stock")
    assert not page.locator("[data-refresh]").is_visible()
