"""What a job's page tells of its runs, and of what it waits for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Lost, Succeeded
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Run, Worker
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import add
from tests.factories import (
    claim_ready,
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
    assert "Nothing holds it: a worker starts it in the next moment." in text
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


def test_a_deleted_worker_is_named_by_its_number(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure())
    Worker.objects.all().delete()
    assert f"worker {held.worker} (deleted)" in page.read(change_url(Job, held.id))
    page.text(change_url(Run, Run.objects.get().pk))


def test_workers_and_runs_are_links_for_those_who_may_open_them(
    page_of: Callable[..., Page],
) -> None:
    worker = register_worker("carol")
    held = enqueue_and_claim(worker=worker)
    settle_one(held, failure())
    run_sql("UPDATE django_jobs_job SET available_at = now(), status = 'ready'")
    claim_ready(worker)
    run = Run.objects.get().pk
    refused, to_run = change_url(Worker, worker), change_url(Run, run)
    limited = page_of("view_job", "view_run")
    assert limited.client.get(refused).status_code == 403
    for url in (change_url(Job, held.id), to_run):
        text = limited.text(url)
        assert "carol" in text
        assert f'"{refused}"' not in text
    assert f'"{to_run}"' in limited.text(change_url(Job, held.id))
    job_alone = page_of("view_job", name="otto")
    assert job_alone.client.get(to_run).status_code == 403
    assert f'"{to_run}"' not in job_alone.text(change_url(Job, held.id))
    whole = page_of("view_job", "view_run", "view_worker", name="vera")
    for url in (change_url(Job, held.id), to_run):
        assert f'"{refused}"' in whole.text(url)


def test_an_attempt_after_a_lost_one_has_waited_since_its_end(page: Page) -> None:
    worker = register_worker()
    held = enqueue_and_claim(add, 1, worker=worker)
    settle_one(held, Lost(reason="SIGKILL"))
    (again,) = claim_ready(worker)
    settle_one(again, Succeeded())
    run_sql(
        "UPDATE django_jobs_run SET available_at = available_at - interval '2 h',"
        " claimed_at = claimed_at - interval '2 h' * (attempt = 1)::int"
    )
    table = page.text(change_url(Job, held.id)).partition("Timeline")[2]
    lengths = re.findall(r'jobs-number">([^<]*)<', table)
    assert len(lengths) >= 4
    assert not [length for length in lengths if "h" in length]
    for attempt in (1, 2):
        assert re.fullmatch(r"[0-9.]+ m?s", waited_of(page, attempt))


def test_an_attempt_has_waited_since_the_last_of_several_interruptions(page: Page) -> None:
    worker = register_worker()
    settle_one(enqueue_and_claim(add, 1, worker=worker), Lost(reason="SIGKILL"))
    for outcome in (Lost(reason="SIGKILL"), Succeeded()):
        (again,) = claim_ready(worker)
        settle_one(again, outcome)
    run_sql("UPDATE django_jobs_run SET available_at = available_at - interval '3 h'")
    run_sql(
        "UPDATE django_jobs_run SET claimed_at = claimed_at - interval '2 h',"
        " finished_at = finished_at - interval '2 h' WHERE attempt = 1"
    )
    assert re.fullmatch(r"[0-9.]+ m?s", waited_of(page, 3))


def test_the_time_at_gates_is_apart_from_the_wait_for_a_worker(page: Page) -> None:
    held = enqueue_and_claim(add, 1)
    settle_one(held, Succeeded())
    assert waited_of(page, 1, "gate_time") == "0 ms"
    run_sql(
        "UPDATE django_jobs_run SET ready_at = claimed_at - interval '2 min',"
        " available_at = claimed_at - interval '5 min'"
    )
    assert (waited_of(page, 1, "gate_time"), waited_of(page, 1)) == ("3 min", "2 min")
    table = page.text(change_url(Job, held.id)).partition("Timeline")[2]
    lengths = [one.replace("\N{NO-BREAK SPACE}", " ") for one in NUMBERS.findall(table)]
    assert lengths[lengths.index("3 min") + 1] == "2 min"


NUMBERS = re.compile(r'<td class="jobs-number">([^<]*)<')


def waited_of(page: Page, attempt: int, what: str = "waited") -> str:
    """What the page of a run says about its wait, or the part of it at gates."""
    run = Run.objects.get(attempt=attempt)
    times = page.text(change_url(Run, run.pk)).partition("Times")[2]
    waited = re.search(rf"fieldBox field-{what}\b.*?readonly\">(.*?)<", times, re.DOTALL)
    assert waited is not None
    return waited[1].replace("\N{NO-BREAK SPACE}", " ")


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
