"""The page of an operation says how far it is, how the replayed jobs ended, and where they are."""

from __future__ import annotations

import html

import pytest
from django.urls import reverse

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.lifecycle.operations import bulk, dead_letters
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.maintenance import bulk_operations
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, Job
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import add, noop
from tests.factories import claim_ready, failure, make_dead, register_worker, run_sql, settle_one

pytestmark = pytest.mark.django_db


def go_on(times: int = 4) -> None:
    for _ in range(times):
        BulkOperation.objects.update(next_at="2026-01-01T00:00:00Z")
        run_chunk()


def run_jobs(*failing: int) -> None:
    for held in claim_ready(register_worker()):
        settle_one(held, failure(final=True) if held.id in failing else Succeeded())


def shown(page: Page, operation: BulkOperation) -> str:
    return " ".join(page.read(change_url(BulkOperation, operation.pk)).split())


@pytest.mark.parametrize("plan", [None, ReplayPlan(most_failed=100)], ids=["at once", "by plan"])
def test_a_replay_whose_jobs_all_failed_again_says_so(page: Page, plan: ReplayPlan | None) -> None:
    dead = make_dead()
    operation = bulk.start("replay", {"status": "dead"}, plan=plan)
    go_on()
    text = shown(page, operation)
    assert "1 job was sent back to its queue. 0 succeeded, 0 failed again, 1 has not ended" in text
    run_jobs(dead.pk)
    go_on()
    text = shown(page, operation)
    assert "1 job done. 0 succeeded, 1 failed again." in text
    assert "completed, 1 failed again" in text
    assert "jobs-completed" not in text
    assert "100%" not in text
    assert "completed, 1 failed again" in page.read(list_url(BulkOperation))


def test_a_replay_whose_jobs_succeeded_says_so(page: Page) -> None:
    make_dead()
    operation = bulk.start("replay", {"status": "dead"})
    go_on()
    run_jobs()
    go_on()
    text = shown(page, operation)
    assert "1 job done. 1 succeeded, 0 failed again." in text
    assert "jobs-completed" in text


def test_a_replay_whose_job_was_cancelled_says_so(page: Page) -> None:
    dead = make_dead()
    operation = bulk.start("replay", {"status": "dead"})
    go_on()
    job_operations.cancel([dead.pk])
    go_on()
    text = shown(page, operation)
    assert "1 job done. 0 succeeded, 0 failed again, 1 was cancelled." in text
    assert "<dt>cancelled</dt><dd>1</dd>" in text


def test_outcomes_that_nobody_awaits_are_not_known(page: Page) -> None:
    make_dead()
    operation = bulk.start("replay", {"status": "dead"})
    go_on()
    bulk.stop([operation.pk], by="ada")
    go_on()
    text = shown(page, operation)
    assert "Stopped after 1 job: stopped by ada." in text
    assert "0 succeeded, 0 failed again, the outcome of 1 is not known." in text


def test_a_page_counts_what_is_done_skipped_and_not_yet_done(page: Page) -> None:
    noop.enqueue()
    operation = bulk.start("cancel", {"queue": "default"})
    run_chunk()
    run_sql(
        "UPDATE django_jobs_bulkoperation"
        " SET status = 'running', matched = 9, done = 4, \"left\" = 2"
    )
    text = shown(page, operation)
    for label, number in (("done", 4), ("not yet done", 3), ("skipped", 2)):
        assert f"<dt>{label}</dt><dd>{number}</dd>" in text
    assert "<dt>left</dt>" not in text
    assert "succeeded" not in text


def test_a_continued_operation_says_what_no_longer_matched_and_leaves_out_the_stop(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "CHUNK", 10)
    noop.enqueue_many({} for _ in range(30))
    operation = bulk.start("cancel", {"queue": "default"})
    go_on(1)
    bulk.stop([operation.pk], by="ada")
    go_on(1)
    run_sql("UPDATE django_jobs_job SET queue = 'bulk' WHERE id IN (SELECT max(id) FROM"
            " django_jobs_job_live WHERE status = 'ready')")  # fmt: skip
    run_sql("UPDATE django_jobs_bulkoperation SET started_at = now() - interval '90 h',"
            " finished_at = now() - interval '30 h'")  # fmt: skip
    assert "<dt>not yet done</dt><dd>20</dd>" in shown(page, operation)
    bulk.resume([operation.pk], by="ada")
    go_on(1)
    text = shown(page, operation)
    assert "20 of about 30 jobs. About 1 d 6 h left." in text
    assert "no longer matched" not in text
    go_on()
    text = shown(page, operation)
    assert "Completed in 2 d 12 h" in text
    assert "29 jobs done. At least 1 other job no longer matched." in text
    assert "<dt>no longer matched, at least</dt><dd>1</dd>" in text


def test_a_replay_that_awaits_outcomes_says_what_no_longer_matched(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "REPLAYED", 1)
    make_dead()
    other = make_dead(add, 1)
    operation = bulk.start("replay", {"status": "dead"})
    go_on(1)
    dead_letters.dismiss([other.pk])
    assert "<dt>not yet done</dt><dd>1</dd>" in shown(page, operation)
    go_on(1)
    text = shown(page, operation)
    assert (
        "1 job was sent back to its queue. At least 1 other job no longer matched. 0 succeeded,"
    ) in text
    assert "not yet done" not in text
    assert "<strong>100%</strong>" in text


def test_a_page_links_the_jobs_that_failed_again_and_their_failure(page: Page) -> None:
    dead, other = make_dead(add, 1), make_dead(noop)
    operation = bulk.start("replay", {"ids": [dead.pk, other.pk]})
    go_on()
    assert "Jobs that failed again" not in shown(page, operation)
    run_jobs(dead.pk)
    go_on()
    text = shown(page, operation)
    jobs = f"{list_url(Job)}?q={dead.pk}"
    failed = Job.objects.get(pk=dead.pk)
    failure_of = reverse("admin:django_jobs_failure_group")
    failure_of += f"?type=app.add&fingerprint={failed.fingerprint}"
    assert f'<a href="{jobs}">Jobs that failed again</a>' in text
    assert f'<a href="{failure_of}">The failure of app.add</a>' in text
    assert change_url(Job, dead.pk) in page.read(jobs)
    assert "1 dead." in page.read(failure_of)


@pytest.mark.parametrize("terms", [{}, {"job_type": "app.noop"}])
def test_a_page_links_the_failure_that_is_replayed(page: Page, terms: dict[str, str]) -> None:
    dead = make_dead()
    operation = bulk.start("replay", {"error": dead.fingerprint, **terms})
    text = shown(page, operation)
    (address,) = (part.split('"')[0] for part in text.split('href="') if ">The failure<" in part)
    assert "Not understood" not in page.read(html.unescape(address))
    assert "ValueError: boom" in page.read(html.unescape(address))
