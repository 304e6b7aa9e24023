"""What the page of a job shows first, what it leaves out, and where it leads."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Snoozed, Succeeded
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Progress, Resource, Schedule, Worker
from tests.admin.walking import Live, Page, change_url, listed, statements_of, words
from tests.admin.workflows.graphs import run_of, step
from tests.app.gate_jobs import transfer_funds
from tests.app.jobs import add
from tests.factories import (
    enqueue_and_claim,
    failure,
    register_worker,
    run_again,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)>{}%s'


def from_head(text: str) -> str:
    """The text of a page from the head of the job on."""
    return words(text.partition("jobs-title")[2])


def of(page: Page, job_id: int) -> str:
    return from_head(page.text(change_url(Job, job_id)))


def test_the_head_has_the_type_the_id_and_the_state_in_one_sentence(page: Page) -> None:
    job = add.using(delay=3600).enqueue(1)
    text = page.text(change_url(Job, job.pk))
    assert text.count("<h1") == 1
    assert from_head(text).startswith(f'">app.add #{job.pk} ◷ scheduled Runs in ')
    assert "<h2>app.add" not in text


def test_the_sentence_says_how_often_a_job_failed_and_when_it_runs_again(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure("no route"))
    assert "Failed 1 of 5 times; runs again in " in of(page, held.id)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '3 h'")
    due = r"Due since 3 h, and no worker has made it ready: look at their logs\."
    assert re.search(due, of(page, held.id))


def test_a_snoozed_job_runs_again_and_has_not_failed(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, Snoozed(seconds=3600))
    text = of(page, held.id)
    assert re.search(r"scheduled Runs again in (59 min|1 h)", text)
    assert "Last error" not in text


def test_the_sentence_of_a_running_job_says_since_when_where_and_until_when(page: Page) -> None:
    held = enqueue_and_claim(worker=register_worker("carol"))
    run_sql("UPDATE django_jobs_job SET timeout = 13000, claimed_at = now() - interval '3.5 h'")
    text = page.text(change_url(Job, held.id))
    assert re.search(
        r"Runs for 3 h 3[01] min on carol #\d+ , ends by \w+ \d+, [\d:]{8} UTC ?\.", from_head(text)
    )
    assert f'<a href="{change_url(Worker, held.worker)}">carol' in text


def test_a_job_that_nothing_ends_says_so_until_it_has_ended(page: Page) -> None:
    held = enqueue_and_claim()
    assert "time-out: none" in of(page, held.id).lower()
    settle_one(held, Succeeded())
    assert "time-out" not in of(page, held.id).lower()


@pytest.mark.parametrize("timeout", ["'Infinity'", "'NaN'", "1e300", "-1"])
def test_a_time_limit_that_can_never_be_is_none(page: Page, timeout: str) -> None:
    held = enqueue_and_claim()
    run_sql(f"UPDATE django_jobs_job SET timeout = {timeout}::float8")
    assert "without a time limit" in of(page, held.id)


def test_the_sentence_of_an_ended_job_says_how_it_ended(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, Succeeded())
    assert re.search(r"Succeeded [^.]+ ago at its first attempt", of(page, held.id))
    dead = enqueue_and_claim()
    settle_one(dead, failure("the end", final=True))
    wanted = r"Died .+ ago at its first attempt ?\. It runs again only if it is replayed\."
    assert re.search(wanted, of(page, dead.id))
    job = add.using(delay=60).enqueue(1)
    job_operations.cancel([job.pk], reason="not <b>needed</b>")
    text = of(page, job.pk)
    assert re.search(r"Cancelled .+ ago ?: not <b>needed</b>", text)
    assert text.count("needed") == 1


def test_the_error_and_the_traceback_come_first_and_once_where_they_are_why_one_came(
    page: Page,
) -> None:
    error = ErrorReport(type="ValueError", message="no", traceback="Traceback: the line")
    held = enqueue_and_claim()
    settle_one(held, Failed(error=error))
    text = of(page, held.id)
    assert text.count("Traceback: the line") == 1
    assert text.index("Last error") < text.index("Traceback: the line") < text.index("Timeline")
    run_again(held.id, register_worker(), Failed(error=error, final=True))
    text = page.text(change_url(Job, held.id))
    assert from_head(text).index("Why it died") < from_head(text).index("Timeline")
    assert text.count("<details>") == 2  # the first attempt's traceback, and the internals


def test_empty_facts_are_not_shown_and_internals_are_folded(page: Page) -> None:
    text = page.text(change_url(Job, add.enqueue(1).pk))
    facts, _, internals = from_head(text).partition("Internals")
    names = "Reason Started Finished Expires Idempotency Result Headers Priority Replays"
    for name in names.split():
        assert f"{name}:" not in facts, name
    assert ": -" not in facts
    for name in ("Rank:", "Crashes in a row:", "Payload version:", "Attempt:"):
        assert name in internals
        assert name not in facts
    assert re.search(r"<details>\s*<summary>\s*<h2[^>]*>Internals", text)


def test_facts_that_there_are_are_shown(page: Page) -> None:
    job = add.using(idempotency_key="video-7", priority=5, headers={"trace": "a"}).enqueue(1)
    text = of(page, job.pk)
    for fact in ("Priority: 5", "Idempotency key: video-7", "Failures: 0 / 5", '"trace": "a"'):
        assert fact in text


def test_the_picture_has_a_row_for_each_attempt_and_one_for_now(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure("no"))
    # Not due while the page is made, however busy the machine is.
    Job.objects.filter(pk=held.id).update(available_at=Now() + timedelta(hours=1))
    text = page.text(change_url(Job, held.id))
    rows = re.findall(r'class="jobs-attempt jobs-(\w+)">\s*<text[^>]*>([^<]*)</text>', text)
    assert [state for state, _ in rows] == ["failed", "scheduled"]
    assert re.fullmatch(r"1 · failed after [^·]+ · ValueError", rows[0][1])
    assert re.fullmatch(r"2 · scheduled, due in [^·]+", rows[1][1])
    assert 'role="img"' in text
    assert not Live(text).alarms


def test_the_picture_says_how_long_the_handler_ran_and_shows_no_wait_for_a_signal(
    page: Page,
) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure("no"))
    run_sql(
        "UPDATE django_jobs_run SET claimed_at = finished_at - interval '9 s',"
        " started_at = finished_at - interval '2 s', available_at = finished_at - interval '20 s'"
    )
    run_sql("UPDATE django_jobs_job SET created_at = now() - interval '30 s'")
    text = page.text(change_url(Job, held.id))
    assert "1 · failed after 2.0 s" in text
    assert "due, waited" in text
    run_of({"a": step("ready"), "b": step("waiting", "a")})
    run_sql("UPDATE django_jobs_job SET created_at = now() - interval '9 s', available_at = now() -"
            " interval '9 s' WHERE step = 'b'")  # fmt: skip
    text = page.text(change_url(Job, Job.objects.get(step="b").pk))
    assert "jobs-picture" in text
    assert "due, waited" not in text


def test_the_picture_leaves_early_attempts_to_the_table_and_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobs.admin.job_sections.timeline.MOST_DRAWN", 1)
    job, worker = add.enqueue(1), register_worker()
    for _ in range(3):
        run_again(job.pk, worker, failure("no"))
    text = page.text(change_url(Job, job.pk))
    assert text.count("jobs-attempt jobs-failed") == 1
    assert "2 earlier attempts are in the table" in from_head(text)


@pytest.mark.parametrize("column", ["available_at", "created_at"])
@pytest.mark.parametrize("time", ["infinity", "-infinity", "0001-01-01 00:00:00 BC"])
def test_a_time_that_python_cannot_read_has_no_picture(page: Page, column: str, time: str) -> None:
    job = add.using(delay=60).enqueue(1)
    run_sql(f"UPDATE django_jobs_job SET {column} = '{time}'")
    assert "jobs-picture" not in page.text(change_url(Job, job.pk))


def a_job_with_relatives() -> Job:
    """A dead job that has a schedule, a tenant, a key and a run of a workflow."""
    Resource.objects.create(name="stripe")
    Resource.objects.create(name="ledger")
    job = transfer_funds.using(idempotency_key="sync/7?a=b&c").enqueue(7, "acme")
    schedule = Schedule.objects.create(name="nightly & daily", job_type="app.add", every=60)
    run_sql(
        f"UPDATE django_jobs_job SET status = 'ready', schedule_id = {schedule.pk},"
        f" scheduled_for = now()"
    )
    return job


def test_each_link_to_related_jobs_finds_the_job(page: Page) -> None:
    job, worker = a_job_with_relatives(), register_worker()
    run_again(job.pk, worker, failure("the end", final=True))
    text = page.text(change_url(Job, job.pk)).partition('aria-label="Related jobs"')[2]
    links = re.findall(r'href="([^"]+)"', text.partition("</nav>")[0])
    assert len(links) >= 4
    for link in links:
        if "q=parent" in link:  # it lists what the job enqueued
            continue
        if "/failures/one/" in link:
            assert f"#{job.pk}" in page.read(html.unescape(link))
            continue
        assert job.pk in listed(page, link), link


def test_a_key_with_a_space_and_quotes_links_to_the_jobs_that_have_it(page: Page) -> None:
    job = add.using(idempotency_key='order "7" a\\b').enqueue(1)
    text = page.text(change_url(Job, job.pk))
    (link,) = re.findall(r'href="([^"]+)">All jobs with its key', text)
    assert listed(page, link) == [job.pk]


def test_a_key_within_a_tenant_is_shown_apart_and_found(page: Page) -> None:
    keyed = add.using(idempotency_key="order-7", key_scope="tenant")
    job, _other = (keyed.using(tenant=tenant).enqueue(1) for tenant in ("acme", "globex"))
    text = page.text(change_url(Job, job.pk))
    (link,) = re.findall(r'href="([^"]+)">All jobs with its key', text)
    assert link.endswith("?q=key%3Aacme%2Forder-7")
    assert listed(page, link) == [job.pk]
    shown = of(page, job.pk)
    for fact in ("Idempotency key: order-7", "Key is unique within: tenant acme"):
        assert fact in shown


def test_a_retried_job_links_to_its_failure(page: Page, page_of: Callable[..., Page]) -> None:
    held = enqueue_and_claim(add, 1)
    waiting = add.enqueue(2)
    settle_one(held, failure("no"))
    (link,) = re.findall(
        r'href="([^"]+)">Its failure: how often, since when, and replay',
        page.text(change_url(Job, held.id)),
    )
    assert "1 is being retried." in page.read(html.unescape(link))
    assert "Its failure" not in page.text(change_url(Job, waiting.pk))


def test_the_links_of_a_running_job_lead_to_those_of_its_worker_too(page: Page) -> None:
    held = enqueue_and_claim()
    text = page.text(change_url(Job, held.id))
    (link,) = re.findall(r'href="([^"]+)">All jobs on its worker', text)
    assert listed(page, link) == [held.id]


def test_the_timeline_has_the_edits_with_who_and_why(page: Page) -> None:
    held = enqueue_and_claim(add, 1)
    settle_one(held, failure("no"))
    Job.objects.get().edit(payload={"first": 2}, by=EVIL, reason="a typo " + EVIL)
    text = page.text(change_url(Job, held.id))
    edited = from_head(text).partition("the oldest first")[2]
    assert edited.index("ValueError") < edited.index("Edited by <script>")
    assert "a typo <script>" in edited
    assert not Live(text).alarms


def test_markup_in_what_the_head_shows_is_shown_and_not_run(page: Page) -> None:
    worker = register_worker(EVIL)
    error = ErrorReport(type=EVIL, message=EVIL, traceback=EVIL)
    job = add.using(idempotency_key=EVIL, headers={EVIL: EVIL}).enqueue(1)
    run_again(job.pk, worker, Failed(error=error))
    retried = page.text(change_url(Job, job.pk))
    run_sql("UPDATE django_jobs_job SET available_at = now()")
    run_again(job.pk, worker, Failed(error=error, final=True))
    run_sql("UPDATE django_jobs_job SET job_type = '" + EVIL + "', reason = '" + EVIL + "'")
    for text in (retried, page.text(change_url(Job, job.pk))):
        assert not Live(text).alarms
        assert "&lt;script&gt;" in text


@pytest.mark.usefixtures("no_time_limit")
def test_the_page_of_a_job_takes_few_queries(page: Page) -> None:
    job, worker = a_job_with_relatives(), register_worker()
    for number in range(3):
        run_sql("UPDATE django_jobs_job SET status = 'ready'")
        run_again(job.pk, worker, failure("no", final=number == 2))
    Progress.objects.create(job_id=job.pk, attempt=3, fraction=0.5, reported_at=job.created_at)
    page.text(change_url(Job, job.pk))  # Django remembers the content type
    assert len(statements_of(page, change_url(Job, job.pk))) <= 15


def test_the_page_of_a_live_job_refreshes_itself_and_that_of_an_ended_one_does_not(
    page: Page,
) -> None:
    held = enqueue_and_claim()
    text = page.text(change_url(Job, held.id))
    live = text.index("data-live-region")
    assert live < text.index("jobs-sentence") < text.index("jobs-picture")
    assert 'data-refresh="5"' in text
    assert "django_jobs/refresh.js" in text
    settle_one(held, Succeeded())
    assert 'data-refresh="' not in page.text(change_url(Job, held.id))
