"""Error messages and tracebacks need a permission, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.utils.http import urlencode

from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed
from django_jobs.lifecycle.operations import jobs as operations
from django_jobs.models import DeadLetter, Job, Overview, Run, WorkflowRun
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, settle_one

pytestmark = pytest.mark.django_db

SECRET = "customer 8231"
PASSWORD = "hunter2"
EVERYTHING = (
    *("view_job", "view_run", "view_job_payload", "replay_job", "view_workflowrun"),
    *("view_deadletter", "dismiss_job", "run_doctor"),
)


def fail(*, final: bool, **options: Any) -> Job:
    """A job whose error names a customer in message and traceback."""
    held = enqueue_and_claim(noop, **options)
    report = ErrorReport.plain("app.BankError", f"{SECRET} password={PASSWORD}\n{SECRET}")
    traceback = f"Traceback\n  {SECRET}\n  login(password='{PASSWORD}')"
    report = replace(report, code="404", traceback=traceback)
    settle_one(held, Failed(error=report, final=final))
    return Job.objects.get(pk=held.id)


@pytest.mark.parametrize("final", [True, False])
def test_no_page_shows_them_without_the_permission(
    page_of: Callable[..., Page], page: Page, final: bool
) -> None:
    job = fail(final=final)
    run = Run.objects.get(job=job)
    models = (Job, Run, DeadLetter) if final else (Job, Run)
    urls = [list_url(model) for model in models] + [
        change_url(Job, job.pk),
        change_url(Run, run.pk),
        *([change_url(DeadLetter, job.pk)] if final else ()),
    ]
    reader = page_of(*EVERYTHING)
    full = page_of(*EVERYTHING, "view_job_error", name="otto")
    for url in urls:
        text = reader.read(url)
        assert SECRET not in text, url
        assert "BankError" in text, url
    for url in (change_url(Job, job.pk), change_url(Run, run.pk)):
        assert "requires the permission to see error messages" in reader.read(url)
        assert full.read(url).count(SECRET) >= 2
        assert page.read(url).count(SECRET) >= 2
    assert SECRET in full.read(list_url(Job))


@pytest.mark.parametrize("final", [True, False])
def test_secrets_in_them_are_masked_for_all(page: Page, final: bool) -> None:
    job = fail(final=final)
    failure = urlencode({"type": job.job_type, "fingerprint": job.fingerprint})
    failures = "/admin/django_jobs/deadletter/failures/"
    its_pages = {
        change_url(DeadLetter if final else Job, job.pk),
        change_url(Run, Run.objects.get(job=job).pk),
        f"{failures}one/?{failure}",
    }
    lists = {list_url(model) for model in (Job, Run, DeadLetter, Overview)} | {failures}
    texts = {url: page.read(url) for url in its_pages | lists}
    operations.replay([job.pk], check=lambda job: None)
    texts["replayed"] = page.read(change_url(Job, job.pk))
    assert [url for url, text in texts.items() if PASSWORD in text] == []
    assert {url for url, text in texts.items() if "password=••••••" in text} > its_pages
    assert PASSWORD in Run.objects.get(job=job).traceback


def test_nothing_is_written_by_hiding(page_of: Callable[..., Page]) -> None:
    job = fail(final=True)
    page_of(*EVERYTHING).text(change_url(Job, job.pk))
    assert SECRET in Job.objects.get(pk=job.pk).last_error
    assert SECRET in Job.objects.get(pk=job.pk).reason


def test_what_a_replayed_job_had_died_of_is_hidden_in_its_headers(
    page_of: Callable[..., Page],
) -> None:
    job = fail(final=True)
    operations.replay([job.pk], check=lambda job: None, reason="once more")
    assert SECRET in Job.objects.get(pk=job.pk).headers["replays"][0]["died_of"]
    text = page_of(*EVERYTHING).read(change_url(Job, job.pk))
    assert SECRET not in text
    assert "once more" in text
    assert SECRET in page_of(*EVERYTHING, "view_job_error", name="otto").read(
        change_url(Job, job.pk)
    )


def test_confirming_an_action_shows_no_error(page_of: Callable[..., Page]) -> None:
    job = fail(final=True)
    asked = page_of(*EVERYTHING).ask(Job, "replay_jobs", job.pk)
    assert asked.status_code == 200
    assert SECRET not in asked.content.decode()


def test_a_job_without_an_error_is_shown_as_before(page_of: Callable[..., Page]) -> None:
    job = noop.enqueue()
    text = page_of("view_job").read(change_url(Job, job.pk))
    assert "requires the permission to see error" not in text
    operations.cancel([job.pk], reason="not needed: at all")
    assert "not needed: at all" in page_of("view_job", name="otto").read(change_url(Job, job.pk))


def test_the_picture_of_a_workflow_has_the_class_of_an_error_alone(
    page_of: Callable[..., Page],
) -> None:
    from django_jobs import chain

    run = chain(noop.step(), noop.step()).start()
    step = run.steps.order_by("pk").first()
    from tests.factories import claim_ready, register_worker

    (held,) = claim_ready(register_worker())
    assert held.id == step.pk
    report = ErrorReport.plain("app.BankError", f"{SECRET} has no account")
    settle_one(held, Failed(error=report, final=True))
    assert SECRET in Job.objects.get(pk=step.pk).reason
    text = page_of(*EVERYTHING).read(change_url(WorkflowRun, run.pk))
    assert SECRET not in text
    assert "BankError" in text
