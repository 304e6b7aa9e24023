"""The page of one failure: its numbers, its newest error, and its verbs."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from django.utils.http import urlencode
from pytest_django import Settings

from django_jobs.lifecycle.operations.quarantines import in_force
from django_jobs.models import DeadLetter, Job, Quarantine, Run, Worker
from tests.admin.walking import Page
from tests.app.jobs import add, noop
from tests.factories import (
    copies_of,
    enqueue_and_claim,
    failure,
    make_dead,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

ONE = "/admin/django_jobs/deadletter/failures/one/"
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/crm/jobs.py", line 41, in push
    send(password="hunter2")
  File "/srv/venv/lib/python3.13/site-packages/requests/api.py", line 9, in post
    raise error
KeyError: 'x'
"""
TRACKER = "https://tracker.example/new?title={title}&body={body}"


def dead(version: str = "4f2a") -> Job:
    held = enqueue_and_claim(noop)
    settle_one(held, failure("token=abc123 refused", kind="KeyError", final=True))
    Worker.objects.filter(pk=held.worker).update(code_version=version)
    Run.objects.filter(job_id=held.id).update(traceback=TRACEBACK)
    return Job.objects.get(pk=held.id)


def address(job: Job) -> str:
    return f"{ONE}?{urlencode({'type': job.job_type, 'fingerprint': job.fingerprint})}"


def links(text: str, label: str) -> list[str]:
    return [part.rpartition('href="')[2].partition('"')[0] for part in text.split(label)[:-1]]


def test_the_page_says_how_many_in_which_code_and_shows_the_newest(page: Page) -> None:
    dead("91c0")
    newest = dead("4f2a")
    settle_one(enqueue_and_claim(noop), failure(kind="KeyError"))
    text = page.read(address(newest))
    assert "2 dead; 1 more is being retried." in text
    assert f">#{newest.pk}</a>" in text
    assert "crm/jobs.py:41 in push" in text
    assert text.index("4f2a") < text.index("91c0")
    assert "token=•••••• refused" in text
    assert "hunter2" not in text
    for label in ("Dismiss…", "Quarantine the job type…", "Show the dead letters"):
        assert label in text


@pytest.mark.parametrize("fingerprint", ["f0f0edf867a4213f", ""])
def test_a_replay_of_several_jobs_by_a_plan_is_the_first_button(
    page: Page, fingerprint: str
) -> None:
    dead()
    run_sql("UPDATE django_jobs_job SET fingerprint = %s", [fingerprint])
    one = Job.objects.get()
    text = page.read(address(one))
    assert ">Replay…</button>" in text
    assert "Replay by a plan…" not in text  # which has nothing to try first
    copies_of(one, 2, status="dead")
    text = page.read(address(one))
    (plan,) = links(text, '">Replay by a plan…')
    assert re.search(r'class="button default"[^>]*>Replay by a plan…', text)
    assert text.index("Replay by a plan…") < text.index("Replay all at once…")
    assert text.count("button default") == 1
    make_dead(add, 1)
    assert "Replay plan: 3 dead jobs" in page.read(plan)


def test_who_may_not_replay_is_offered_no_plan(page_of: Callable[..., Page]) -> None:
    one = dead()
    copies_of(one, 2, status="dead")
    assert "Replay by a plan…" not in page_of("view_job").read(address(one))
    assert "Replay by a plan…" in page_of("view_job", "replay_job", name="rob").read(address(one))


@pytest.mark.parametrize("error", ["KeyError", None])
def test_a_failure_whose_jobs_were_all_replayed_says_so_and_leads_on(
    page: Page, page_of: Callable[..., Page], error: str | None
) -> None:
    job = dead()
    if error is None:
        run_sql("UPDATE django_jobs_job SET fingerprint = ''")
        job.refresh_from_db()
    link = address(job)
    assert "1 dead." in page.text(link)
    page.act(DeadLetter, "replay_jobs", job.pk)
    text = page.read(link)
    assert "No job has this failure now" in text
    (failures,), (jobs,) = links(text, '">All failures<'), links(text, '">All jobs of this type<')
    runs = links(text, '">All runs with this error<')
    assert len(runs) == (error is not None)
    for url in (failures, jobs, *runs):
        page.text(url)
    assert "All runs with this error" not in page_of("view_job").text(link)


@pytest.mark.parametrize(
    ("chosen", "shown"), [("queue=emails", "emails"), ("span=1h", "Last hour")]
)
def test_a_failure_of_one_queue_or_time_acts_on_that_alone(
    page: Page, chosen: str, shown: str
) -> None:
    other, one = dead("91c0"), dead("4f2a")
    copies_of(one, 2, status="dead")
    run_sql("UPDATE django_jobs_job SET queue = 'emails' WHERE id <> %s", [other.pk])
    run_sql(
        "UPDATE django_jobs_job SET finished_at = now() - interval '2 h' WHERE id = %s", [other.pk]
    )
    text = page.read(f"{address(one)}&{chosen}")
    assert "3 dead." in text
    assert f"<dt>Only</dt><dd>{shown} · <a" in text
    assert "91c0" not in text
    (plan,) = links(text, '">Replay by a plan…')
    assert "Replay plan: 3 dead jobs" in page.read(plan)
    (letters,) = links(text, '">Show the dead letters')
    assert "3 dead letters" in page.read(letters)
    (whole,) = links(text, '">Show all<')
    assert "4 dead." in page.read(whole)


@pytest.mark.parametrize("chosen", ["queue=bulk", "span=1h", "queue=bulk&span=1h"])
def test_a_failure_that_a_queue_or_a_time_does_not_have_is_shown_whole(
    page: Page, chosen: str
) -> None:
    one = dead()
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '2 h'")
    answer = page.client.get(f"{address(one)}&{chosen}", follow=True)
    assert "1 dead." in answer.content.decode()
    assert answer.redirect_chain[-1][0] == address(one)


def test_a_failure_that_is_none_is_not_found(page: Page) -> None:
    page.text(f"{ONE}?type=app.noop&fingerprint=gone", status=404)
    page.text(ONE, status=404)
    page.text(f"{ONE}?type=%00&fingerprint=%00", status=404)


def test_a_failure_that_is_only_retried_has_nothing_to_replay(page: Page) -> None:
    held = enqueue_and_claim(noop)
    settle_one(held, failure(kind="KeyError"))
    text = page.read(address(Job.objects.get()))
    assert "No job is dead of it; 1 is being retried." in text
    assert "Replay…" not in text


def test_the_runs_may_be_gone(page: Page) -> None:
    job = dead()
    Run.objects.all().delete()
    assert f">#{job.pk}</a>" in page.read(address(job))


def test_the_job_type_is_quarantined_from_there(page: Page) -> None:
    job = dead()
    (add,) = links(page.read(address(job)), '">Quarantine the job type…')
    form = page.read(add)
    assert 'value="app.noop" selected' in form
    assert f'value="KeyError {job.fingerprint}"' in form
    assert "refused" not in form
    page.client.post(add, {"job_type": "app.noop", "reason": "it fails"})
    assert in_force() == ["app.noop"]
    assert Quarantine.objects.get().reason == "it fails"


def test_without_permissions_there_are_no_verbs(page_of: Callable[..., Page]) -> None:
    job = dead()
    text = page_of("view_job").read(address(job))
    for label in ("Replay…", "Dismiss…", "Quarantine the job type…"):
        assert label not in text


def test_messages_and_lines_of_code_need_a_permission(
    page_of: Callable[..., Page], settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ISSUE_URL": TRACKER}
    job = dead()
    texts = ("refused", "crm/jobs.py", "line 41")
    blind, seeing = page_of("view_job"), page_of("view_job", "view_job_error", name="sven")
    for url in (address(job), "/admin/django_jobs/deadletter/failures/"):
        text = blind.read(url)
        assert "KeyError" in text
        assert not [one for one in texts if one in unquote(text)]
        assert "refused" in seeing.read(url)
        assert "crm/jobs.py:41 in push" in seeing.read(url)
    assert "Hidden: requires the permission" in blind.read(address(job))
    search = "/admin/django_jobs/deadletter/failures/?q=error:refused"
    assert "No failure matches the search." in blind.read(search)
    assert "No failure matches the search." not in seeing.read(search)


def test_an_issue_link_has_the_facts_and_no_secret(page: Page, settings: Settings) -> None:
    job = dead()
    assert "Open an issue" not in page.read(address(job))
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ISSUE_URL": TRACKER}
    (url,) = links(page.read(address(job)), '" target="_blank" rel="noopener noreferrer">Open')
    query = parse_qs(urlsplit(url).query)
    assert urlsplit(url).netloc == "tracker.example"
    assert query["title"] == ["app.noop: KeyError: token=•••••• refused"]
    (body,) = query["body"]
    assert f"Fingerprint: {job.fingerprint}" in body
    assert "Code: 4f2a" in body
    assert "line 41, in push" in body
    assert "http://testserver/admin/django_jobs/deadletter/failures/one/" in body
    for secret in ("hunter2", "abc123"):
        assert secret not in unquote(url)


def test_the_address_of_an_issue_stays_short(page: Page, settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ISSUE_URL": TRACKER}
    job = dead()
    Run.objects.update(traceback="é" * 60_000)
    run_sql("UPDATE django_jobs_job SET last_error = %s", ["&" * 5_000])
    (url,) = links(page.read(address(job)), '" target="_blank" rel="noopener noreferrer">Open')
    assert len(unquote(url)) < 4_000
