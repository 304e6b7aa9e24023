"""What a job's page tells of its runs, and of what it waits for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Lost
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.models import Job, Quarantine, Resource, Run, Tenant, Worker
from tests.admin.walking import Live, Page, change_url, list_url
from tests.app.gate_jobs import transfer_funds
from tests.app.jobs import add
from tests.factories import (
    copies_of,
    enqueue_and_claim,
    failure,
    register_worker,
    run_again,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db


def test_the_timeline_shows_all_runs_and_replays(page: Page) -> None:
    worker = register_worker("carol")
    held = enqueue_and_claim(add, 1, worker=worker)
    error = ErrorReport(type="ValueError", message="first\nsecond", traceback="Traceback: here")
    settle_one(held, Failed(error=error))
    text = page.read(change_url(Job, held.id))
    assert "carol" in text
    assert "ValueError" in text
    assert "Traceback: here" in text
    assert "Failed 1 of 5 times; runs again in" in re.sub(r"<[^>]+>", "", text)
    run_again(held.id, worker, Lost(reason="SIGKILL"))
    run_again(held.id, worker, failure("the end", final=True))
    job_operations.replay([held.id], check=lambda job: None, reason="mended by <ada>")
    text = re.sub(r"<[^>]+>", "", page.text(change_url(Job, held.id)))
    assert "Waits for a worker" in text
    text = text.partition("the oldest first")[2]
    outcomes = [text.index(word) for word in ("failed", "lost", "the end", "mended by &lt;ada")]
    assert outcomes == sorted(outcomes)


def test_the_code_of_an_error_is_on_the_pages_of_the_job_and_of_the_run(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, Failed(error=ErrorReport(type="HTTPError", message="", code="503")))
    assert "HTTPError [503]" in page.read(change_url(Job, held.id))
    assert "503" in page.read(change_url(Run, Run.objects.get().pk))
    assert "HTTPError [503]" in page.read(list_url(Run))


def test_the_timeline_names_the_current_worker(page: Page) -> None:
    held = enqueue_and_claim(worker=register_worker("carol"))
    job_operations.cancel([held.id])
    text = " ".join(re.sub(r"<[^>]+>", "", page.read(change_url(Job, held.id))).split())
    assert re.search(rf"Runs for [0-9.]+ m?s on carol #{held.worker}, without a time limit", text)
    assert "Its cancellation was requested." in text


def test_the_timeline_says_why_a_ready_job_does_not_run(page: Page) -> None:
    def hints(worker: int | None = None) -> str:
        text = page.read(change_url(Job, job.pk))
        if worker is not None:
            workers.end(worker)
        return text

    job = add.using(queue="bulk").enqueue(1)
    job_operations.pause(["bulk"])
    assert "Queue bulk is paused." in hints()
    assert "No worker is alive." in hints()
    assert "No live worker serves this queue." in hints(register_worker())
    stranger = register_worker(queues=["bulk"], job_types={"app.noop": 1})
    register_worker(queues=["default"])
    assert "No live worker of this queue knows this job type." in hints(stranger)
    last = hints(register_worker(queues=["bulk"]))
    assert "No live worker" not in last
    assert "No worker" not in last


def test_the_timeline_says_that_a_payload_is_too_new_for_all_live_workers(page: Page) -> None:
    job = add.enqueue(1)
    Job.objects.update(payload_version=2)
    register_worker("old")
    register_worker("elsewhere", queues=["bulk"], job_types={"app.add": 2})
    hints = "No live worker of this queue reads version 2 of its payload."
    assert hints in page.read(change_url(Job, job.pk))
    new = register_worker("new", job_types={"app.add": 2})
    assert hints not in page.read(change_url(Job, job.pk))
    workers.end(new)
    register_worker("of 0.1.0")
    run_sql("UPDATE django_jobs_worker SET payload_versions = NULL WHERE name = 'of 0.1.0'")
    assert hints not in page.read(change_url(Job, job.pk))


def test_a_deleted_worker_is_named_by_its_number(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure())
    Worker.objects.all().delete()
    assert f"worker {held.worker} (deleted)" in page.read(change_url(Job, held.id))
    page.text(change_url(Run, Run.objects.get().pk))


def held_job(reason: str = "", by: str = "") -> Job:
    """A job that a quarantine holds."""
    job = add.enqueue(1)
    quarantines.quarantine("app.add", reason=reason, by=by)
    quarantines.block("default")
    return job


def shown(text: str) -> str:
    """A page's text from its head on, without tags and line breaks."""
    return " ".join(re.sub(r"<[^>]+>", "", text.partition("jobs-title")[2]).split())


def test_the_timeline_names_the_quarantine_of_a_blocked_job(page: Page) -> None:
    job = held_job(reason="eats memory", by="ada")
    text = page.read(change_url(Job, job.pk))
    wanted = r"Blocked: its job type is quarantined since [^()]+ \([^()]+ ago\) by ada: eats memory"
    assert re.search(wanted, shown(text))
    row = Quarantine.objects.get()
    assert f'<a href="{change_url(Quarantine, row.pk)}">quarantined</a>' in text
    assert "limit" not in shown(text)
    assert shown(text).count("quarantined") == 1
    run_sql("UPDATE django_jobs_quarantine SET by = '', reason = ''")
    assert re.search(r"ago\) by a worker [^:]", shown(page.read(change_url(Job, job.pk))))


@pytest.mark.parametrize(
    "permissions, linked",
    [((), False), (("view_quarantine",), True), (("quarantine_job_type",), True)],
)
def test_a_quarantine_is_linked_only_with_permission(
    page_of: Callable[..., Page], permissions: tuple[str, ...], linked: bool
) -> None:
    job = held_job()
    page, there = page_of("view_job", *permissions), change_url(Quarantine, 1).rpartition("1")[0]
    text = page.read(change_url(Job, job.pk)).partition("jobs-title")[2]
    assert "Blocked: its job type is quarantined since" in shown(f"jobs-title{text}")
    assert (f'<a href="{there.removesuffix("change/")[:-1]}' in text) is linked


def test_a_ready_job_of_a_quarantined_type_is_shown_as_blocked_soon(page: Page) -> None:
    job = add.enqueue(1)
    quarantines.quarantine("app.add", seconds=0)
    soon = "Its job type is quarantined; a worker blocks it within seconds."
    assert soon in shown(page.read(change_url(Job, job.pk)))
    quarantines.lift("app.add")
    assert soon not in shown(page.read(change_url(Job, job.pk)))


def test_a_job_still_blocked_after_a_lift_is_shown_as_ready_soon(page: Page) -> None:
    job = held_job()
    soon = "Blocked; its quarantine was lifted, and a worker makes it ready within seconds."
    run_sql("UPDATE django_jobs_quarantine SET lifted_at = now()")
    assert soon in shown(page.read(change_url(Job, job.pk)))
    Quarantine.objects.all().delete()
    assert soon in shown(page.read(change_url(Job, job.pk)))


def test_a_job_blocked_by_no_quarantine_is_not_shown_as_quarantined(page: Page) -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET status = 'blocked', reason = 'of its queue'")
    hints = "Waits: its turn of its queue"
    assert hints in shown(page.read(change_url(Job, job.pk)))


def test_the_page_of_a_blocked_job_shows_its_gates_and_what_holds_it(page: Page) -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    Resource.objects.create(name="ledger")
    job = transfer_funds.enqueue(7, "acme")
    copies_of(job)
    limits.pause_tenants(["acme"], reason="unpaid <b>twice</b>")
    text = page.text(change_url(Job, job.pk))
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Tenant: acme Concurrency key: account:7:EUR Resources: ledger , stripe" in words
    assert f'<a href="{change_url(Tenant, Tenant.objects.get().pk)}">acme</a>' in text
    assert "Waits: the tenant acme is paused: unpaid &lt;b&gt;twice" in words
    assert "the resource stripe (1 of 1 taken)" in words
    assert not Live(text).alarms


def test_a_job_without_gates_shows_none(page: Page) -> None:
    assert "Concurrency key" not in page.read(change_url(Job, add.enqueue(1).pk))


def test_markup_in_a_quarantine_is_shown_and_not_run(page: Page) -> None:
    evil = "<script>alert(1)</script>{}<img src=x onerror=alert(1)>"
    job = held_job(reason=evil, by=evil)
    text = page.text(change_url(Job, job.pk))
    assert Live(text).alarms == []
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;{}&lt;img") == 2


def test_only_the_latest_runs_are_shown_and_the_page_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobs.admin.job_sections.timeline.MOST_RUNS", 2)
    job, worker = add.enqueue(1), register_worker()
    for number in range(3):
        run_again(job.pk, worker, failure(f"failure number {number}"))
    text = page.read(change_url(Job, job.pk)).partition("Timeline")[2]
    assert "Only the latest" in text
    assert "failure number 0" not in text
    assert text.index("failure number 1") < text.index("failure number 2")
