"""The section "Why is it not running?" of a job's page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.admin import site
from django.test import RequestFactory
from django.utils import timezone

from django_jobs.admin.base.formatting import Visible
from django_jobs.admin.job_sections.why import why_section
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.models import Job, Quarantine, Queue, Resource, Tenant, Worker
from tests.admin.walking import Live, Page, change_url, statements_of, words
from tests.app.gate_jobs import charge_account, transfer_funds
from tests.app.jobs import add, noop
from tests.factories import (
    copies_of,
    enqueue_and_claim,
    failure,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>{}<img src=x onerror=alert(1)>"


def quarantined_job(reason: str = "", by: str = "") -> Job:
    """A job that a quarantine blocks."""
    job = add.enqueue(1)
    quarantines.quarantine("app.add", reason=reason, by=by)
    quarantines.block("default")
    return job


def section_of(text: str) -> str:
    """The HTML of the section."""
    return text.partition('aria-labelledby="jobs-why"')[2].partition("</section>")[0]


def sentence_of(text: str) -> str:
    """The sentence that the page begins with, without tags."""
    html = text.partition('<p class="jobs-sentence">')[2].partition("</p>")[0]
    return re.sub(r"<[^>]+>", "", html)


def test_the_page_of_a_ready_job_says_why_it_does_not_run(page: Page) -> None:
    def hint(worker: int | None = None) -> str:
        text = sentence_of(page.read(change_url(Job, job.pk)))
        if worker is not None:
            workers.end(worker)
        return text

    job = add.using(queue="bulk").enqueue(1)
    job_operations.pause(["bulk"], reason="it floods the provider")
    assert re.fullmatch(
        r"Queue bulk is paused since [\d:]+ UTC \([^()]+\): it floods the provider\. "
        r"Also: no worker is alive\.",
        hint(),
    )
    job_operations.resume(["bulk"])
    assert hint() == "No worker is alive."
    assert hint(register_worker()) == "No live worker serves this queue."
    stranger = register_worker(queues=["bulk"], job_types={"app.noop": 1})
    register_worker(queues=["default"])
    assert hint(stranger) == "No live worker of this queue knows this job type."
    last = hint(register_worker(queues=["bulk"]))
    assert last == "Nothing holds it: a worker starts it in the next moment."


def test_the_rows_that_hold_a_job_are_links(page: Page) -> None:
    Resource.objects.create(name="stripe", max_concurrency=1)
    Resource.objects.create(name="ledger")
    job = transfer_funds.enqueue(7, "acme")
    (holder,) = copies_of(job)
    limits.pause_tenants(["acme"], reason="unpaid <b>twice</b>")
    text = page.text(change_url(Job, job.pk))
    section = section_of(text)
    for row in (Tenant.objects.get(), Resource.objects.get(name="stripe")):
        assert f'<a href="{change_url(type(row), row.pk)}">{row.name}</a>' in section
    assert f'<a href="{change_url(Job, holder)}">#{holder}</a> (ready)' in section
    assert "the tenant acme is paused since" in words(section_of(text))
    assert "Tenant: acme Concurrency key: account:7:EUR Resources: ledger , stripe" in words(text)
    assert "unpaid <b>twice" in words(section_of(text))
    assert "the resource stripe (1 of 1 taken)" in words(section_of(text))
    assert not Live(text).alarms


def test_names_of_other_rows_are_links_only_for_those_who_may_view_them(
    page_of: Callable[..., Page],
) -> None:
    holder = enqueue_and_claim(add, 1, worker=register_worker())
    Queue.objects.filter(name="default").update(max_concurrency=1)
    job = noop.enqueue()
    page = page_of("view_job")
    section = section_of(page.text(change_url(Job, job.pk)))
    assert f'<a href="{change_url(Job, holder.id)}">#{holder.id}</a>' in section
    assert "/queue/" not in section
    assert "/worker/" not in section
    assert "default" in section
    assert "/queue/" in section_of(
        page_of("view_job", "view_queue", name="rita").text(change_url(Job, job.pk))
    )


def test_without_the_permission_to_view_jobs_no_other_job_and_no_type_is_named() -> None:
    holder = enqueue_and_claim(add, 1, worker=register_worker())
    Queue.objects.filter(name="default").update(max_concurrency=1)
    request = RequestFactory().get("/")
    request.user = make_user("view_queue")
    section = why_section(noop.enqueue(), Visible(site, request))
    text = "; ".join(gate["text"] for gate in section.gates)
    assert "1 of 1 slots: a job (" in text
    assert "1 of 1 busy on 1 worker: 1 jobs (a job for " in text
    assert f"#{holder.id}" not in text  # without its sign it may be a number of milliseconds
    assert "app.add" not in text


def test_payloads_are_never_in_the_section(page: Page) -> None:
    charge_account.enqueue(7, 4711)
    job = charge_account.enqueue(8, 4711)
    assert "4711" not in section_of(page.text(change_url(Job, job.pk)))


def test_a_quarantine_shows_since_when_by_whom_and_why(page: Page) -> None:
    job = quarantined_job(reason="eats memory", by="ada")
    text = page.read(change_url(Job, job.pk))
    wanted = (
        r"Blocked: its job type is quarantined since [\d:]+ UTC \([^()]+\) by ada: eats memory\."
    )
    assert re.match(wanted, sentence_of(text))
    row = Quarantine.objects.get()
    assert f'<a href="{change_url(Quarantine, row.pk)}">quarantined</a>' in section_of(text)
    run_sql("UPDATE django_jobs_quarantine SET by = '', reason = ''")
    assert re.search(r"\) by a worker\.", sentence_of(page.read(change_url(Job, job.pk))))


@pytest.mark.parametrize(
    "permissions, linked",
    [((), False), (("view_quarantine",), True), (("quarantine_job_type",), True)],
)
def test_a_quarantine_is_linked_only_with_permission(
    page_of: Callable[..., Page], permissions: tuple[str, ...], linked: bool
) -> None:
    job = quarantined_job()
    page, there = page_of("view_job", *permissions), change_url(Quarantine, 1).rpartition("1")[0]
    text = page.read(change_url(Job, job.pk))
    assert "Blocked: its job type is quarantined since" in sentence_of(text)
    assert (f'<a href="{there.removesuffix("change/")[:-1]}' in section_of(text)) is linked


def test_a_job_still_blocked_after_a_lift_is_shown_as_ready_soon(page: Page) -> None:
    job = quarantined_job()
    soon = "Blocked: its quarantine was lifted, and a worker makes it ready in the next moment."
    run_sql("UPDATE django_jobs_quarantine SET lifted_at = now()")
    assert soon in sentence_of(page.read(change_url(Job, job.pk)))
    Quarantine.objects.all().delete()
    assert soon in sentence_of(page.read(change_url(Job, job.pk)))


def test_a_job_without_gates_shows_none(page: Page) -> None:
    assert "Concurrency key" not in page.read(change_url(Job, add.enqueue(1).pk))


def test_markup_is_shown_and_not_run(page: Page) -> None:
    job = quarantined_job(reason=EVIL, by=EVIL)
    run_sql("UPDATE django_jobs_queue SET paused_at = now(), paused_by = %s", [EVIL])
    register_worker(EVIL, job_types={"app.noop": 1})
    text = page.text(change_url(Job, job.pk))
    assert Live(text).alarms == []
    assert section_of(text).count("&lt;script&gt;alert(1)&lt;/script&gt;{}&lt;img") == 4


def test_a_running_job_shows_where_and_an_ended_one_how(page: Page) -> None:
    held = enqueue_and_claim(add, 1, worker=register_worker("carol"))
    job_operations.cancel([held.id])
    text = page.read(change_url(Job, held.id))
    link = f'<a href="{change_url(Worker, held.worker)}">carol #{held.worker}</a>'
    assert f"{link} has it for " in section_of(text)
    assert "Its cancellation was requested." in text
    assert "Why is it not running?" not in text
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 min'")
    trouble = "no live worker can take it over: start one."
    assert trouble in page.read(change_url(Job, held.id)).partition("jobs-hint")[2][:300]
    settle_one(held, failure(final=True))
    text = page.read(change_url(Job, held.id))
    assert 'aria-labelledby="jobs-why"' not in text


def test_a_job_page_costs_few_queries_with_all_gates(page: Page) -> None:
    for name in ("stripe", "ledger"):
        Resource.objects.create(name=name, max_concurrency=1)
    job = transfer_funds.enqueue(7, "acme")
    copies_of(job, 5)
    Tenant.objects.create(name="acme", max_concurrency=1, paused_at=timezone.now())
    register_worker()
    # Outside of a test, the page is no savepoint of another transaction.
    captured = statements_of(page, change_url(Job, job.pk))
    statements = [sql for sql in captured if "SAVEPOINT" not in sql]
    assert len(statements) <= 15, statements
