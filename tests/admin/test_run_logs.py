"""The log and the error of a run, on its page."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Run
from tests.factories import enqueue_and_claim, failure, settle_one

from .walking import Page, change_url

pytestmark = pytest.mark.django_db


def run_with(log: str | None) -> str:
    job, now = enqueue_and_claim(), time.monotonic()
    settle([Ending(job, Succeeded(), now - 2, now, log=log)])
    return change_url(Run, Run.objects.get(job_id=job.id).pk)


def test_the_lines_are_shown_escaped(page: Page) -> None:
    assert "INFO shop: &lt;b&gt; ordered" in page.text(run_with("INFO shop: <b> ordered"))


def test_a_run_without_lines_has_no_section(page: Page) -> None:
    assert ">Log<" not in page.text(run_with(None))


def test_a_run_without_an_error_has_no_section_of_it(page: Page) -> None:
    assert "Fingerprint:" not in page.text(run_with(None))
    held = enqueue_and_claim()
    settle_one(held, failure())
    assert "Fingerprint:" in page.text(change_url(Run, Run.objects.get(job_id=held.id).pk))


def test_the_lines_need_the_permissions_to_see_payloads_and_errors(
    page_of: Callable[..., Page],
) -> None:
    url = run_with("INFO shop: ordered")
    both = ("view_job_payload", "view_job_error")
    for name, missing in (("ada", both), ("otto", both[:1]), ("rita", both[1:])):
        rights = sorted({"view_run", *both}.difference(missing))
        shown = page_of(*rights, name=name).text(url)
        assert "ordered" not in shown
        assert "Hidden: requires the permission" in shown
    assert "ordered" in page_of("view_run", *both, name="maria").text(url)
