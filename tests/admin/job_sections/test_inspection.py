"""The stack of a running job, on its page."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs.lifecycle import progress, workers
from django_jobs.lifecycle.operations import inspections as operations
from django_jobs.models import Job
from tests.admin.walking import Page, change_url
from tests.factories import enqueue_and_claim, run_sql

pytestmark = pytest.mark.django_db


def answered(stack: str) -> int:
    held = enqueue_and_claim()
    operations.ask([held.id])
    (question,) = progress.asked([held.worker])
    progress.record(question, process=4711, thread="django_jobs-3", ran=75.0, stack=stack)
    return held.id


def test_the_answer_is_shown_escaped(page: Page) -> None:
    text = page.text(change_url(Job, answered('File "<b>", in handler')))
    assert "Process 4711, django_jobs-3, running for 1 min 15 s" in text
    assert "File &quot;&lt;b&gt;&quot;, in handler" in text


def test_after_an_hour_the_answer_is_no_longer_shown(page: Page) -> None:
    job = answered("in handler")
    run_sql("UPDATE django_jobs_inspection SET asked_at = now() - interval '59 minutes'")
    assert "in handler" in page.text(change_url(Job, job))
    run_sql("UPDATE django_jobs_inspection SET asked_at = now() - interval '61 minutes'")
    assert "in handler" not in page.text(change_url(Job, job))


def test_without_an_answer_the_page_says_why(page: Page) -> None:
    held = enqueue_and_claim()
    assert "Stack of attempt" not in page.text(change_url(Job, held.id))
    operations.ask([held.id])
    assert "its worker renews its lease" in page.text(change_url(Job, held.id))
    workers.end(held.worker)
    assert "its worker has ended" in page.text(change_url(Job, held.id))


def test_the_stack_needs_its_permission(page_of: Callable[..., Page]) -> None:
    url = change_url(Job, answered("in handler"))
    assert "in handler" not in page_of("view_job").text(url)
    assert "in handler" in page_of("view_job", "inspect_job", name="rita").text(url)
