"""The numbers of a resource or a tenant above its form."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from django_jobs.admin.limits import live
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations import jobs, limits
from django_jobs.metrics import limits as limit_details
from django_jobs.models import Job, Queue, Resource, Tenant
from tests.admin.overview.looking import tiles, words
from tests.admin.walking import Live, Page, change_url, list_url, statements_of
from tests.app.gate_jobs import bill_tenant, refund_payment, transfer_funds
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    copies_of,
    failure,
    fold_runs,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_time_limit")]


def shown(page: Page, row: Resource | Tenant) -> str:
    """The region of its page that refreshes."""
    text = page.text(change_url(type(row), row.pk))
    assert Live(text).alarms == []
    return "<p" + text.split("data-live-region", 1)[1].split("</section>", 1)[0]


def stripe(**fields: Any) -> Resource:
    return Resource.objects.create(name="stripe", **fields)


def running(job: Job) -> None:
    run_sql(
        "UPDATE django_jobs_job SET status = 'running', worker_id = 1, claimed_at = now()"
        " - interval '90 min' WHERE id = %s",
        [job.pk],
    )


def test_a_resource_shows_what_is_taken_by_whom_and_what_waits(page: Page) -> None:
    row = stripe(max_concurrency=3)
    Resource.objects.create(name="ledger")
    job = refund_payment.enqueue(1)
    ready = copies_of(job, 2)
    held = transfer_funds.enqueue(1, "<b>acme</b>")
    running(held)
    text = shown(page, row)
    now = tiles(text)
    assert now["taken of the limit"] == "3 / 3"
    assert (now["running"], now["ready, not started"]) == ("1", "2")
    assert now["blocked in line"] == "1"
    assert now["the next one waits"].endswith((" ms", " s"))
    assert "busy All 3 are taken. 1 job waits." in words(text)
    assert "running 1 h 30 min - default <b>acme</b>" in words(text)
    for id_ in (*ready, held.pk, job.pk):
        assert f'<a href="{change_url(Job, id_)}">#{id_}</a>' in text
    assert f'href="{list_url(Job)}?job_type=app.refund_payment"' in text


@pytest.mark.parametrize(
    "fields, taken, sentence",
    [
        ({}, 1, "ok No limit. No job waits."),
        ({"max_concurrency": 2}, 1, "ok 1 of 2 are taken. No job waits."),
        (
            {"max_concurrency": 1},
            2,
            "over its limit 2 of 1 are taken. No job starts before enough of them have ended.",
        ),
        ({"breaker_state": "open"}, 1, "breaker open No job that uses it starts."),
        ({"breaker_state": "half_open"}, 1, "Few jobs may try whether it works again."),
    ],
)
def test_one_sentence_says_its_state(
    page: Page, fields: dict[str, Any], taken: int, sentence: str
) -> None:
    row = stripe(**fields)
    job = refund_payment.enqueue(1)
    copies_of(job, taken)
    job.delete()
    assert sentence in words(shown(page, row))


def test_a_pause_says_since_when_by_whom_and_why(page: Page) -> None:
    row = stripe()
    refund_payment.enqueue(1)
    limits.pause_resources(["stripe"], reason="<i>maintenance</i>", by="ops")
    text = words(shown(page, row))
    assert re.search(r"paused [^.]* ago by ops: <i>maintenance</i> 1 job waits\.", text)


@pytest.mark.parametrize(
    "fields, age, sentence",
    [
        ({}, None, "Closed. It never opens by itself: no number of failures is set."),
        (
            {"breaker_failures": 20},
            None,
            "Closed: 2 failures in the last 1 min. It opens at 20.",
        ),
        (
            {
                "breaker_state": "open",
                "breaker_reason": "20 failures in 60 s",
                "breaker_open_for": 7200.0,
            },
            10,
            r"Opened [^:]* ago ?: 20 failures in 60 s\. It is tried again in 1 h [^.]*\.",
        ),
        (
            {"breaker_state": "open", "breaker_open_for": 5.0},
            10,
            r"Opened [^.]* ago ?\. It is tried with the next job\.",
        ),
        (
            {"breaker_state": "half_open"},
            10,
            r"Half opened [^.]* ago ?\. It closes after 3 successes, 0 so far; a failure opens it",
        ),
    ],
)
def test_the_breaker_says_its_state_and_when_it_is_tried_next(
    page: Page, fields: dict[str, Any], age: int | None, sentence: str
) -> None:
    row = stripe(**fields)
    if age is not None:
        changed = Now() - timedelta(seconds=age)
        Resource.objects.filter(pk=row.pk).update(breaker_changed_at=changed)
    run_sql(
        "INSERT INTO django_jobs_resourceoutcome (resource, failed, happened_at) SELECT"
        " 'stripe', true, now() - n * interval '1 s' FROM unnest(ARRAY[0, 1, 600, 700]) AS n"
    )
    text = shown(page, row)
    assert re.search(sentence, words(text))
    assert ("Failures in the last 1 min" in words(text)) == ("breaker_failures" in fields)
    if "breaker_failures" in fields:
        assert tiles(text)["failures that open it"] == "2 / 20"


@pytest.mark.parametrize("seconds", [1e9, 1e99])
def test_a_breaker_that_is_open_for_ages_has_a_page(page: Page, seconds: float) -> None:
    row = stripe(breaker_state="open", breaker_open_for=seconds, breaker_window=seconds)
    Resource.objects.update(breaker_changed_at=Now())
    assert "It is tried again" in words(shown(page, row))


def test_rate_and_retry_budget_say_what_is_left(page: Page) -> None:
    row = stripe(rate=50.0, retry_budget=0.2)
    run_sql(
        "UPDATE django_jobs_resource SET tokens = 12, refilled_at = now() + interval '1 h',"
        " recent_starts = 240, recent_retries = 26.4, counted_at = now() + interval '1 h'"
    )
    text = shown(page, row)
    assert "50/s: 12 of 50 starts are left." in words(text)
    assert (
        "11% of the starts of the last minute were retries, the budget is 20%. "
        "27 retries may start now."
    ) in words(text)
    now = tiles(text)
    assert now["starts left, rate 50/s"] == "12 / 50"
    tenant = Tenant.objects.create(name="acme", rate=9.0, rate_seconds=60.0, tokens=7.0)
    assert tiles(shown(page, tenant))["starts left, rate 9/60s"] == "7 / 9"
    assert now["retries, budget 20%"] == "11%"
    run_sql("UPDATE django_jobs_resource SET tokens = 0.5, rate = 0.5, recent_retries = 99")
    text = words(shown(page, row))
    assert "0.5/s, used up: the next start in 1.0 s." in text
    assert "Retries wait until others have started." in text


def test_attempts_of_its_job_types_are_drawn_for_the_last_hour(page: Page, settings: Any) -> None:
    row = stripe()
    assert "Attempts of its job types" not in shown(page, row)
    run_sql(
        """INSERT INTO django_jobs_runtotal
        SELECT 60, date_bin('1 min', now(), 'epoch') - interval '5 min', 'default',
            'app.refund_payment', 'failed', 7, zeros, 0, zeros, 0, zeros, 0, zeros, 0, 0, 0
        FROM (SELECT array_fill(0::bigint, ARRAY[19]) AS zeros) AS no_times"""
    )
    text = shown(page, row)
    assert "Attempts of its job types, for each minute of the last hour" in text
    assert re.search(r"5 min ago</th><td[^>]*>0</td><td[^>]*>0</td><td[^>]*>7</td>", text)
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    assert "Attempts of its job types" not in shown(page, row)


def test_a_tenant_shows_its_turn_in_each_queue(page: Page) -> None:
    row = Tenant.objects.create(name="acme", weight=3.0, max_concurrency=2)
    held, *_ = (bill_tenant.enqueue("acme") for _ in range(3))
    for name in ("bolt", "cord"):
        bill_tenant.enqueue(name)
    running(held)
    text = shown(page, row)
    now = tiles(text)
    assert (now["taken of the limit"], now["running"], now["weight"]) == ("1 / 2", "1", "3")
    assert "default 2 60% 3" in words(text)
    assert f'<a href="{list_url(Job)}?tenant=acme">All jobs of the tenant</a>' in text
    limits.pause_tenants(["acme"], by="ops")
    assert "default 2 0% 2" in words(shown(page, row))


def test_a_tenant_shows_how_its_attempts_of_the_last_day_ended(
    page: Page, settings: Settings
) -> None:
    row = Tenant.objects.create(name="acme")
    assert "last day" not in shown(page, row)
    noop.enqueue_many([{}] * 3)
    run_sql("UPDATE django_jobs_job SET tenant = 'acme', available_at = now() - interval '1 h'")
    now, outcomes = time.monotonic(), (Succeeded(), failure(), failure())
    for job, outcome in zip(claim_ready(register_worker()), outcomes, strict=True):
        settle_one(job, outcome, started=now - 7, finished=now)
    run_sql("UPDATE django_jobs_run SET claimed_at = available_at + interval '20 min'")
    fold_runs()
    sentence = (
        "Attempts of the last day 1 succeeded, 2 failed. "
        "On average an attempt waited for 20 min and ran for 7.0 s."
    )
    assert sentence in words(shown(page, row))
    run_sql("UPDATE django_jobs_tenanttotal SET slo_runs = 2, slo_met = runs - 1")
    objective = " Objective 25.00% started in time, by the objectives of their queues."
    assert sentence + objective in words(shown(page, row))
    Tenant.objects.update(slo_seconds=5, slo_target=0.999)
    own = " Objective 25.00% started within 5.0 s; the objective is 99.9%."
    assert sentence + own in words(shown(page, row))
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    assert "last day" not in shown(page, row)


def test_lines_are_listed_when_there_are_several(page: Page) -> None:
    row = stripe()
    Resource.objects.create(name="ledger")
    copies_of(refund_payment.enqueue(1), 4, "blocked")
    assert "Lines that wait" not in shown(page, row)
    transfer_funds.enqueue(1, "acme")
    text = words(shown(page, row))
    assert "Lines that wait, the first 2 of 2" in text
    assert "acme default account:1:EUR ledger, stripe 1" in text


def test_a_number_that_is_not_counted_to_its_end_has_a_plus(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, tenant = stripe(), Tenant.objects.create(name="acme", max_concurrency=1)
    Resource.objects.create(name="ledger")
    copies_of(refund_payment.enqueue(1), 9, "blocked")
    transfer_funds.using(queue="bulk").enqueue(1, "acme")
    copies_of(bill_tenant.enqueue("acme"), 5, "blocked")
    monkeypatch.setattr(limit_details, "MOST_COUNTED", 6)
    text = words(shown(page, row))
    assert "- default - stripe 3+ " in text
    assert text.endswith("acme bulk account:1:EUR ledger, stripe 1")
    assert re.search(r"default 3\+ \d+% 1", words(shown(page, tenant)))
    copies_of(Job.objects.earliest("id"), 4)
    now = tiles(shown(page, row))
    assert (now["running"], now["ready, not started"]) == ("0", "4")
    monkeypatch.setitem(limit_details.BOUNDS, "most", 3)
    now = tiles(shown(page, row))
    assert (now["running"], now["ready, not started"]) == ("0+", "3+")


def test_jobs_and_keys_are_shown_to_those_who_may_view_jobs(page_of: Callable[..., Page]) -> None:
    row = stripe()
    Resource.objects.create(name="ledger")
    job = refund_payment.enqueue(1)
    copies_of(job, 1, "blocked")
    transfer_funds.enqueue(1, "acme")
    secrets = f"#{job.pk}", "account:1:EUR", "acme", "default"
    text = shown(page_of("view_resource"), row)
    assert [one for one in secrets if one in words(text)] == []
    assert tiles(text)["blocked in line"] == "3"
    assert "<a " not in text
    assert "<a " not in shown(page_of("view_tenant", name="otto"), Tenant.objects.create(name="a"))
    text = shown(page_of("view_resource", "view_job", name="ada"), row)
    assert [one for one in secrets if one not in words(text)] == []


def test_the_page_refreshes_its_numbers_and_not_its_form(page: Page) -> None:
    text = page.text(change_url(Resource, stripe().pk))
    region, form = text.split("data-live-region", 1)[1].split("</section>", 1)
    assert "<input" not in region
    assert 'name="max_concurrency"' in form
    assert "<textarea" not in form
    assert 'data-refresh="5"' in text
    assert "data-live-region" not in page.text(list_url(Resource) + "add/")


def test_the_page_takes_few_queries_however_much_waits(page: Page) -> None:
    rows = stripe(max_concurrency=1, rate=5.0, retry_budget=0.1), Tenant.objects.create(name="7")
    for row in rows:
        url = change_url(type(row), row.pk)
        counts = []
        for _ in range(2):
            page.text(url)
            counts.append(len(statements_of(page, url)))
            bill_tenant.enqueue_many({"tenant_id": number} for number in range(300))
            copies_of(refund_payment.enqueue(1), 30, "blocked")
        assert counts[0] <= 8
        assert counts[1] - counts[0] <= 1 + live.EXPLAINED


def test_it_says_why_its_jobs_wait(page: Page) -> None:
    tenant, row = Tenant.objects.create(name="acme"), stripe(max_concurrency=1)
    job = bill_tenant.enqueue("acme")
    copies_of(job, 7, "blocked")
    run_sql("UPDATE django_jobs_job SET status = 'blocked'")
    jobs.pause(["default"], reason="imports", by="ops")
    text = shown(page, tenant)
    assert "Why 8 jobs wait Queue default is paused since" in words(text)
    assert "by ops: imports." in words(text)
    queue = Queue.objects.get(name="default")
    assert f'Queue <a href="{change_url(Queue, queue.pk)}">default</a> is paused' in text
    jobs.resume(["default"])
    running(refund_payment.enqueue(1))
    refund_payment.enqueue(2)
    refund_payment.using(queue="bulk").enqueue(3)
    text = words(shown(page, row))
    assert "Why 2 jobs wait Waits for the resource stripe (1 of 1 taken)" in text


def test_it_says_no_reason_where_none_waits_and_to_none_who_may_not_see(
    page: Page, page_of: Callable[..., Page]
) -> None:
    tenant = Tenant.objects.create(name="acme")
    assert "Why" not in words(shown(page, tenant))
    bill_tenant.enqueue("acme")
    run_sql("UPDATE django_jobs_job SET status = 'blocked'")
    assert "Why 1 job waits" in words(shown(page, tenant))
    assert "Why" not in words(shown(page_of("view_tenant"), tenant))
