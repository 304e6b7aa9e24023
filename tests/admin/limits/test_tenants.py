"""The page of tenants: look, pause, edit."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_jobs.lifecycle.operations import limits
from django_jobs.models import Tenant
from tests.admin.walking import Live, Page, change_url, list_url, message_of
from tests.app.gate_jobs import bill_tenant
from tests.factories import copies_of

pytestmark = pytest.mark.django_db

ADD = reverse("admin:django_jobs_tenant_add")
LIMITS = {"weight": "1", "rate_seconds": "1", "slo_target": "0.99"}


def acme(**fields: Any) -> Tenant:
    return Tenant.objects.create(name="acme", **fields)


def test_the_list_shows_state_usage_and_weight(page: Page) -> None:
    acme(weight=2.5, max_concurrency=4)
    Tenant.objects.create(name="<b>bolt</b>")
    copies_of(bill_tenant.enqueue("acme"), 4)
    text = page.text(list_url(Tenant))
    assert '4 / 4 <progress max="4" value="4" aria-label="taken">' in text
    assert "</span>busy</span>" in text
    assert '<td class="field-waiting">1</td>' in text
    assert '<td class="field-share">2.5</td>' in text
    assert "&lt;b&gt;bolt" in text
    assert not Live(text).alarms


def test_pausing_and_resuming_is_confirmed_and_logged(page: Page) -> None:
    row = acme()
    assert page.act(Tenant, "pause_tenants", row.pk, reason="unpaid") == "1 tenant was paused."
    assert LogEntry.objects.latest("pk").change_message == "paused: unpaid"
    text = page.read(change_url(Tenant, row.pk))
    assert "unpaid" in text
    assert 'value="resume_tenants"' in text
    assert 'value="pause_tenants"' not in text
    assert page.act(Tenant, "resume_tenants", row.pk) == "1 tenant was resumed."
    assert "it is not paused" in page.act(Tenant, "resume_tenants", row.pk)


def test_the_page_of_a_row_that_goes_when_it_is_resumed_leads_to_the_list(page: Page) -> None:
    limits.pause_tenants(["acme"])
    row = Tenant.objects.get()
    done = page.confirm(Tenant, "resume_tenants", row.pk, from_page=1)
    assert done.url == list_url(Tenant)
    assert not Tenant.objects.exists()
    entry = LogEntry.objects.get()
    assert (entry.change_message, entry.object_repr) == ("resumed", "acme")


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"weight": "0"}, "Enter a number above 0. To start no job, pause the tenant."),
        ({"weight": "-1"}, "Enter a number above 0. To start no job, pause the tenant."),
        ({"weight": "nan"}, "Enter a number."),
        ({"max_concurrency": "0"}, "Ensure this value is greater than or equal to 1."),
        ({"name": "a\tb"}, "The name has a control character."),
        ({"rate": "0"}, "Enter a number above 0, or nothing for no limit."),
        ({"burst": "5"}, "This needs a value of “Rate”."),
        ({"slo_target": "0.999"}, "This needs a value of “Start within”."),
    ],
)
def test_a_share_that_is_none_is_refused(page: Page, given: dict[str, str], problem: str) -> None:
    answered = page.client.post(ADD, {"name": "acme", **LIMITS, **given})
    assert answered.status_code == 200
    assert problem in answered.content.decode()
    assert not Tenant.objects.exists()


def test_a_limit_below_what_runs_is_saved_and_explained(page: Page) -> None:
    row = acme(max_concurrency=10)
    copies_of(bill_tenant.enqueue("acme"), 2)
    answered = page.client.post(change_url(Tenant, row.pk), {**LIMITS, "max_concurrency": 1})
    assert "2 jobs are ready or running, more than the new limit of 1." in message_of(answered)
    given = {**LIMITS, "weight": "3", "max_concurrency": 2, "rate": "5", "burst": "9"}
    answered = page.client.post(change_url(Tenant, row.pk), given)
    assert message_of(answered).count("more than") == 1  # the first message is still there
    row.refresh_from_db()
    assert (row.weight, row.max_concurrency, row.rate, row.burst) == (3.0, 2, 5.0, 9)


def test_a_deleted_tenant_has_the_defaults_again(page: Page) -> None:
    row = acme(weight=9.0)
    url = f"/admin/django_jobs/tenant/{row.pk}/delete/"
    assert page.client.post(url, {"post": "yes"}).status_code == 302
    assert not Tenant.objects.exists()
    row = acme()
    page.client.post(
        list_url(Tenant), {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
    )
    assert not Tenant.objects.exists()


def test_the_list_is_searched_by_name(page: Page) -> None:
    acme()
    Tenant.objects.create(name="bolt")
    text = page.read(list_url(Tenant) + "?q=bol")
    assert ">bolt<" in text
    assert ">acme<" not in text
