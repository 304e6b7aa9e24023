"""What a job's page tells of its runs, and of what it waits for."""

from __future__ import annotations

import re

import pytest

from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Lost
from django_jobs.lifecycle import operating, renewing
from django_jobs.models import Job, Run, Worker
from tests.app.jobs import add
from tests.factories import (
    boot_worker,
    enqueue_and_claim,
    failure,
    run_again,
    run_sql,
    settle_one,
)

from .walking import Page, change_url

pytestmark = pytest.mark.django_db


def test_the_timeline_tells_the_whole_story(page: Page) -> None:
    worker = boot_worker("carol")
    held = enqueue_and_claim(add, 1, worker=worker)
    error = ErrorReport(type="ValueError", message="first\nsecond", traceback="Traceback: here")
    settle_one(held, Failed(error=error))
    text = page.read(change_url(Job, held.id))
    assert "carol" in text
    assert "ValueError" in text
    assert "Traceback: here" in text
    assert "Next attempt in" in re.sub(r"<[^>]+>", "", text)
    run_again(held.id, worker, Lost(reason="SIGKILL"))
    run_again(held.id, worker, failure("the end", final=True))
    operating.replay([held.id], check=lambda job: None, reason="mended by <ada>")
    text = re.sub(r"<[^>]+>", "", page.text(change_url(Job, held.id))).partition("Timeline")[2]
    outcomes = [text.index(word) for word in ("failed", "lost", "the end", "mended by &lt;ada")]
    assert outcomes == sorted(outcomes)
    assert "Waits for a worker" in text


def test_the_timeline_says_who_runs_the_job_now(page: Page) -> None:
    held = enqueue_and_claim(worker=boot_worker("carol"))
    operating.cancel([held.id])
    text = " ".join(re.sub(r"<[^>]+>", "", page.read(change_url(Job, held.id))).split())
    assert f"Attempt 1 on carol #{held.worker} claimed" in text
    assert "It was asked to cancel." in text


def test_the_timeline_says_why_a_ready_job_does_not_run(page: Page) -> None:
    def told(worker: int | None = None) -> str:
        text = page.read(change_url(Job, job.pk))
        if worker is not None:
            renewing.end(worker)
        return text

    job = add.using(queue="bulk").enqueue(1)
    operating.pause(["bulk"])
    assert "Queue bulk is paused." in told()
    assert "No worker is alive." in told()
    assert "No live worker serves this queue." in told(boot_worker())
    stranger = boot_worker(queues=["bulk"], job_types={"app.noop": 1})
    boot_worker(queues=["default"])
    assert "No live worker of this queue knows this job type." in told(stranger)
    last = told(boot_worker(queues=["bulk"]))
    assert "No live worker" not in last
    assert "No worker" not in last


def test_the_timeline_says_that_a_payload_is_too_new_for_all_live_workers(page: Page) -> None:
    job = add.enqueue(1)
    Job.objects.update(payload_version=2)
    boot_worker("old")
    boot_worker("elsewhere", queues=["bulk"], job_types={"app.add": 2})
    told = "No live worker of this queue reads version 2 of its payload."
    assert told in page.read(change_url(Job, job.pk))
    new = boot_worker("new", job_types={"app.add": 2})
    assert told not in page.read(change_url(Job, job.pk))
    renewing.end(new)
    boot_worker("of 0.1.0")
    run_sql("UPDATE django_jobs_worker SET versions = NULL WHERE name = 'of 0.1.0'")
    assert told not in page.read(change_url(Job, job.pk))


def test_a_worker_whose_row_was_removed_is_named_by_its_number(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure())
    Worker.objects.all().delete()
    assert f"worker {held.worker} (removed)" in page.read(change_url(Job, held.id))
    page.text(change_url(Run, Run.objects.get().pk))


def test_only_the_latest_runs_are_shown_and_the_page_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobs.admin.timeline.MOST_RUNS", 2)
    job, worker = add.enqueue(1), boot_worker()
    for number in range(3):
        run_again(job.pk, worker, failure(f"failure number {number}"))
    text = page.read(change_url(Job, job.pk)).partition("Timeline")[2]
    assert "Only the latest" in text
    assert "failure number 0" not in text
    assert text.index("failure number 1") < text.index("failure number 2")
