"""The page of resources: look, pause, edit, open a breaker."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_jobs import QueueFull
from django_jobs.lifecycle.notifying import GATES
from django_jobs.lifecycle.operations import limits
from django_jobs.models import Job, Resource, Tenant
from tests.admin.walking import Live, Page, change_url, list_url, message_of
from tests.app.gate_jobs import refund_payment, transfer_funds
from tests.factories import copies_of, listening

pytestmark = pytest.mark.django_db

ADD = reverse("admin:django_jobs_resource_add")


def stripe(**fields: Any) -> Resource:
    return Resource.objects.create(name="stripe", **fields)


def form(**fields: Any) -> dict[str, Any]:
    """What a browser sends for a resource without limits."""
    return {"rate_seconds": "1", "breaker_window": "60", "breaker_open_for": "30", **fields}


def test_the_list_shows_state_usage_and_rate(page: Page) -> None:
    stripe(max_concurrency=10, rate=50.0)
    Resource.objects.create(name="ledger")
    copies_of(transfer_funds.enqueue(1, "acme"), 3)
    refund_payment.enqueue(1)
    text = page.text(list_url(Resource))
    assert '3 / 10 <progress max="10" value="3" aria-label="taken">' in text
    assert "3 / ∞" in text
    assert "50/s" in text
    assert '<td class="field-waiting">2</td>' in text
    assert text.count("jobs-ok") == 2
    assert not Live(text).alarms


def test_how_many_may_wait_is_edited_and_shown_beside_how_many_do(page: Page) -> None:
    for row in (stripe(), Tenant.objects.create(name="acme")):
        refund_payment.using(tenant="acme").enqueue(1)
        given = (
            form(max_waiting="1200")
            if row.name == "stripe"
            else {"weight": "1", "rate_seconds": "1", "slo_target": "0.99"}
        )
        page.client.post(change_url(type(row), row.pk), {"max_waiting": "1200", **given})
        assert type(row).objects.get().max_waiting == 1_200
        page.client.post(change_url(type(row), row.pk), {**given, "max_waiting": "0"})
        assert type(row).objects.get().max_waiting == 1_200
        shown = Job.objects.filter(status="blocked").count()
        assert f'<td class="field-waiting">{shown} / 1200</td>' in page.text(list_url(type(row)))
        assert f"{shown} / 1,200" in page.text(change_url(type(row), row.pk))
        with pytest.raises(QueueFull):
            refund_payment.using(tenant="acme").enqueue_many([{"payment_id": 7}] * 1_200)


@pytest.mark.parametrize(
    "fields, taken, label",
    [
        ({"max_concurrency": 2}, 2, "busy"),
        ({"max_concurrency": 2}, 3, "over its limit"),
        ({"breaker_state": "open", "breaker_reason": "20 failures"}, 0, "breaker open"),
        ({"breaker_state": "half_open"}, 0, "breaker half open"),
    ],
)
def test_the_state_is_icon_and_text(
    page: Page, fields: dict[str, Any], taken: int, label: str
) -> None:
    stripe(**fields)
    copies_of(refund_payment.enqueue(1), taken)
    text = page.read(list_url(Resource))
    assert f"</span>{label}</span>" in text
    assert fields.get("breaker_reason", "") in text


def test_pausing_and_resuming_is_confirmed_and_logged(page: Page) -> None:
    row = stripe()
    assert 'value="pause_resources"' in page.read(change_url(Resource, row.pk))
    done = page.act(Resource, "pause_resources", row.pk, reason="maintenance")
    assert done == "1 resource was paused."
    assert LogEntry.objects.latest("pk").change_message == "paused: maintenance"
    text = page.read(list_url(Resource))
    assert "</span>paused</span>" in text
    assert "maintenance" in text
    assert "it is already paused" in page.act(Resource, "pause_resources", row.pk)
    assert page.act(Resource, "resume_resources", row.pk) == "1 resource was resumed."
    row.refresh_from_db()
    assert not row.paused


def test_a_breaker_is_opened_and_closed_by_hand(page: Page) -> None:
    row = stripe()
    assert page.act(Resource, "open_breakers", row.pk, reason="5xx") == (
        "The breaker of 1 resource was opened."
    )
    text = page.read(change_url(Resource, row.pk))
    assert "</span>breaker open</span>" in text
    assert ": 5xx. It is tried again" in text
    assert 'value="close_breakers"' in text
    assert 'value="open_breakers"' not in text
    assert page.act(Resource, "close_breakers", row.pk) == "The breaker of 1 resource was closed."
    row.refresh_from_db()
    assert row.breaker_state == "closed"


@pytest.mark.django_db(transaction=True)
def test_an_edit_keeps_a_pause_and_wakes_the_workers(page: Page) -> None:
    row = stripe(max_concurrency=1)
    limits.pause_resources(["stripe"], reason="maintenance")
    with listening() as notified:
        answered = page.client.post(
            change_url(Resource, row.pk), form(max_concurrency=5, rate=2.5, burst=3)
        )
        assert answered.status_code == 302
        assert notified() == [GATES]
    row.refresh_from_db()
    assert (row.max_concurrency, row.rate, row.burst, row.paused) == (5, 2.5, 3, True)


def test_a_limit_below_what_runs_is_saved_and_explained(page: Page) -> None:
    row = stripe(max_concurrency=10)
    copies_of(refund_payment.enqueue(1), 3)
    answered = page.client.post(change_url(Resource, row.pk), form(max_concurrency=2))
    assert (
        "3 jobs are ready or running, more than the new limit of 2. They are not stopped"
    ) in message_of(answered)
    row.refresh_from_db()
    assert row.max_concurrency == 2


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"rate": "0"}, "Enter a number above 0, or nothing for no limit."),
        ({"rate": "-1"}, "Enter a number above 0, or nothing for no limit."),
        ({"rate_seconds": "0"}, "Enter a number above 0."),
        ({"max_concurrency": "0"}, "Ensure this value is greater than or equal to 1."),
        ({"burst": "5"}, "This needs a value of “Rate”."),
        ({"retry_budget": "1.5"}, "Ensure this value is less than or equal to 1.0."),
        ({"breaker_window": "1e12"}, "Enter at most a year, in seconds."),
        ({"breaker_open_for": "1e12"}, "Enter at most a year, in seconds."),
        ({"rate_seconds": "1e12"}, "Enter at most a year, in seconds."),
        ({"breaker_failures": "0"}, "Ensure this value is greater than or equal to 1."),
        ({"name": "no spaces"}, "Use letters, digits, dots, hyphens and underscores"),
    ],
)
def test_limits_that_let_no_job_start_are_refused(
    page: Page, given: dict[str, str], problem: str
) -> None:
    answered = page.client.post(ADD, form(**{"name": "stripe", **given}))
    assert answered.status_code == 200
    assert problem in answered.content.decode()
    assert not Resource.objects.exists()


def test_a_resource_is_added_and_not_renamed(page: Page) -> None:
    assert page.client.post(ADD, form(name="stripe", rate="0.5")).status_code == 302
    row = Resource.objects.get()
    assert row.rate == 0.5
    page.client.post(change_url(Resource, row.pk), form(name="other"))
    assert Resource.objects.get().name == "stripe"
